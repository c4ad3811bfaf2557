"""The work of a sweep: a block's span in, its compressed rows out; the same in every process."""

from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.specs import InputError
from sim.sweep.analytic import Analytic, direct
from sim.sweep.filters import SECTIONS
from sim.sweep.grid import Grid
from sim.sweep.numbering import Column, distinct
from sim.sweep.outcome import FAILED, FILTERED, Outcome, Reasons
from sim.sweep.sections import FOLLOWING, Sections, changes, valued
from sim.sweep.simulated import simulated


class Span(NamedTuple):
    """A block to do: its number, its first configuration and the one after its last."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class Block:
    """A finished block. counts: rows by `OUTCOMES`; best: the configuration's number and value, if any; seconds: of
    the worker."""

    number: int
    payload: bytes
    counts: tuple[int, ...]
    best: tuple[int, float] | None
    seconds: float


class Evaluate:
    """Evaluates blocks of a grid; what it learns of models, clusters and plans serves the blocks to come."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def __getstate__(self) -> dict[str, Any]:
        return {"grid": self.grid}

    def __call__(self, span: Span) -> Block:
        begin = perf_counter()
        found = self.outcome(span.start, span.stop)
        best = found.best(self.grid.ranked_by)
        held = best and (span.start + best[0], best[1])
        return Block(span.number, found.packed(), found.counts(), held, perf_counter() - begin)

    @cached_property
    def sections(self) -> dict[str, Sections]:
        """What makes the objects of every section."""
        return {name: Sections(name, getattr(self.grid, name)) for name in SECTIONS}

    @cached_property
    def analytic(self) -> Analytic:
        """The closed forms' way."""
        return Analytic(self.grid, self.sections)

    def outcome(self, start: int, stop: int) -> Outcome:
        """Return what becomes of the configurations from `start` to before `stop`."""
        # A block's work must not grow with the length of an axis, of which it holds a part.
        columns = {path: column.used() for path, column in self.grid.numbering.columns(start, stop).items()}
        kept = self.kept(columns, stop - start)
        rows = np.flatnonzero(kept)
        inside = {path: column.of(rows) for path, column in columns.items()}
        whole = Outcome.blank(stop - start, self.grid.engine != "analytic")
        whole.outcome[~kept] = FILTERED
        if not len(rows):
            return whole
        try:
            if self.grid.engine == "analytic":
                found = self.analytic(inside, len(rows))
            else:
                found = simulated(self.grid, self.sections, inside, len(rows))
        except Exception as error:  # whatever goes wrong is said of the rows, and the sweep goes on
            found = _all_failed(len(rows), error, whole)
        for name, values in found.numbers.items():
            whole.numbers[name][rows] = values
        whole.outcome[rows], whole.reason[rows] = found.outcome, found.reason
        return replace(whole, reasons=found.reasons)

    def kept(self, columns: dict[str, Column], rows: int) -> NDArray[np.bool_]:
        """Return which rows all filters keep."""
        found = np.ones(rows, dtype=bool)
        for one in self.grid.filters:
            found &= one.keeps(lambda path: self._values(path, columns, rows))
        return found

    def _values(self, path: str, columns: dict[str, Column], rows: int) -> NDArray[Any]:
        """Return a field's value in every row: of its axis, or of the object it stands in."""
        if path in columns:
            column = columns[path]
            return _array(column.values)[column.index]
        section, _, below = path.partition(".")
        needed = ("plan", "cluster") if section == "plan" and below in FOLLOWING else (section,)
        made = {p: c for p, c in columns.items() if p.partition(".")[0] in needed and not direct(self.grid, p)}
        first, index = distinct(made.values(), rows)
        each = []
        for row in first.tolist():
            found = [self.sections[name].at(changes(_of(made, name), row)) for name in needed]
            wrong = any(isinstance(one, InputError) for one in found)
            each.append(None if wrong else valued(found[0], below, *found[1:]))
        return _array(tuple(each))[index]


def _of(columns: dict[str, Column], section: str) -> dict[str, Column]:
    return {path: column for path, column in columns.items() if path.partition(".")[0] == section}


def _array(values: tuple[Any, ...]) -> NDArray[Any]:
    """Return values as numbers, NaN for none, or, where one is text, as they are."""
    if any(isinstance(v, str) for v in values):
        return np.array(values, dtype=object)
    return np.array([v if isinstance(v, int | float) else np.nan for v in values], dtype=float)


def _all_failed(rows: int, error: Exception, like: Outcome) -> Outcome:
    reasons = Reasons()
    found = Outcome.blank(rows, "step_time_low_s" in like.numbers)
    found.outcome[:] = FAILED
    found.reason[:] = reasons.index(f"{type(error).__name__}: {error}")
    return replace(found, reasons=tuple(reasons.known))
