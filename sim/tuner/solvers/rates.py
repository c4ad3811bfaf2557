"""Rates of asynchronous pipelines by simulation: PipeDream from measured stages, 2BW from a simulated step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import lcm

import numpy as np
from numpy.typing import NDArray

from sim.engine.path import run_path
from sim.engine.steady import SteadyState, steady_state
from sim.engine.step import Step, device_memory
from sim.engine.timeline import Durations, Timeline
from sim.schedules import Kind, Shape, build

MASTERS = 2
"""fp32 master copies over 16-bit weights, in bytes: each version of the weights has both."""


@dataclass(frozen=True)
class StageCost:
    """One stage of a measured network on one worker, for one minibatch; output_bytes: what the next stage gets."""

    forward_s: float
    backward_s: float
    parameter_bytes: float
    output_bytes: float
    replicas: int = 1

    def of_batch(self, share: float) -> "StageCost":
        """Return the stage at `share` of the measured minibatch, times and activations taken as proportional."""
        return replace(
            self,
            forward_s=self.forward_s * share,
            backward_s=self.backward_s * share,
            output_bytes=self.output_bytes * share,
        )

    def reduce_s(self, bytes_per_s: float) -> float:
        """Return the time that its replicas need to sum their gradients: 4 (r - 1) |W| / (r bandwidth)."""
        return 4 * (self.replicas - 1) * self.parameter_bytes / (self.replicas * bytes_per_s)


def pipedream_run(
    stages: Sequence[StageCost], bytes_per_s: float, minibatches: int = 0, name: str = "pipedream"
) -> Timeline:
    """Return a run in nanoseconds; one stage alone is data parallelism.

    A stage's gradients are summed beside its backward and hide what they can (arXiv 1806.03377, section 3.1 for the
    volume); messages take their bytes over the bandwidth. minibatches: 0 is
    enough for a steady state. name: another schedule of the same stages, for stages without replicas.
    """
    replicas = tuple(stage.replicas for stage in stages)
    backward = [max(stage.backward_s, stage.reduce_s(bytes_per_s)) for stage in stages]
    messages = [0.0, *(stage.output_bytes / bytes_per_s for stage in stages[:-1])]
    table = {Kind.F: _ns([stage.forward_s for stage in stages]), Kind.B: _ns(backward)}
    workers = sum(replicas)
    enough = 12 * lcm(*replicas, workers)
    shape = Shape(workers, minibatches or enough, replicas=replicas if workers > len(stages) else ())
    return run_path(build(name, shape), Durations(table, _ns(messages)))


def pipedream_seconds(stages: Sequence[StageCost], bytes_per_s: float) -> float:
    """Return the seconds per minibatch of the whole pipeline in steady state.

    The simulated rate, or that of the busiest link if it is slower: a worker sends and receives 2 |A| per minibatch
    at each of its boundaries, as the partitioner counts.
    """
    simulated = steady_state(pipedream_run(stages, bytes_per_s)).ticks_per_microbatch * 1e-9
    crossing = [0.0]
    for before, after in pairwise(stages):
        crossing.append(2 * before.output_bytes / (bytes_per_s * min(before.replicas, after.replicas)))
    return max(simulated, *crossing)


def two_bw_steady(step: Step, groups: int = 8) -> SteadyState:
    """Return the steady state of 2BW with the passes, messages and optimizer of a simulated step with flush.

    The gradients' reduction is not in it: it runs beside the next group (see `two_bw_seconds`).
    """
    run, order = step.timeline, step.timeline.schedule
    table = {kind: _of_stage(run, kind) for kind in (Kind.F, Kind.B, Kind.OPTIMIZER)}
    message = np.full(order.stages, round(step.costs["send"] * 1e9))
    shape = Shape(order.ranks, order.microbatches * groups, group=order.microbatches)
    return steady_state(run_path(build("2bw", shape), Durations(table, message)))


def two_bw_seconds(step: Step) -> float:
    """Return the seconds per batch of 2BW: the steady state, or the reduction of gradients where that is longer.

    (arXiv 2006.09503, section 3.4.) What waiting for the slowest device adds to a step with flush is added here too.
    """
    reduce = int(_of_stage(step.timeline, Kind.REDUCE_GRAD).max())
    batch = max(two_bw_steady(step).ticks_per_update, reduce) * 1e-9
    return batch * step.step_time_s / (step.timeline.makespan * 1e-9)


def two_bw_memory_bytes(step: Step) -> float:
    """Return the device memory of 2BW: the step's with a second version of weights and fp32 masters on each rank."""
    allocated = max(rank.peak_bytes + (1 + MASTERS) * rank.fixed["parameters"] for rank in step.memory)
    return float(device_memory(allocated, step.profile))


def _of_stage(run: Timeline, kind: Kind) -> NDArray[np.int64]:
    """Return the duration of a kind's actions by stage."""
    graph, found = run.graph, np.zeros(run.schedule.stages, dtype=np.int64)
    of_kind = graph.kind == kind
    np.maximum.at(found, graph.stage[of_kind], (run.end - run.start)[of_kind])
    return found


def _ns(seconds: Sequence[float]) -> NDArray[np.int64]:
    return np.rint(np.array(seconds) * 1e9).astype(np.int64)


def read_stages(rows: Sequence[Mapping[str, str]], model: str, configuration: str) -> list[StageCost]:
    """Return the stages of a table of measured stages, in order."""
    return [
        StageCost(
            float(row["forward_s"]),
            float(row["backward_s"]),
            float(row["parameter_bytes"]),
            float(row["output_bytes"]),
            int(row["replicas"]),
        )
        for row in rows
        if (row["model"], row["configuration"]) == (model, configuration)
    ]
