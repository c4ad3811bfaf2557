"""Rates of PipeDream by simulation, from measured stages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import lcm

from sim.engine.clock import TICK_S, tick_array
from sim.engine.path import run_path
from sim.engine.steady import steady_state
from sim.engine.timeline import Durations, Timeline
from sim.schedules import Kind, Shape, build


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
    table = {Kind.F: tick_array([stage.forward_s for stage in stages]), Kind.B: tick_array(backward)}
    workers = sum(replicas)
    enough = 12 * lcm(*replicas, workers)
    shape = Shape(workers, minibatches or enough, replicas=replicas if workers > len(stages) else ())
    return run_path(build(name, shape), Durations(table, tick_array(messages)))


def pipedream_seconds(stages: Sequence[StageCost], bytes_per_s: float) -> float:
    """Return the seconds per minibatch of the whole pipeline in steady state.

    The simulated rate, or that of the busiest link if it is slower: a worker sends and receives 2 |A| per minibatch
    at each of its boundaries, as the partitioner counts.
    """
    simulated = steady_state(pipedream_run(stages, bytes_per_s)).ticks_per_microbatch * TICK_S
    crossing = [0.0]
    for before, after in pairwise(stages):
        crossing.append(2 * before.output_bytes / (bytes_per_s * min(before.replicas, after.replicas)))
    return max(simulated, *crossing)


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
