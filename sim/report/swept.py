"""What a sweep has found, in one pass over its store, a block in memory at a time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.sweep.numbering import Axis, Column
from sim.sweep.outcome import BETTER, FAILED, FITS, IMPOSSIBLE, INTERVAL, NUMBERS, OK, Outcome
from sim.sweep.store import MOST_READ, Counts, Store
from sim.tuner.front import pareto

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOP = 20
MOST_POINTS = 5_000
MOST_VALUES = 40
"""Values of an axis that stand for themselves; of more, ranges do."""

LARGE = 1e4
PREFIXES = " kMGTP"


@dataclass(frozen=True, eq=False)
class Point:
    """One configuration: its number, the axes' values and the predicted numbers by name."""

    number: int
    values: Mapping[str, Any]
    numbers: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Along:
    """The best value of the objective along one axis, NaN where nothing fits. labels: of its values or ranges."""

    path: str
    labels: tuple[str, ...]
    best: Floats


@dataclass(frozen=True, eq=False)
class Swept:
    """A sweep as a whole.

    points: at most `MOST_POINTS` predictions as columns (number, the axes' values by path, and predicted numbers,
    step_time_s, peak_memory_bytes and fits among them), spread evenly, and front: those that fit and that none beats
    in both time and memory; top: the best by the objective; reasons: configurations by (outcome, reason).
    """

    counts: Counts
    objective: str
    top: tuple[Point, ...]
    points: Mapping[str, NDArray[Any]]
    front: Mapping[str, NDArray[Any]]
    reasons: Mapping[tuple[str, str], int]
    along: tuple[Along, ...]
    misfits: int


def paths_of(columns: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the paths of the axes among the columns of points."""
    return [name for name in columns if name not in ("number", *NUMBERS, *INTERVAL)]


@dataclass(eq=False)
class _Axis:
    """An axis' values, or ranges of them, with the best seen of each, less is better."""

    axis: Axis
    least: Floats = field(init=False)
    labels: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        values = self.axis.values
        self.single = bool(values) and len(values) <= MOST_VALUES
        if self.single:
            self.labels = tuple(axis_label(v) for v in values)
        elif values:
            ranges = np.array_split(np.unique(np.array(values, dtype=float)), MOST_VALUES)
            self._cut(
                [float(part[0]) for part in ranges if len(part)], [float(part[-1]) for part in ranges if len(part)]
            )
        else:
            low, high = self.axis.low, self.axis.high
            space = np.geomspace if self.axis.log else np.linspace
            edges = space(low, high, MOST_VALUES + 1).tolist()
            self._cut(edges[:-1], edges[1:])
        self.least = np.full(len(self.labels), np.inf)

    def _cut(self, lows: list[float], highs: list[float]) -> None:
        self.lows = np.array(lows)
        self.labels = tuple(
            "–".join(dict.fromkeys(axis_label(v, 3) for v in both)) for both in zip(lows, highs, strict=True)
        )

    def add(self, column: Column, worth: Floats) -> None:
        """Take the values of some rows with what they are worth."""
        index = column.index
        if not self.single:
            index = np.maximum(np.searchsorted(self.lows, column.used().numbers(), side="right") - 1, 0)
        np.minimum.at(self.least, index, worth)


def axis_label(value: Any, digits: int = 6) -> str:
    """Return a value of an axis as text, a large fraction with an SI prefix: `50 G`."""
    if not isinstance(value, float):
        return str(value)
    power = min(5, int(log10(abs(value)) // 3)) if abs(value) >= LARGE else 0
    return f"{value / 1000**power:.{digits}g}{f' {PREFIXES[power]}' if power else ''}"


def swept(store: Store, points: int = MOST_POINTS, top: int = TOP) -> Swept:
    """Return what a store holds; memory does not grow with its size."""
    counts, (name, sign) = store.counts, BETTER[store.head.objective]
    axes = [_Axis(axis) for axis in store.head.numbering.axes if axis.path and _drawable(axis)]
    every, seen, misfits = max(1, -(-counts.ok // max(1, points))), 0, 0
    reasons: Counter[tuple[str, str]] = Counter()
    drawn: list[dict[str, NDArray[Any]]] = []
    front, best = _picked(Outcome.blank(0), 0, np.arange(0)), (np.empty(0), np.empty(0, dtype=np.int64))
    for start, found in store.blocks():
        reasons += _reasons(found)
        rows = np.flatnonzero(found.outcome == OK)
        drawn.append(_picked(found, start, rows[(np.arange(len(rows)) + seen) % every == 0]))
        seen += len(rows)
        good = rows[found.numbers["fits"][rows] == FITS.index("yes")]
        misfits += len(rows) - len(good)
        worth = sign * found.numbers[name][good].astype(float)
        known = np.isfinite(worth)
        good, worth = good[known], worth[known]
        if not len(good):
            continue
        front = _joined([front, _picked(found, start, good)])
        front = _of(front, pareto(front["peak_memory_bytes"], front["step_time_s"]))
        best = _lowest(np.concatenate([best[0], worth]), np.concatenate([best[1], good + start]), top)
        columns = store.columns(start, start + len(found))
        for each in axes:
            each.add(columns[each.axis.path].of(good), worth)
    return Swept(
        counts,
        store.head.objective,
        tuple(point(store, number) for number in best[1].tolist()),
        store.head.named(_joined(drawn) if drawn else front),
        store.head.named(front),
        reasons,
        tuple(Along(a.axis.path, a.labels, np.where(np.isinf(a.least), np.nan, sign * a.least)) for a in axes),
        misfits,
    )


def _drawable(axis: Axis) -> bool:
    """Return whether an axis has few values, or numbers alone."""
    return len(axis.values) <= MOST_VALUES or all(isinstance(v, int | float) for v in axis.values)


def _reasons(found: Outcome) -> Counter[tuple[str, str]]:
    held: Counter[tuple[str, str]] = Counter()
    for code, word in ((IMPOSSIBLE, "impossible"), (FAILED, "failed")):
        index, n = np.unique(found.reason[found.outcome == code], return_counts=True)
        for k, times in zip(index.tolist(), n.tolist(), strict=True):
            held[word, found.reasons[k] if k >= 0 else ""] += times
    return held


def _picked(found: Outcome, start: int, rows: Ints) -> dict[str, NDArray[Any]]:
    held = {name: found.numbers[name][rows] for name in ("step_time_s", "peak_memory_bytes", "fits")}
    return {"number": rows + start, **held}


def _joined(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _of(columns: dict[str, NDArray[Any]], rows: Ints) -> dict[str, NDArray[Any]]:
    return {name: column[rows] for name, column in columns.items()}


def _lowest(worth: Floats, numbers: Ints, most: int) -> tuple[Floats, Ints]:
    order = np.lexsort((numbers, worth))[:most]
    return worth[order], numbers[order]


def point(store: Store, number: int) -> Point:
    """Return one configuration of a store."""
    found, (start, _) = store.outcome(number // store.head.block_rows), store.head.span(number // store.head.block_rows)
    numbers = {name: float(column[number - start]) for name, column in found.numbers.items()}
    return Point(number, store.configuration(number), numbers)


def glimpse(
    store: Store, points: int = MOST_POINTS, among: Mapping[str, Sequence[Any]] | None = None, most: int = MOST_READ
) -> Swept:
    """Return what some blocks of a store show, `most` of them, quickly also while a sweep writes it.

    Points have the columns of `Store.sample`, `reasons` are those of the blocks looked at, `along` is left out.
    among: the values of axes that are looked at (none: all).
    """
    counts, blocks = store.counts, list(store.some_blocks(most))
    held = store.sample(points, blocks) or dict.fromkeys(("number", *NUMBERS), np.empty(0))
    for path, values in (among or {}).items():
        if path in held:
            # By equality: NumPy would take the numbers of a value that is a list apart.
            held = _of(held, np.flatnonzero([value in values for value in held[path].tolist()]))
    good = np.flatnonzero(held["fits"] == FITS.index("yes"))
    edge = good[pareto(held["peak_memory_bytes"][good], held["step_time_s"][good])]
    top = (point(store, counts.best[0]),) if counts.best else ()
    reasons = sum((_reasons(found) for _, found in blocks), Counter[tuple[str, str]]())
    misfits = len(held["fits"]) - len(good)
    return Swept(counts, store.head.objective, top, held, _of(held, edge), reasons, (), misfits)
