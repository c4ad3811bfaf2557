"""The metrics of a training step (TBD, arXiv 1803.06905, section 3): throughput, three utilisations, FLOP and memory.

After warm-up: some steps are timed as they are; one is profiled, one is counted by torch's FlopCounterMode and one has
its memory taken apart, because each of these makes a step slower.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil
import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.utils.flop_counter import FlopCounterMode

from calibration.workloads.results import Metrics
from calibration.workloads.split import split
from calibration.workloads.training import Training

WARM_UP = 3
LEAST_STEPS, MOST_STEPS, SPAN_S = 5, 50, 1.0
"""Steps are timed for about so long."""

ON_CPU = ("aten::", "mkldnn::", "## Call CompiledFxGraph")
"""How the names of what computes on a CPU begin: its operations are its kernels."""


@dataclass(frozen=True)
class Timed:
    """Seconds of every step, and the share of all cores that this process kept busy meanwhile."""

    seconds: tuple[float, ...]
    cpu_utilisation: float

    @property
    def step_time_s(self) -> float:
        """The median."""
        return median(self.seconds)


def timed(training: Training, together: Callable[[], object] = lambda: None, steps: int | None = None) -> Timed:
    """Return what steps take after warm-up; `together` lets processes begin a step at the same time.

    steps: how many; by default as many as fill `SPAN_S`.
    """
    seconds: list[float] = []
    for _ in range(WARM_UP):
        once = _once(training, together)
    count = min(MOST_STEPS, max(LEAST_STEPS, round(SPAN_S / once))) if steps is None else steps
    begin, busy = time.perf_counter(), time.process_time()
    for _ in range(count):
        seconds.append(_once(training, together))
    elapsed = time.perf_counter() - begin
    share = (time.process_time() - busy) / elapsed / logical_cores()
    return Timed(tuple(seconds), min(1.0, share))


def _once(training: Training, together: Callable[[], object]) -> float:
    together()
    begin = time.perf_counter()
    training.step()
    training.wait()
    return time.perf_counter() - begin


def logical_cores() -> int:
    """Return the cores that the operating system counts."""
    return psutil.cpu_count() or 1


def compute_utilisation(training: Training) -> float:
    """Return the share of one profiled step's time in which at least one kernel runs."""
    cuda = training.device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as profile:
        begin = time.perf_counter_ns()
        training.step()
        training.wait()
        elapsed = time.perf_counter_ns() - begin
    events: Iterable[Any] = profile.profiler.kineto_results.events()
    kind = DeviceType.CUDA if cuda else DeviceType.CPU
    of_device = (e for e in events if e.device_type() == kind)
    busy = covered([(e.start_ns(), e.end_ns()) for e in of_device if cuda or e.name().startswith(ON_CPU)])
    return min(1.0, busy / elapsed)


def covered(spans: Sequence[tuple[int, int]]) -> int:
    """Return how long at least one of the spans (start, end) lasts."""
    found, reached = 0, 0
    for start, end in sorted(spans):
        found += max(0, end - max(start, reached))
        reached = max(reached, end)
    return found


def flop(training: Training) -> int:
    """Return the FLOP of the matrix products of one step, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        training.step()
    return int(counter.get_total_flops())


def metrics(training: Training, peak_flop_per_s: float, counted: Training | None = None) -> Metrics:
    """Return the metrics of one process; `peak_flop_per_s` is what its device could do.

    counted: the same workload as torch runs it without a compiler, of which operations can be counted (by default
    `training` itself); without it FLOP are those of `training` and its memory is taken apart.
    """
    found = timed(training)
    share = compute_utilisation(training)
    plain = training if counted is None else counted
    work = flop(plain)
    memory = split(training) if counted is None else None
    return Metrics(
        step_time_s=found.step_time_s,
        samples_per_s=training.samples / found.step_time_s,
        compute_utilisation=share,
        tensor_utilisation=work / (peak_flop_per_s * share * found.step_time_s),
        cpu_utilisation=found.cpu_utilisation,
        flop=float(work),
        peak_bytes=float(memory.peak_bytes) if memory else None,
        memory_bytes={name: float(size) for name, size in memory.parts.items()} if memory else {},
    )
