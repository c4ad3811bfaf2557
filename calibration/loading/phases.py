"""Where the time of an input pipeline goes, by differences (DS-Analyzer, Mohan et al., PVLDB 14(5), arXiv 2007.06775).

Three phases train on: one batch again and again (t1), data whose files are all cached (t3), and data as it is (t2).
t3 - t1 is what the trainer waits for preparation, t2 - t3 what it waits for storage. A trainer is anything that is
called with a batch: one that sleeps stands for a device elsewhere, one that computes needs a core of this machine.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter
from typing import TypeVar

from sim.specs.fields import InputError
from sim.units import many

B = TypeVar("B")
Told = Callable[[str], object]


def silent(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Phases:
    """Seconds of a batch of `samples` samples in the steady state.

    compute_s: the trainer alone; cached_s: with all files cached; overall_s: as it is; prep_s: all files cached and
    no trainer, what preparation takes as fast as it can.
    """

    samples: int
    compute_s: float
    cached_s: float
    overall_s: float
    prep_s: float

    @property
    def samples_per_s(self) -> float:
        """What training reaches."""
        return self.samples / self.overall_s

    @property
    def compute_samples_per_s(self) -> float:
        """What the trainer alone reaches, G."""
        return self.samples / self.compute_s

    @property
    def prep_samples_per_s(self) -> float:
        """What preparation alone reaches, P."""
        return self.samples / self.prep_s

    @property
    def prep_stall_fraction(self) -> float:
        """Share of the time in which the trainer waits for preparation."""
        return max(0.0, self.cached_s - self.compute_s) / self.overall_s

    @property
    def fetch_stall_fraction(self) -> float:
        """Share of the time in which it waits for storage besides."""
        return max(0.0, self.overall_s - self.cached_s) / self.overall_s


def differential(
    cold: Iterable[B],
    cached: Iterable[B],
    trainer: Callable[[B], object],
    samples: int,
    batches: int,
    warm: int = 4,
    told: Told = silent,
) -> Phases:
    """Return the phases of a loader.

    cold: batches as training would get them; cached: the same loader on files that are all in memory; both give
    `warm` + `batches` batches or more, and are iterated once and twice. samples: of a batch; batches: how many are
    timed, best a multiple of the loader's workers; warm: how many before them fill caches and queues; told: is called
    with each phase before it, as text.

    Raises:
        InputError: a number is below 1, or an iterable ends too early.
    """
    for name, value in (("samples", samples), ("batches", batches), ("warm", warm)):
        if value < 1:
            raise InputError(name, value, "a whole number from 1")

    def timed(what: str, given: Iterator[B], train: Callable[[B], object], name: str = "cached") -> float:
        told(f"phase {what}: {many(warm + batches, 'batch', 'batches')}")
        return pace(given, train, batches, warm, name)

    return Phases(
        samples=samples,
        compute_s=timed("1 of 4, the trainer alone", repeat(first("cached", cached)), trainer),
        cached_s=timed("2 of 4, all files cached", iter(cached), trainer),
        overall_s=timed("3 of 4, as it is", iter(cold), trainer, "cold"),
        prep_s=timed("4 of 4, no trainer", iter(cached), lambda batch: None),
    )


def first(name: str, batches: Iterable[B]) -> B:
    """Return the first batch; raises InputError where there is none."""
    for batch in batches:
        return batch
    raise InputError(name, "no batch", "an iterable of batches")


def pace(batches: Iterator[B], trainer: Callable[[B], object], timed: int, warm: int, name: str = "batches") -> float:
    """Return the seconds that a batch takes after the first `warm`, in the mean of `timed`.

    Raises:
        InputError: the iterator ends too early.
    """
    begin = perf_counter()
    for number in range(warm + timed):
        if number == warm:
            begin = perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            raise InputError(name, f"{number} batches", f"{warm + timed} batches or more") from None
        trainer(batch)
    return max(1e-9, perf_counter() - begin) / timed
