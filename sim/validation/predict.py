"""What a predictor answers for a case: the analytic one under run-level parameters, shipped or fitted to a site."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from sim.costs.profile import Profile
from sim.costs.run_level import OF_THE_SITE, RunLevel, RunLevelSet, level_of, on_own_links, run_level
from sim.engine.batch import Asked, Batch
from sim.engine.certainty import experts_sigma, step_sigma, waiting_sigma
from sim.engine.step import device_memory, memory_sigma, simulate
from sim.specs.fields import InputError
from sim.units import digits3
from sim.validation.fit import fit_run_level, halved, spread
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
    for level, part in groupby(cases, key=lambda c: on_own_links(run_level(c.row.source), [c.cluster.profile])):
        found += analytic(list(part), level)
    return found


def as_simulated(cases: Sequence[Case]) -> list[Prediction]:
    """Return predictions by the run-level parameters that a simulation of each case's cluster takes.

    Raises:
        InputError: the engine cannot run a case, or a site's parameters cannot be read.
    """
    found: list[Prediction] = []
    for level, part in groupby(cases, key=lambda case: level_of(case.cluster)):
        found += analytic(list(part), level)
    return found


def analytic(cases: Sequence[Case], level: RunLevelSet) -> list[Prediction]:
    """Return predictions under the run-level parameters `level`: closed forms, the engine where there is none.

    Raises:
        InputError: the engine cannot run a case.
    """
    asked = [Asked(case.model, case.cluster, case.placed) for case in cases]
    batch = Batch(asked)
    table = batch(level)
    columns = zip(
        asked, table.step_time_s, batch.waiting(level), table.peak_memory_bytes, table.last_peak_bytes, strict=True
    )
    return [_prediction(a, level, *map(float, numbers)) for a, *numbers in columns]


def _prediction(
    asked: Asked, level: RunLevelSet, time_s: float, waiting: float, fullest: float, last: float
) -> Prediction:
    profile, m, plan = asked.profile, asked.profile.memory, asked.placed.plan
    sigma, ranks = memory_sigma(profile), (fullest, last)
    # The errors of timed kernels are of the step that they make.
    hosts, experts = waiting_sigma(waiting, asked.model, plan), experts_sigma(asked.model, level)
    of_time = (
        simulate(asked.model, asked.cluster, plan, level=level).sigma_log
        if profile.session
        else step_sigma(profile, level, software_year=plan.software_year, hosts=hosts, experts=experts)
    )
    return Prediction(
        Range.of(time_s, of_time),
        {
            "allocated": tuple(Range.of(b, m.allocated_sigma_log) for b in ranks),
            "reserved": tuple(Range.of(b * m.reserved_over_allocated, sigma) for b in ranks),
            "nvidia_smi": tuple(Range.of(float(device_memory(b, profile)), sigma) for b in ranks),
        },
    )


UNLIKELY = 20.0
"""Times that the step times of a table are off, in the mean or the middle, where their unit is."""

LEAST_SIGMA = 0.03
"""Repeated runs of one configuration on one cluster differ by a median 4.6 %: no interval is narrower."""


def fit_site(cases: Sequence[Case]) -> RunLevelSet:
    """Return run-level parameters fitted to a user's earlier runs of one cluster.

    The spread is that of each half of the runs (by group) under the parameters of the other half; one group alone says
    nothing of another, and takes what left-out sources show, or how far its own runs still lie where that is further.

    Raises:
        InputError: none of the runs has a step time that may score, or most are so far off that their unit is.
    """
    timed = [case for case in cases if "time" in case.row.uses]
    if not timed:
        raise InputError("--site", len(cases), "a table with at least one row to score by its step time")
    off = float(np.median(log_errors(timed, _prior(timed) or run_level().parameters)))
    if abs(off) > log(UNLIKELY):
        told = f"{digits3(exp(-off))} times the predicted times"
        raise InputError(
            "step_time_s", told, f"seconds: at most {UNLIKELY:g} times these, and a {UNLIKELY:g}th at least"
        )
    parameters, errors = fit_run_level(timed, _prior(timed), offsets=False), by_halves(timed)
    least = LEAST_SIGMA if errors else run_level().sigma_log
    return RunLevelSet(
        parameters=parameters,
        sigma_log=max(spread([np.concatenate(errors or [log_errors(timed, parameters)])]), least),
        devices=tuple(sorted({case.cluster.hardware.name for case in timed})),
        source=f"{OF_THE_SITE} ({len(timed)})",
        experts=any(case.model.has_experts for case in timed),
    )


def _prior(timed: Sequence[Case]) -> RunLevel | None:
    """A shipped set leaves one source out; of several the others would be known to it."""
    sources = {case.row.source for case in timed}
    if len(sources) > 1:
        return None
    return on_own_links(run_level(sources.pop()), {case.cluster.profile for case in timed}).parameters


def by_halves(timed: Sequence[Case]) -> list[NDArray[np.float64]]:
    """Return the log errors of each half of the runs (by group) by the parameters of the other, none of one group."""
    first = halved([case.row.group or case.row.id for case in timed])
    halves = [[case for case, mine in zip(timed, first, strict=True) if mine == half] for half in (True, False)]
    prior = _prior(timed)
    return [log_errors(b, fit_run_level(a, prior, offsets=False)) for a, b in (halves, halves[::-1]) if a and b]


def log_errors(cases: Sequence[Case], parameters: RunLevel) -> NDArray[np.float64]:
    """Return the logs of predicted over measured step times."""
    predicted = Batch([Asked(c.model, c.cluster, c.placed) for c in cases])(RunLevelSet.bare(parameters)).step_time_s
    return np.log(predicted) - np.log([case.row.step_time_s for case in cases])
