"""The derived table of a validation: predictions and ratios to what was measured, one row a run, as CSV."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np

from sim.specs.csv_rows import read_cells, write_rows
from sim.specs.fields import InputError
from sim.units import many, percent
from sim.validation import metrics
from sim.validation.validate import Outcome, Validation

What = Literal["time", "memory"]


@dataclass(frozen=True)
class Accuracy:
    """One run: predictions (s, bytes; low and high bound the central 80 %) and predicted over measured.

    A ratio is None where the run does not score it. `source` is the table the run is from, `scores` what it is
    used for; the baselines' ratios are those of one constant fitted to the whole table.
    """

    source: str
    id: str
    device: str
    plan: str
    scores: str
    predicted_step_time_s: float
    low_s: float
    high_s: float
    ratio: float | None
    constant_mfu_ratio: float | None
    constant_mfu_bubble_ratio: float | None
    predicted_peak_memory_bytes: float
    low_bytes: float
    high_bytes: float
    memory_ratio: float | None

    def of(self, what: What) -> tuple[float, float, float, float | None]:
        """Return (predicted, low, high, ratio) of the step time (s) or of the peak memory (bytes)."""
        if what == "time":
            return self.predicted_step_time_s, self.low_s, self.high_s, self.ratio
        return self.predicted_peak_memory_bytes, self.low_bytes, self.high_bytes, self.memory_ratio


@dataclass(frozen=True)
class Errors:
    """Errors of the runs of one table: percent, but for the share inside the 80 % interval."""

    n: int
    mape: float
    median: float
    p90: float
    bias: float
    mape_debiased: float
    coverage80: float


def errors_by_source(rows: Sequence[Accuracy], what: What = "time") -> dict[str, Errors]:
    """Return the errors of each table that measured `what`, in the order of the rows."""
    held: dict[str, list[list[float]]] = {}
    for row in rows:
        predicted, low, high, ratio = row.of(what)
        if ratio is not None:
            held.setdefault(row.source, []).append([predicted, low, high, predicted / ratio])
    return {source: _errors(*np.array(columns).T) for source, columns in held.items()}


def of_table(rows: Sequence[Accuracy], source: str, what: What = "time") -> list[Accuracy]:
    """Return the runs of one table that measured `what`.

    Raises:
        InputError: there is no such table, or it measured something else.
    """
    found = [row for row in rows if row.source == source and row.of(what)[3] is not None]
    if not found:
        told = ", ".join(dict.fromkeys(row.source for row in rows if row.of(what)[3] is not None))
        raise InputError("source", source, f"a table that measured {what}: {told}")
    return found


def error_words(rows: Sequence[Accuracy], what: What = "time") -> str:
    """Return what the runs of one table are off as a sentence: "60 runs: 10.9 % off on average, bias -10.8 %, ...".

    Raises:
        InputError: of several tables, or none.
    """
    found = errors_by_source(rows, what)
    if len(found) != 1:
        raise InputError("rows", list(found), f"one table that measured {what}")
    (errors,) = found.values()
    return (
        f"{many(errors.n, 'run')}: {errors.mape:.1f} % off on average, bias {errors.bias:+.1f} %, "
        f"{errors.mape_debiased:.1f} % once the common factor is removed; "
        f"{percent(errors.coverage80)} inside the 80 % interval."
    )


def _errors(predicted: metrics.Floats, low: metrics.Floats, high: metrics.Floats, measured: metrics.Floats) -> Errors:
    found = {
        "mape": metrics.mape(predicted, measured),
        "median": metrics.median_error(predicted, measured),
        "p90": metrics.p90_error(predicted, measured),
        "bias": metrics.bias(predicted, measured),
        "mape_debiased": metrics.mape_debiased(predicted, measured),
        "coverage80": metrics.coverage(low, high, measured),
    }
    return Errors(len(measured), **{name: float(value) for name, value in found.items() if value is not None})


def accuracy(result: Validation, source: str) -> list[Accuracy]:
    """Return the derived rows of the validation of one table, in its order."""
    fitted = result.baselines()
    at = {outcome.row.id: n for n, outcome in enumerate(result.timed)}
    return [
        _row(outcome, source, {name: float(b.predicted_s[at[outcome.row.id]]) for name, b in fitted.items()})
        if outcome.row.id in at
        else _row(outcome, source, {})
        for outcome in result.outcomes
    ]


def _row(outcome: Outcome, source: str, baseline_s: dict[str, float]) -> Accuracy:
    row, time, peak = outcome.row, outcome.prediction.step_time_s, outcome.peak
    timed = outcome.scores("time")
    constant = {f"{name}_ratio": value / row.step_time_s for name, value in baseline_s.items() if timed}
    return Accuracy(
        source=source,
        id=row.id,
        device=row.device,
        plan=plan_text(outcome),
        scores=row.use_for,
        predicted_step_time_s=time.value,
        low_s=time.low,
        high_s=time.high,
        ratio=time.value / row.step_time_s if timed else None,
        constant_mfu_ratio=constant.get("constant_mfu_ratio"),
        constant_mfu_bubble_ratio=constant.get("constant_mfu_bubble_ratio"),
        predicted_peak_memory_bytes=peak.value,
        low_bytes=peak.low,
        high_bytes=peak.high,
        memory_ratio=peak.value / row.peak_memory_bytes if outcome.scores("memory") else None,
    )


def plan_text(outcome: Outcome) -> str:
    """Return model, devices and degrees of a run: `GPT 22B on 8: tp 8, pp 1, dp 1, micro-batch 4, ...`."""
    case, plan = outcome.case, outcome.case.plan
    chunks = f", virtual stages {plan.virtual_stages}" if plan.virtual_stages > 1 else ""
    return (
        f"{outcome.row.model} on {case.placed.gpus}: tp {plan.tp}, pp {plan.pp}, dp {case.placed.dp}{chunks}, "
        f"micro-batch {plan.micro_batch}, ZeRO-{plan.zero}, recompute {plan.recompute}, {plan.schedule}"
    )


def write_accuracy(rows: Iterable[Accuracy], path: Path) -> None:
    """Write the derived table as CSV, whole or not at all."""
    write_rows(rows, Accuracy, path, _cell)


def _cell(value: float | None) -> str:
    """Return a cell's text: six digits of a number."""
    return "" if value is None else f"{value:.6g}"


def read_accuracy(path: str | Path) -> list[Accuracy]:
    """Return the rows of a derived table.

    Raises:
        InputError: no such file, another header, or a cell that is no number where one stands.
    """
    lines = read_cells(path, Accuracy, "a table of `trainsim validate --csv`")
    kinds = get_type_hints(Accuracy)
    return [_read(place, dict(zip(kinds, cells, strict=True)), kinds) for place, cells in lines]


def _read(place: str, cells: dict[str, str], kinds: dict[str, Any]) -> Accuracy:
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        text = cells[name]
        try:
            values[name] = text if kind is str else float(text) if text or kind is float else None
        except ValueError:
            raise InputError(f"{place}:{name}", text, "a number") from None
    return Accuracy(**values)
