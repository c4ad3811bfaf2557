"""Recorded runs of the published simulator (`reference/cluster/replay`), and the allocations in them as a policy."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.cluster.jobs import ClusterJob
from sim.cluster.policies.base import Policy
from sim.cluster.state import Floats, State
from sim.cluster.throughput_files import read_throughputs
from sim.cluster.throughputs import Throughputs
from sim.cluster.trace import read_trace
from tests.oracle import reference

TYPES = ("v100", "p100", "k80")
RECORDED = [
    *(f"B_artifact15_2-0-4__{name}" for name in (
        "fifo", "finish_time_fairness_perf", "max_min_fairness", "max_min_fairness_perf",
        "max_min_fairness_water_filling_perf", "max_sum_throughput_perf", "min_total_duration_perf")),
    "D_las96_8-16-24__max_min_fairness_perf",
    *(f"F2_static30_single_3-3-3__{name}" for name in (
        "fifo", "finish_time_fairness_perf", "max_min_fairness", "max_min_fairness_perf", "min_total_duration_perf")),
]  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """What was run, and what came out."""

    jobs: tuple[ClusterJob, ...]
    throughputs: Throughputs
    devices: dict[str, int]
    data: dict[str, Any]


def recording(name: str) -> Recording:
    """Return a recorded run; skips without the reference data."""
    folder = reference("cluster")
    data = json.loads(gzip.decompress((folder / "replay" / f"{name}__seed0.json.gz").read_bytes()))
    return Recording(jobs_of(folder, data["trace"]), speeds(folder, data["throughputs"]), counts(data["cluster"]), data)


def jobs_of(folder: Path, trace: str) -> tuple[ClusterJob, ...]:
    return read_trace(folder / "inputs" / trace)


def speeds(folder: Path, name: str) -> Throughputs:
    return read_throughputs(folder / "inputs" / f"{name}.gz")


def counts(cluster: list[int]) -> dict[str, int]:
    return dict(zip(TYPES, cluster, strict=True))


class Recorded(Policy):
    """Gives what was recorded, call by call."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__()
        self.calls = iter(data["all_allocations"])
        self.name, self.strict = data["policy_name"], data["policy_name"].startswith("FIFO")
        self.aware = "Perf" in self.name or "Packing" in self.name

    def allocate(self, state: State) -> Floats:
        _, given = next(self.calls)
        return np.array([[given[str(i)][name] for name in state.types] for i in state.ids])
