"""Measured rows against a predictor: one outcome a row, and the summary that the exam asks for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.specs.fields import InputError
from sim.validation import metrics
from sim.validation.baselines import Baseline, baselines
from sim.validation.predict import Prediction, Predictor, Range
from sim.validation.table import Measured
from sim.validation.translate import Case, translate

SCORED = frozenset({"time", "time?", "memory", "oom"})
NOT_SCORED: Mapping[str, str] = {
    "": "use_for is blank: it says neither time, memory nor oom, so that nothing is scored",
    "parity": "output of another simulator, not a measurement",
    "layer_time": "time of one layer, not of a step",
}
SMALLER, LARGER = 0.9, 1.1
"""Devices made up around a measured peak: one that it overflows, one that it fits."""

CHUNK = 256
"""Rows between two reports of progress."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Reason:
    """A row without a score, and why."""

    id: str
    reason: str


@dataclass(frozen=True)
class Outcome:
    """A predicted row; times in seconds, sizes in bytes."""

    case: Case
    prediction: Prediction

    @property
    def row(self) -> Measured:
        """What was measured."""
        return self.case.row

    def scores(self, use: str) -> bool:
        """Return whether the row counts for `use`."""
        return use in self.row.uses

    @property
    def ordered(self) -> bool:
        """Whether the row's time counts in the order of its group."""
        return self.scores("time") or self.scores("time?")

    @property
    def peak(self) -> Range:
        """The predicted peak of the measured kind and rank (allocated on the fullest rank where none is stated)."""
        return self.prediction.peak(self.row.memory_kind or "allocated", self.row.memory_rank)

    @property
    def predicted_oom(self) -> bool:
        """Whether reserve and context included the fullest rank overflows its device."""
        return self.prediction.peak("nvidia_smi").value > self.case.cluster.memory_bytes

    def oom_labels(self, made_up: bool = True) -> list[tuple[bool, bool]]:
        """Return (predicted, true) verdicts: the run's own, and, `made_up`, a device on either side of a measured peak.

        A recipe that is not fully stated ("time?") has no verdict of its own: what it left out may be what made it fit.
        """
        verdict = None if self.scores("time?") else self.row.oom
        own = [] if verdict is None else [(self.predicted_oom, verdict)]
        if not made_up or not self.scores("memory"):
            return own
        true = self.row.peak_memory_bytes
        return [*own, (self.peak.value > SMALLER * true, True), (self.peak.value > LARGER * true, False)]


@dataclass(frozen=True)
class Validation:
    """Everything that one table of runs says about a predictor."""

    outcomes: tuple[Outcome, ...]
    skipped: tuple[Reason, ...]
    not_scored: tuple[Reason, ...]

    def __add__(self, other: "Validation") -> "Validation":
        return Validation(
            self.outcomes + other.outcomes, self.skipped + other.skipped, self.not_scored + other.not_scored
        )

    def baselines(self) -> dict[str, Baseline]:
        """Return the constants' predictions of the rows whose time counts in the order, in the table's order."""
        kept = self.timed
        return baselines(
            [o.case for o in kept],
            np.array([o.row.step_time_s for o in kept]),
            np.array([o.scores("time") for o in kept], dtype=bool),
            [o.row.group for o in kept],
        )

    @property
    def timed(self) -> list[Outcome]:
        """The rows whose time counts, if only in the order."""
        return [o for o in self.outcomes if o.ordered]


def validate(
    rows: Sequence[Measured],
    predict: Predictor,
    profile: str | None = None,
    progress: Progress | None = None,
    chunk: int | None = CHUNK,
) -> Validation:
    """Return the outcome of every row that may score, and why the others may not.

    `profile` replaces the profile of each row's device; `progress` is told (rows done, rows in all); `chunk` is the
    most rows that the predictor is asked for at once (None: all).
    """
    cases, skipped = expressed(rows, profile)
    not_scored = [
        Reason(row.id, "; ".join(NOT_SCORED[use] for use in sorted(row.uses or {""})))
        for row in rows
        if not row.uses & SCORED
    ]
    return Validation(predicted(cases, predict, progress, chunk), tuple(skipped), tuple(not_scored))


def predicted(
    cases: Sequence[Case], predict: Predictor, progress: Progress | None = None, chunk: int | None = CHUNK
) -> tuple[Outcome, ...]:
    """Return the outcome of every case; `progress` and `chunk` as of `validate`."""
    outcomes: list[Outcome] = []
    size = chunk or max(1, len(cases))
    for begin in range(0, len(cases), size):
        part = cases[begin : begin + size]
        outcomes += [Outcome(case, answer) for case, answer in zip(part, predict(part), strict=True)]
        if progress:
            progress(len(outcomes), len(cases))
    return tuple(outcomes)


def expressed(rows: Sequence[Measured], profile: str | None = None) -> tuple[list[Case], list[Reason]]:
    """Return the cases of the rows that may score (what a predictor may be fitted to), and why others are no case."""
    cases, skipped = [], []
    for row in rows:
        if row.uses & SCORED:
            try:
                cases.append(translate(row, profile))
            except InputError as error:
                skipped.append(Reason(row.id, str(error)))
    return cases, skipped


def translated(rows: Sequence[Measured], profile: str | None = None) -> list[Case]:
    """Return the cases of `expressed` alone."""
    return expressed(rows, profile)[0]


def summary(result: Validation) -> dict[str, Any]:
    """Return the summary of `trainsim validate --json`: time, memory and oom.

    `oom` counts verdicts of runs and of made-up devices 10 % smaller and larger than measured peaks, as public runs
    seldom ran out of memory; `oom_of_runs` those of runs alone.
    """
    return {
        "time": _time(result),
        "memory": _memory(result),
        "oom": _oom(result),
        "oom_of_runs": _oom(result, made_up=False),
    }


def _time(result: Validation) -> dict[str, Any]:
    order = result.timed
    scored = [o for o in order if o.scores("time")]
    predicted, low, high, measured = _columns([o.prediction.step_time_s for o in scored], _times(scored))
    all_predicted, *_, all_measured = _columns([o.prediction.step_time_s for o in order], _times(order))
    groups = [o.row.group for o in order]
    return {
        "n": len(scored),
        "mape": metrics.mape(predicted, measured),
        "median": metrics.median_error(predicted, measured),
        "p90": metrics.p90_error(predicted, measured),
        "bias": metrics.bias(predicted, measured),
        "mape_debiased": metrics.mape_debiased(predicted, measured),
        "pairwise_order": metrics.pairwise_order(all_predicted, all_measured, groups),
        "mean_regret": metrics.mean_regret(all_predicted, all_measured, groups),
        "coverage80": metrics.coverage(low, high, measured),
        "median_width": metrics.median_width(low, high, predicted),
        "baselines": {
            name: {
                "mfu": b.mfu,
                "mape": b.mape,
                "pairwise_order": b.pairwise_order,
                "mean_regret": b.mean_regret,
            }
            for name, b in result.baselines().items()
        },
    }


def _memory(result: Validation) -> dict[str, Any]:
    scored = [o for o in result.outcomes if o.scores("memory")]
    columns = _columns([o.peak for o in scored], [o.row.peak_memory_bytes for o in scored])
    predicted, low, high, measured = columns
    return {
        "n": len(scored),
        "mape": metrics.mape(predicted, measured),
        "median": metrics.median_error(predicted, measured),
        "max": metrics.max_error(predicted, measured),
        "coverage80": metrics.coverage(low, high, measured),
    }


def _oom(result: Validation, made_up: bool = True) -> dict[str, int]:
    labels = [label for outcome in result.outcomes for label in outcome.oom_labels(made_up)]
    verdicts = np.array(labels, dtype=bool).reshape(-1, 2)
    return metrics.confusion(verdicts[:, 0], verdicts[:, 1])


def _times(outcomes: Sequence[Outcome]) -> list[float]:
    return [o.row.step_time_s for o in outcomes]


def _columns(
    ranges: Sequence[Range], measured: Sequence[float]
) -> tuple[metrics.Floats, metrics.Floats, metrics.Floats, metrics.Floats]:
    """Return (predicted, low, high, measured) as arrays."""
    table = np.array([[r.value, r.low, r.high] for r in ranges], dtype=float).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2], np.array(measured, dtype=float)


def data(result: Validation) -> dict[str, Any]:
    """Return the JSON object of `trainsim validate`."""
    return {
        "rows": [_row(outcome) for outcome in result.outcomes],
        "summary": summary(result),
        "skipped": [vars(reason) for reason in result.skipped],
        "not_scored": [vars(reason) for reason in result.not_scored],
    }


def _row(outcome: Outcome) -> dict[str, Any]:
    row, time = outcome.row, outcome.prediction.step_time_s
    return {
        "id": row.id,
        "predicted_step_time_s": time.value,
        "interval80_s": [time.low, time.high],
        "measured_step_time_s": row.step_time_s if outcome.ordered else None,
        "predicted_peak_memory_bytes": outcome.peak.value,
        "memory_kind": outcome.row.memory_kind or "allocated",
        "memory_rank": outcome.row.memory_rank or "max",
        "measured_peak_memory_bytes": row.peak_memory_bytes if outcome.scores("memory") else None,
        "predicted_oom": outcome.predicted_oom,
        "measured_oom": row.oom,
        "assumptions": list(outcome.case.assumptions),
    }
