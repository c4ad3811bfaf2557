"""What a predictor answers for a case, and the first one: the step simulator, row by row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean

from sim.engine.step import device_memory, memory_sigma, simulate
from sim.specs.fields import InputError
from sim.validation.table import MemoryKind
from sim.validation.translate import Case


@dataclass(frozen=True)
class Range:
    """A predicted number with its central 80 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Range":
        """Return the range scaled by `factor`."""
        return Range(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Prediction:
    """Step time (s) and, for every kind of memory, the peak of each pipeline rank (bytes)."""

    step_time_s: Range
    memory_bytes: Mapping[MemoryKind, tuple[Range, ...]]

    def peak(self, kind: MemoryKind, rank: str | None = None) -> Range:
        """Return the peak of the last pipeline rank (rank "last") or else of the fullest."""
        ranks = self.memory_bytes[kind]
        return ranks[-1] if rank == "last" else max(ranks, key=lambda r: r.value)


Predictor = Callable[[Sequence[Case]], Sequence[Prediction]]
Fit = Callable[[Sequence[Case]], Predictor]
"""Makes a predictor out of the user's earlier runs of the same cluster."""


def simulated(cases: Sequence[Case]) -> list[Prediction]:
    """Return the step simulator's prediction of every case.

    Raises:
        InputError: the engine cannot run a case; `path` starts with the row's id.
    """
    return [_simulated(case) for case in cases]


def _simulated(case: Case) -> Prediction:
    try:
        step = simulate(case.model, case.cluster, case.plan)
    except InputError as error:
        raise error.under(case.row.id) from None
    profile, m = step.profile, step.profile.memory
    sigma = memory_sigma(profile)

    def ranges(values: Sequence[float], sigma_log: float) -> tuple[Range, ...]:
        return tuple(Range(v, *profile.interval80(v, sigma_log)) for v in values)

    allocated = [timeline.peak_bytes for timeline in step.memory]
    return Prediction(
        Range(step.step_time_s, *step.step_time_interval_s),
        {
            "allocated": ranges(allocated, m.allocated_sigma_log),
            "reserved": ranges([a * m.reserved_over_allocated for a in allocated], sigma),
            "nvidia_smi": ranges([float(device_memory(a, profile)) for a in allocated], sigma),
        },
    )


def scaled_to(predict: Predictor) -> Fit:
    """Return a fit of one run-level parameter, the site's factor on time.

    The factor is the geometric mean of measured over predicted step time of the rows that may score time; without
    such a row it is 1.
    """

    def fit(cases: Sequence[Case]) -> Predictor:
        timed = [case for case in cases if "time" in case.row.uses]
        ratios = [log(c.row.step_time_s / p.step_time_s.value) for c, p in zip(timed, predict(timed), strict=True)]
        factor = exp(fmean(ratios)) if ratios else 1.0
        return lambda asked: [replace(p, step_time_s=p.step_time_s.times(factor)) for p in predict(asked)]

    return fit
