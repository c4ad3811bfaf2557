"""What a step would take if messages between pipeline ranks were not sent beside compute."""

import numpy as np

from sim.costs.run_level import straggling
from sim.engine.assembly import durations
from sim.engine.path import run_path
from sim.engine.step import Step
from sim.engine.timeline import Durations
from sim.schedules import Kind


def blocking_step_time_s(step: Step) -> float:
    """Return the seconds of `step` if every rank stood still while it sends (Megatron-LM's order of 2021).

    A pass lasts longer by its own message, and its receiver waits for no more than that. Sends of both directions
    share a rank's way out, so that a turn of a forward and a backward pays for two. Collectives as on the compiled
    path.
    """
    schedule = step.timeline.schedule
    usual = durations(schedule, step.costs)
    place = np.arange(schedule.stages) % schedule.depth
    sends = {Kind.F: place < schedule.depth - 1, Kind.B: place > 0, Kind.I: place > 0}
    held = {kind: v + usual.message * sends[kind] if kind in sends else v for kind, v in usual.of_kind.items()}
    period = run_path(schedule, Durations(held, 0 * usual.message)).period * 1e-9
    return float(period * (1 + straggling(step.level.parameters.straggler, step.placed.gpus)))
