"""The inter-stage problem: a chain of stages divides layers and devices, each at one point of its frontier.

Source of the objective: Mist, arXiv 2503.19050 (imbalance-aware inter-stage tuning). Added here: `fill` for schedules
whose pipeline fills with less than a whole microbatch of every stage; what a stage adds to the pipeline's fill and
drain (x) apart from its pace (t); and optimizers that no drain hides (o), since all ranks wait for each other first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.engine.compiled import compiled
from sim.specs import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def frontier(t: ArrayLike, d: ArrayLike, x: ArrayLike | None = None, o: ArrayLike | None = None) -> Ints:
    """Return the indices of the exact non-dominated set of points (t[k], x[k], d[k], o[k]) as a `Cell` has them.

    t ascends, and where x and o are left out d descends. Of equal points the first stands for all.
    """
    ts, ds = np.asarray(t, dtype=float), np.asarray(d, dtype=float)
    if x is None and o is None:
        order = np.lexsort((ds, ts))
        before = np.minimum.accumulate(np.append(np.inf, ds[order]))[:-1]
        return order[ds[order] < before]
    xs: Floats = ts if x is None else np.asarray(x, dtype=float)
    os: Floats = np.zeros(len(ts)) if o is None else np.asarray(o, dtype=float)
    order = np.lexsort((os, ds, xs, ts))
    return order[_undominated(xs[order], ds[order], os[order])]


@compiled()
def _undominated(x: Floats, d: Floats, o: Floats) -> Ints:
    """Return which points no earlier one dominates in these three."""
    kept = np.empty(len(x), dtype=np.int64)
    n = 0
    for i in range(len(x)):
        free = True
        for k in range(n):
            j = kept[n - 1 - k]
            if x[j] <= x[i] and d[j] <= d[i] and o[j] <= o[i]:
                free = False
                break
        if free:
            kept[n] = i
            n += 1
    return kept[:n]


@dataclass(frozen=True, eq=False)
class Cell:
    """One way to make a stage: so many layers on so many devices, and its frontier (see `frontier`).

    uses: devices taken, per device type (one entry on a uniform cluster). All in seconds [k]: t from one microbatch to
    the next, forward and backward, ascending; x what the stage adds to the way of one microbatch through the pipeline
    and back (left out: t); d before the first forward and after the last backward, as far as only its rank waits for
    it; o after that, when all ranks are that far (left out: 0).

    Raises:
        InputError: a negative count or time, or points of which one dominates another (with x and o that is not looked
            for: they only cost time).
    """

    layers: int
    uses: tuple[int, ...]
    t: Floats
    d: Floats
    x: Floats = field(default_factory=lambda: np.zeros(0))
    o: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if self.layers < 0 or min(self.uses, default=0) < 0:
            raise InputError("cell.uses", (self.layers, *self.uses), "layers and devices of 0 or more")
        t, d, simple = self.t, self.d, not self.x.size and not self.o.size
        object.__setattr__(self, "x", self.x if self.x.size else t)
        object.__setattr__(self, "o", self.o if self.o.size else np.zeros_like(t))
        for name in ("t", "d", "x", "o"):
            column = getattr(self, name)
            if not (column.ndim == 1 and column.shape == t.shape and t.size and np.isfinite(column).all()):
                raise InputError(f"cell.{name}", column.shape, "as many finite seconds as cell.t, one or more")
        if min(t[0], self.x.min(), self.o.min()) < 0 or (t[1:] < t[:-1]).any():
            raise InputError("cell.t", t.tolist(), "0 or more, ascending; cell.x and cell.o 0 or more")
        if simple and ((t[1:] == t[:-1]).any() or (d[1:] >= d[:-1]).any()):
            raise InputError("cell.t", t.tolist(), "0 or more, ascending, with d descending: non-dominated points")


Offer = Callable[[int, int, tuple[int, ...]], Sequence[Cell]]
"""(stage, layers left for it and the stages before it, devices used by the stages after it per type) -> its cells.

An empty sequence where the caller knows that what is left cannot be finished: that saves the search from going there.
"""


@dataclass(frozen=True, eq=False)
class Chain:
    """The problem. Stages are built from the last to the first; all layers and all devices are used.

    devices: per type. microbatches: G of the objective. fill: share of x that the pipeline's fill takes (1 with 1F1B,
    1 / virtual stages interleaved, 0 without flush). cells: what a stage can be, by its place; the caller caches it, a
    sequence that is returned again for another place makes the solvers faster, and no sequence holds a cell twice.
    by_layers: whether it depends on the layers left. most_layers: no stage that is worth having holds more; that saves
    the search from going where more than these would be left.

    Raises:
        InputError: no stage, a negative number, fewer microbatches than one.
    """

    stages: int
    layers: int
    devices: tuple[int, ...]
    microbatches: int
    cells: Offer
    fill: float = 1.0
    by_layers: bool = True
    most_layers: int = 2**31

    def __post_init__(self) -> None:
        for name, value, least in (
            ("stages", self.stages, 1), ("layers", self.layers, 0), ("microbatches", self.microbatches, 1),
            ("most_layers", self.most_layers, 0),
            ("devices", min(self.devices, default=0), 0),
        ):  # fmt: skip
            if value < least:
                raise InputError(f"chain.{name}", value, f"{least} or more")
        if not 0 <= self.fill <= 1:
            raise InputError("chain.fill", self.fill, "a share, 0 to 1")


@dataclass(frozen=True)
class Choice:
    """Per stage, first to last: its cell and the index of its frontier point."""

    cells: tuple[Cell, ...]
    points: tuple[int, ...]

    def of(self, name: str) -> Floats:
        """Return the seconds t, x, d or o [stage]."""
        return np.array([getattr(cell, name)[k] for cell, k in zip(self.cells, self.points, strict=True)])

    @property
    def t(self) -> Floats:
        """Seconds from one microbatch to the next [stage]."""
        return self.of("t")

    @property
    def d(self) -> Floats:
        """Seconds before the first forward and after the last backward [stage]."""
        return self.of("d")


def step_seconds(*, t: Floats, x: Floats, d: Floats, o: Floats, microbatches: int, fill: float = 1.0) -> Floats:
    """Return the seconds of a step, of t, x, d and o [stage, ...]:

        (G - fill) max t + fill sum x + max(0, max_i(d_i - fill sum_{j<i} x_j)) + max o.

    With x = t, o = 0 and fill = 1 it is Mist's objective (arXiv 2503.19050).
    """
    filled = fill * x
    late = np.maximum(0.0, (d - (np.cumsum(filled, axis=0) - filled)).max(axis=0))
    steady = (microbatches - fill) * t.max(axis=0)
    return np.asarray(steady + filled.sum(axis=0) + late + o.max(axis=0))


def value(chain: Chain, choice: Choice) -> float:
    """Return the seconds of a step; the choice's legality is not checked, see `legal`."""
    return float(step_seconds(**{n: choice.of(n) for n in "txdo"}, microbatches=chain.microbatches, fill=chain.fill))


def legal(chain: Chain, choice: Choice) -> bool:
    """Return whether every cell is offered where it stands and all layers and devices are used."""
    left, used = chain.layers, (0,) * len(chain.devices)
    if not len(choice.cells) == len(choice.points) == chain.stages:
        return False
    for stage in reversed(range(chain.stages)):
        cell = choice.cells[stage]
        if not any(cell is other for other in chain.cells(stage, left, used)):
            return False
        left, used = left - cell.layers, tuple(a + b for a, b in zip(used, cell.uses, strict=True))
        if not 0 <= choice.points[stage] < len(cell.t) or left < 0 or any(map(int.__gt__, used, chain.devices)):
            return False
    return (left, used) == (0, chain.devices)


def never() -> bool:
    """Return that nobody interrupts."""
    return False


@dataclass(frozen=True)
class Effort:
    """How long a solver may search, so that the same effort gives the same answer on any machine.

    steps: work in the solver's own unit, which its docstring names (None: its own default). seed: of what is drawn.
    at_most: a value (s) that is already at hand: only what is below it is wanted. stop: asked now and then, True ends
    the search with the best so far.
    """

    steps: int | None = None
    seed: int = 0
    at_most: float = inf
    stop: Callable[[], bool] = never


NOTHING_BELOW = "there is a choice, but none below the value at hand"

USUAL = Effort()
"""Every solver's own number of steps, seed 0, nothing at hand."""


@dataclass(frozen=True)
class Solution:
    """What a solver found: choices best first, their values (s), and what is proven.

    bound: no choice is below it. certified: the choices are proven to be the best, or there is proven to be none (below
    `at_most`). steps: work done. note: why there is no choice or no proof.
    """

    choices: tuple[Choice, ...]
    values: tuple[float, ...]
    bound: float
    certified: bool
    steps: int
    note: str = ""

    @property
    def value(self) -> float:
        """Value of the best choice (s), infinite where there is none."""
        return self.values[0] if self.values else inf

    @property
    def gap(self) -> float:
        """Share of the best value that a better choice could save at most: 0 where certified."""
        if self.certified:
            return 0.0
        return 1 - self.bound / self.value if 0 < self.value < inf else 1.0


def together(parts: Sequence[Solution], n: int, at_most: float) -> Solution:
    """Return the n best of what searches of different choices, all below `at_most`, found; proven is what all prove."""
    every = (one for part in parts for one in zip(part.values, part.choices, strict=True))
    found = sorted(every, key=lambda one: one[0])[:n]
    return Solution(
        tuple(choice for _, choice in found),
        tuple(value for value, _ in found),
        min((part.bound for part in parts), default=at_most),
        all(part.certified for part in parts),
        sum(part.steps for part in parts),
        next((part.note for part in parts if part.note and not part.certified), ""),
    )


class Solver(Protocol):
    """Searches a chain for its least value; a chain that no choice solves gives a solution without choices."""

    def __call__(self, chain: Chain, effort: Effort = ...) -> Solution:
        """Return the best choice found and what is proven of it."""
        ...
