"""The best schedule for given sizes: ranked by their costs, the first few measured.

A kernel is compiled once for all sizes. The costs of a contraction are fitted once per machine from a handful of
measured schedules; after it each new size costs a ranking and the measurement of its first candidates.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from time import perf_counter

import numpy as np

from calibration.taskmap.contraction import Contraction, Sizes
from calibration.taskmap.cost import Costs, fit
from calibration.taskmap.native import compiled
from calibration.taskmap.processor import Processor
from calibration.taskmap.space import KernelSchedule, schedules

PROBES = 12
TOP = 10
LEAST_S = 0.02
"""How long a schedule is measured, at least three times."""

Measure = Callable[[KernelSchedule], float]


@dataclass(frozen=True)
class Chosen:
    """The fastest schedule that was measured, its seconds, and what finding it took: schedules measured, seconds."""

    schedule: KernelSchedule
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
            self.held[schedule] = min(
                self._times(lambda: kernel(self.a, self.b, self.c, self.sizes, None, self.threads))
            )
        return self.held[schedule]

    def _times(self, run: Callable[[], None]) -> Iterator[float]:
        run()
        end, n = perf_counter() + LEAST_S, 0
        while n < 3 or perf_counter() < end:
            began = perf_counter()
            run()
            n += 1
            yield perf_counter() - began


def probes(machine: Processor, count: int = PROBES, seed: int = 0) -> tuple[KernelSchedule, ...]:
    """Return schedules spread over the space at random, for the fit of costs."""
    every = schedules(machine)
    return tuple(Random(seed).sample(every, min(count, len(every))))


def learned(contraction: Contraction, machine: Processor, sizes: Sequence[Sizes], threads: int = 1) -> Costs:
    """Return the costs of a contraction, fitted to probes measured at each of some sizes."""
    found = []
    for n, size in enumerate(sizes):
        bench = Bench(contraction, size, threads)
        found += [(schedule, size, bench(schedule)) for schedule in probes(machine, seed=n)]
    return fit(contraction, machine, found, threads)


def tune(costs: Costs, bench: Bench, top: int = TOP) -> Chosen:
    """Return the fastest of the `top` schedules that the costs rank first."""
    every = schedules(costs.machine)
    order = np.argsort(costs.seconds(every, bench.sizes, bench.threads), kind="stable")
    return fastest([every[i] for i in order[:top]], bench)


def fastest(candidates: Sequence[KernelSchedule], bench: Measure) -> Chosen:
    """Return the fastest of some schedules, each measured."""
    began = perf_counter()
    times = [bench(schedule) for schedule in candidates]
    best = int(np.argmin(times))
    return Chosen(candidates[best], times[best], len(times), perf_counter() - began)


def searched_at_random(machine: Processor, bench: Measure, good_s: float, seed: int = 0) -> Chosen:
    """Return what a search at random finds that measures until a schedule takes `good_s` or less, or all are measured.

    The baseline of an autotuner of equal quality, over the same space.
    """
    every, began = list(schedules(machine)), perf_counter()
    Random(seed).shuffle(every)
    found: list[tuple[float, KernelSchedule]] = []
    for schedule in every:
        found.append((bench(schedule), schedule))
        if found[-1][0] <= good_s:
            break
    seconds, schedule = min(found, key=lambda each: each[0])
    return Chosen(schedule, seconds, len(found), perf_counter() - began)
