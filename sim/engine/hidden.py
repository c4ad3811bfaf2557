"""What the breakdown of a step does not show: collectives, messages and copies that run beside something else."""

import numpy as np

from sim.costs import stage
from sim.engine.assembly import pace
from sim.engine.clock import TICK_S
from sim.engine.contended import layout
from sim.engine.lower import lower
from sim.engine.placed import slowest
from sim.engine.program import Cause
from sim.engine.step import Step
from sim.specs.arguments import checked

ROUNDED = 1e-6
"""Share of a step that whole ticks of its operations may add up to."""

HIDDEN = {Cause.DATA: "dp", Cause.MESSAGE: "pp", Cause.OFFLOAD: "offload"}


@checked
def hidden(step: Step) -> dict[str, float]:
    """Return the seconds of a step, by cause, that the rank that decides it communicates or copies without waiting.

    What the operations take alone (as the event engine lowers them) less what of them is exposed. Collectives of
    tensor, context and expert parallelism are not listed: but for those of fused pairs, the next operation waits.
    """
    timeline, costs = step.timeline, step.costs
    own = pace(timeline, step.placed.microbatches)
    traffic = slowest(step.model, step.cluster, step.placed, step.level, stage.traffic_model)
    where = layout(step.model, step.cluster, step.placed, step.level)
    lowered = lower(timeline.schedule, costs, traffic, where)
    program = lowered.program
    mine = program.graph.rank == own.rank
    found = {}
    for cause, term in HIDDEN.items():
        whole = TICK_S * float(np.sum(program.duration[mine & (program.cause == cause)])) / own.steps
        if cause == Cause.DATA:  # a shared table's gradients are exposed as "other"
            whole -= own.updates * float(lowered.tied[own.rank])
        beside = whole - step.breakdown_s[term]
        found[term] = beside if beside > ROUNDED * step.step_time_s else 0.0
    return found
