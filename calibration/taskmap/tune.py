"""The best schedule for given sizes: ranked by their costs, the first few measured.

A kernel is compiled once for all sizes. The costs of a contraction are fitted once per machine from a handful of
measured schedules; after it each new size costs a ranking and the measurement of its first candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import Generic, TypeVar

import numpy as np

from calibration.taskmap.contraction import IMAGE, PRODUCT, Contraction, Sizes
from calibration.taskmap.cost import Costs, fit
from calibration.taskmap.native import compiled
from calibration.taskmap.processor import Processor
from calibration.taskmap.space import KernelSchedule, schedules

PROBES = 8
TOP, SIGMAS = 10, 2.0
"""What is measured: schedules within so many standard deviations of the costs' first one, at most that many."""
LEARNED: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {
    PRODUCT: ((256, 256, 256), (48, 1024, 192), (16, 320, 1024)),
    IMAGE: ((1, 16, 24, 24, 48), (2, 64, 12, 12, 96)),
}
"""Sizes from which costs are learned, by the names of a contraction's sizes."""
LEAST_S = 0.02
"""How long a schedule is measured, at least three times."""

S = TypeVar("S")


@dataclass(frozen=True)
class Chosen(Generic[S]):
    """The fastest schedule that was measured, its seconds, and what finding it took: schedules measured, seconds."""

    schedule: S
    seconds: float
    measured: int
    spent_s: float


@dataclass
class Bench:
    """Measures schedules of a contraction at given sizes on random arrays; what is measured is remembered."""

    contraction: Contraction
    sizes: Sizes
    threads: int = 1
    held: dict[KernelSchedule, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng, s = np.random.default_rng(0), self.sizes
        rows, columns, depth = self.contraction.extents(s)
        most = {"a": rows * depth, "b": depth * columns}  # a patch is read more than once: never more than this
        self.a, self.b = (rng.standard_normal(n, dtype=np.float32) for n in most.values())
        self.c = np.empty(rows * columns, dtype=np.float32)

    def __call__(self, schedule: KernelSchedule) -> float:
        """Return the shortest of the measured seconds."""
        if schedule not in self.held:
            kernel = compiled(schedule.program(self.contraction))
            self.held[schedule] = shortest(lambda: kernel(self.a, self.b, self.c, self.sizes, None, self.threads))
        return self.held[schedule]


def shortest(run: Callable[[], object]) -> float:
    """Return the shortest seconds of a call, warm."""
    run()
    end, times = perf_counter() + LEAST_S, list[float]()
    while len(times) < 3 or perf_counter() < end:
        began = perf_counter()
        run()
        times.append(perf_counter() - began)
    return min(times)


def probes(machine: Processor, count: int = PROBES, seed: int = 0) -> tuple[KernelSchedule, ...]:
    """Return schedules drawn from the space at random, for the fit of costs."""
    every = schedules(machine)
    return tuple(Random(seed).sample(every, min(count, len(every))))


def learned(contraction: Contraction, machine: Processor, threads: int = 1) -> Costs:
    """Return the costs of a contraction, fitted to probes measured at the sizes of `LEARNED`."""
    found = []
    for each in LEARNED[contraction.sizes]:
        size = dict(zip(contraction.sizes, each, strict=True))
        bench = Bench(contraction, size, threads)
        found += [(schedule, size, bench(schedule)) for schedule in probes(machine)]
    return fit(contraction, machine, found, threads)


def tune(costs: Costs, bench: Bench, top: int = TOP) -> Chosen[KernelSchedule]:
    """Return the fastest of the schedules that the costs rank first, of which they cannot say which it is."""
    return fastest(candidates(costs, bench.sizes, bench.threads, top), bench)


def candidates(costs: Costs, sizes: Sizes, threads: int = 1, top: int = TOP) -> list[KernelSchedule]:
    """Return the schedules to measure, at most `top`, in the order of their costs."""
    every = schedules(costs.machine)
    seconds = costs.seconds(every, sizes, threads)
    order = np.argsort(seconds, kind="stable")
    near = int(np.sum(seconds <= seconds[order[0]] * np.exp(SIGMAS * costs.sigma_log)))
    return [every[i] for i in order[: min(top, near)]]


def fastest(those: Sequence[S], bench: Callable[[S], float]) -> Chosen[S]:
    """Return the fastest of some schedules, each measured."""
    began = perf_counter()
    times = [bench(schedule) for schedule in those]
    best = int(np.argmin(times))
    return Chosen(those[best], times[best], len(times), perf_counter() - began)
