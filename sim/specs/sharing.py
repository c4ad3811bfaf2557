"""A cluster that a run shares with other jobs."""

from typing import Annotated, Literal

from pydantic import Field

from sim.specs.fields import InputError, real, spec, whole

PolicyName = Literal[
    "allox", "fifo", "fifo_packed", "fifo_perf", "finish_time_fairness", "finish_time_fairness_packed",
    "finish_time_fairness_perf", "gandiva", "hierarchical", "hierarchical_agnostic", "isolated", "max_min_fairness",
    "max_min_fairness_packed", "max_min_fairness_perf", "max_sum_throughput_normalized_by_cost_packed_SLOs",
    "max_sum_throughput_normalized_by_cost_perf", "max_sum_throughput_normalized_by_cost_perf_SLOs",
    "max_sum_throughput_perf", "min_total_duration", "min_total_duration_packed", "min_total_duration_perf",
    "max_min_fairness_water_filling", "max_min_fairness_water_filling_packed", "max_min_fairness_water_filling_perf",
]  # fmt: skip
"""Names of `sim.cluster.POLICIES`."""


@spec
class Sharing:
    """The devices of a shared cluster, the other jobs on it, and the policy that says who runs when.

    `devices`: how many there are of each type that `workload` names, the run's own among them. `workload`: a file of
    types of jobs whose throughputs are predicted on every type of device (`sim.cluster.read_workload`). The others come
    as the file `trace` says (`sim.cluster.read_trace`), or are drawn with `seed` of types that run on 1, 2, 4 and 8
    devices, one every `every_hours` in the mean, for as long as the run takes; the run itself is there from the begin,
    with `weight` beside their own. An hour of a device costs `usd_per_gpu_hour` (left out: what it costs the run
    alone).

    Raises:
        InputError: a number is out of range, or not exactly one of trace and every_hours is given.
    """

    workload: Annotated[str, Field(min_length=1, max_length=1_000, description="the path of a file")]
    devices: Annotated[
        dict[str, Annotated[int, whole(1, 10_000_000)]],
        Field(min_length=1, description="a mapping of types of devices to how many there are"),
    ]
    trace: str | None = None
    every_hours: Annotated[float, real(1e-3, 1e5, "hours")] | None = None
    seed: Annotated[int, whole(0, 2**31)] = 0
    policy: PolicyName = "max_min_fairness_perf"
    weight: Annotated[float, real(1e-6, 1e6)] = 1.0
    usd_per_gpu_hour: Annotated[float, real(0.0, 1e4, "USD")] | None = None

    def __post_init__(self) -> None:
        if (self.trace is None) == (self.every_hours is None):
            raise InputError("every_hours", self.every_hours, "exactly one of trace and every_hours")
