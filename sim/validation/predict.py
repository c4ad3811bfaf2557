"""What a predictor answers for a case: the analytic one under run-level parameters, shipped or fitted to a site."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from sim.costs.profile import Profile
from sim.costs.run_level import RunLevelSet, run_level
from sim.engine.batch import Asked, Batch
from sim.engine.step import device_memory, memory_sigma, step_sigma
from sim.specs.fields import InputError
from sim.validation.fit import fit_run_level
from sim.validation.table import MemoryKind
from sim.validation.translate import Case


@dataclass(frozen=True)
class Range:
    """A predicted number with its central 80 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, sigma_log: float) -> "Range":
        """Return the range of a log-normal quantity with median `value`."""
        return cls(value, *Profile.interval80(value, sigma_log))


@dataclass(frozen=True)
class Prediction:
    """Step time (s) and, for every kind of memory, the peak of the fullest and of the last pipeline rank (bytes)."""

    step_time_s: Range
    memory_bytes: Mapping[MemoryKind, tuple[Range, ...]]

    def peak(self, kind: MemoryKind, rank: str | None = None) -> Range:
        """Return the peak of the last pipeline rank (rank "last") or else of the fullest."""
        ranks = self.memory_bytes[kind]
        return ranks[-1] if rank == "last" else max(ranks, key=lambda r: r.value)


Predictor = Callable[[Sequence[Case]], Sequence[Prediction]]


def elsewhere(cases: Sequence[Case]) -> list[Prediction]:
    """Return predictions by the shipped run-level parameters that never saw a case's own source.

    Raises:
        InputError: the engine cannot run a case.
    """
    found: list[Prediction] = []
    for source, part in groupby(cases, key=lambda case: case.row.source):
        found += analytic(list(part), run_level(source))
    return found


def analytic(cases: Sequence[Case], level: RunLevelSet) -> list[Prediction]:
    """Return predictions under the run-level parameters `level`: closed forms, the engine where there is none.

    Raises:
        InputError: the engine cannot run a case.
    """
    asked = [Asked(case.model, case.cluster, case.placed) for case in cases]
    table = Batch(asked)(level)
    columns = zip(asked, table.step_time_s, table.peak_memory_bytes, table.last_peak_bytes, strict=True)
    return [_prediction(a, level, float(t), float(fullest), float(last)) for a, t, fullest, last in columns]


def _prediction(asked: Asked, level: RunLevelSet, time_s: float, fullest: float, last: float) -> Prediction:
    profile, m = asked.profile, asked.profile.memory
    sigma, ranks = memory_sigma(profile), (fullest, last)
    return Prediction(
        Range.of(time_s, step_sigma(profile, level)),
        {
            "allocated": tuple(Range.of(b, m.allocated_sigma_log) for b in ranks),
            "reserved": tuple(Range.of(b * m.reserved_over_allocated, sigma) for b in ranks),
            "nvidia_smi": tuple(Range.of(float(device_memory(b, profile)), sigma) for b in ranks),
        },
    )


LEAST_SIGMA = 0.03
"""Repeated runs of one configuration on one cluster differ by a median 4.6 %: no interval is narrower."""


def fit_site(cases: Sequence[Case]) -> RunLevelSet:
    """Return run-level parameters fitted to a user's earlier runs of one cluster.

    The spread is that of each half of the runs under the parameters of the other half.

    Raises:
        InputError: none of the runs has a step time that may score.
    """
    timed = [case for case in cases if "time" in case.row.uses]
    if not timed:
        raise InputError("--site", len(cases), "a table with at least one row to score by its step time")
    prior = run_level(timed[0].row.source).parameters
    halves = timed[::2], timed[1::2]
    errors = [
        np.log([p.step_time_s.value for p in analytic(b, RunLevelSet.bare(fit_run_level(a, prior, offsets=False)))])
        - np.log([case.row.step_time_s for case in b])
        for a, b in (halves, halves[::-1])
        if a and b
    ]
    sigma = float(np.sqrt(np.mean(np.concatenate(errors) ** 2))) if errors else run_level().sigma_log
    return RunLevelSet(
        parameters=fit_run_level(timed, prior, offsets=False),
        sigma_log=max(sigma, LEAST_SIGMA),
        devices=tuple(sorted({case.cluster.device for case in timed})),
        source=f"fitted to {len(timed)} runs of the site",
    )
