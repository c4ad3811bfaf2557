"""The least critical paths of a chain under bounds on the slowest stage (t) and on the last optimizer (o).

Fill and surplus of stages 0..i are one number, their critical path

    P_i = fill sum_{j<=i} x_j + max(0, max_{j<=i}(d_j - fill sum_{k<j} x_k)) = fill x_i + max(P_{i-1}, d_i), P_{-1} = 0,

which grows with P_{i-1}. So the least P of the stages before is enough to go on from a place, and the n least give the
n least: no pairs of sum and surplus, as a search from the last stage needs them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from sim.tuner.solvers.chain import Chain, Choice, Floats, Ints
from sim.tuner.solvers.graph import Graph

SLACK = 1e-12
"""What rounding may do to a value, relative: nothing is left out that is not worse by more."""


@dataclass(frozen=True, eq=False)
class Points:
    """The points of all cells, by cell and then by the seconds that fill.

    t, x (that fills), d, o [point] in seconds; cell [point]; k [point] is its index in the cell. quickest, shortest,
    soonest [cell]: least t, x and o. by_d, by_sum [point]: orders of d and of x + d, as whole numbers that are less in
    every later cell.
    """

    t: Floats
    x: Floats
    d: Floats
    o: Floats
    cell: Ints
    k: Ints
    quickest: Floats
    shortest: Floats
    soonest: Floats
    by_d: Ints
    by_sum: Ints

    @classmethod
    def of(cls, chain: Chain, graph: Graph) -> "Points":
        """Lay the points of the cells of a graph side by side."""
        size = np.array([len(cell.t) for cell in graph.cells])
        cell = np.repeat(np.arange(len(size)), size)
        k = np.arange(len(cell)) - np.repeat(np.cumsum(size) - size, size)
        t, x, d, o = (np.concatenate([getattr(one, name) for one in graph.cells]) for name in "txdo")
        x = chain.fill * x
        least = [np.minimum.reduceat(column, np.cumsum(size) - size) for column in (t, x, o)]
        order = np.lexsort((d, x, cell))
        t, x, d, o = (column[order] for column in (t, x, d, o))

        def ranks(column: Floats) -> Ints:
            found, rank = np.unique(column, return_inverse=True)
            return rank.ravel() - cell * len(found)

        return cls(t, x, d, o, cell, k[order], least[0], least[1], least[2], ranks(d), ranks(x + d))

    def within(self, tau: float, omega: float) -> "Within":
        """Return the points with t <= tau and o <= omega that none of them dominates in x and d."""
        some = np.flatnonzero((self.t <= tau) & (self.o <= omega))
        some = some[_new_least(self.by_d[some])]
        size = np.bincount(self.cell[some], minlength=len(self.quickest))
        x, d = self.x[some], self.d[some]
        at = np.maximum.accumulate(np.where(_new_least(self.by_sum[some]), np.arange(len(some)), 0))
        return Within(x, d, np.cumsum(size) - size, size, (x + d)[at], at, self.k[some])


def _new_least(values: Ints) -> NDArray[np.bool_]:
    """Return which of the values is less than all before it."""
    before = np.minimum.accumulate(values)
    return np.append(True, values[1:] < before[:-1])[: len(values)]


@dataclass(frozen=True, eq=False)
class Within:
    """The points of all cells that count under two bounds: the `size` points of a cell begin at `begin`.

    x [point] ascending and d [point] descending in a cell; k: the index of the point in it. least, at [point]: the
    least x + d of the cell's points up to here, and where.
    """

    x: Floats
    d: Floats
    begin: Ints
    size: Ints
    least: Floats
    at: Ints
    k: Ints

    def step(self, path: Floats, cell: Ints) -> tuple[Floats, Ints]:
        """Return min over the points of x + max(path, d), and the point; one or more must count.

        path, cell [any]: P of the stages before, and the cell. Points with d <= path add x to it, of which the first
        has the least; those before it take x + d, whose minimum is known.
        """
        begin, size = self.begin[cell], self.size[cell]
        low, high = np.zeros_like(cell), size.copy()
        for _ in range(int(size.max(initial=0)).bit_length()):
            middle = (low + high) >> 1
            above = (self.d[np.minimum(begin + middle, len(self.d) - 1)] > path) & (middle < high)
            low, high = np.where(above, middle + 1, low), np.where(above, high, middle)
        first, last = begin + np.minimum(low, size - 1), begin + np.maximum(low - 1, 0)
        covered = np.where(low < size, path + self.x[first], inf)
        ending = np.where(low > 0, self.least[last], inf)
        return np.minimum(covered, ending), np.where(covered <= ending, first, self.at[last])


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a level (see `Level`) of so many nodes, with bounds [edge].

    after: the least that the edge's cell and all later stages add to P. value: no choice with this edge is below it.
    """

    nodes: int
    owner: Ints
    cell: Ints
    child: Ints
    after: Floats
    value: Floats

    def below(self, limit: float) -> "Edges":
        """Return the edges that a choice below `limit` can have."""
        keep = np.flatnonzero(self.value <= limit * (1 + SLACK))
        ends = self.owner[keep], self.cell[keep], self.child[keep]
        return Edges(self.nodes, *ends, self.after[keep], self.value[keep])


class Sweep:
    """From the first stage to the last under bounds of t and o: the n least P per node and where they come from.

    most: what P of the whole chain may be; what cannot stay within it is dropped. paths [level][node, rank]: ascending,
    infinite where there are fewer. back [level][node, rank]: edge x n + rank at its child.
    """

    def __init__(
        self, graph: Graph, points: Points, edges: Sequence[Edges], n: int, bounds: tuple[float, float], most: float
    ) -> None:
        self.graph, self.edges, self.n, self.labels = graph, edges, n, 0
        self.shortest, self.within = points.shortest, points.within(*bounds)
        self.paths: list[Floats] = []
        self.back: list[Ints] = []
        before = np.full((1, n), inf)
        before[0, 0] = 0.0
        for level in edges:
            before = self._level(level, before, most)

    def _level(self, level: Edges, before: Floats, most: float) -> Floats:
        """Append the paths and origins of a level and return the paths."""
        n, after = self.n, level.after
        near = np.flatnonzero((before[level.child, 0] + after <= most) & (self.within.size[level.cell] > 0))
        edge, rank = np.nonzero(before[level.child[near]] + after[near, None] <= most)
        edge = near[edge]
        cell, owner = level.cell[edge], level.owner[edge]
        path, _ = self.within.step(before[level.child[edge], rank], cell)
        good = np.flatnonzero(path - self.shortest[cell] + after[edge] <= most)
        good = good[np.lexsort((path[good], owner[good]))]
        place = np.arange(len(good)) - np.searchsorted(owner[good], owner[good])
        good, place = good[place < n], place[place < n]
        paths, back = np.full((level.nodes, n), inf), np.zeros((level.nodes, n), dtype=np.int64)
        paths[owner[good], place] = path[good]
        back[owner[good], place] = edge[good] * n + rank[good]
        self.paths.append(paths)
        self.back.append(back)
        self.labels += len(good)
        return paths

    @property
    def path(self) -> float:
        """The least P of the whole chain, infinite where none is within the bounds."""
        return float(self.paths[-1][0, 0])

    def ways(self) -> Iterator[Choice]:
        """Yield the choices behind the n least P of the whole chain."""
        for last in range(int((self.paths[-1][0] < inf).sum())):
            node, rank, taken = 0, last, []
            for level, back in zip(self.edges[::-1], self.back[::-1], strict=True):
                edge, rank = divmod(int(back[node, rank]), self.n)
                taken.append(int(level.cell[edge]))
                node = int(level.child[edge])
            cells = taken[::-1]
            yield Choice(tuple(self.graph.cells[c] for c in cells), tuple(self._best_points(cells)))

    def _best_points(self, cells: list[int]) -> Iterator[int]:
        path = np.zeros(1)
        for cell in cells:
            path, at = self.within.step(path, np.array([cell]))
            yield int(self.within.k[at[0]])
