"""The least critical paths of a chain under a bound on the slowest stage.

Fill and surplus of stages 0..i are one number, their critical path

    P_i = fill sum_{j<=i} t_j + max(0, max_{j<=i}(d_j - fill sum_{k<j} t_k)) = fill t_i + max(P_{i-1}, d_i), P_{-1} = 0,

which grows with P_{i-1}. So the least P of the stages before is enough to go on from a place, and the n least give the
n least: no pairs of sum and surplus, as a search from the last stage needs them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from sim.tuner.solvers.chain import Chain, Choice, Floats, Ints
from sim.tuner.solvers.graph import Graph

SLACK = 1e-12
"""What rounding may do to a value, relative: nothing is left out that is not worse by more."""


@dataclass(frozen=True, eq=False)
class Points:
    """The points of all cells, one cell after the other: the `size` points of a cell begin at `begin`.

    t, x (t that fills), d [point]. least, at [point]: the least x + d of the cell's points up to here, and where.
    """

    t: Floats
    x: Floats
    d: Floats
    begin: Ints
    size: Ints
    least: Floats
    at: Ints

    @classmethod
    def of(cls, chain: Chain, graph: Graph) -> "Points":
        """Lay the points of the cells of a graph side by side."""
        size = np.array([len(cell.t) for cell in graph.cells])
        begin = np.cumsum(size) - size
        t, d = (np.concatenate([getattr(cell, name) for cell in graph.cells]) for name in "td")
        x = chain.fill * t
        least = np.concatenate([np.minimum.accumulate(part) for part in np.split(x + d, begin[1:])])
        new = x + d == least
        new[1:] &= (least[1:] < least[:-1]) | np.isin(np.arange(1, len(t)), begin)
        at = np.maximum.accumulate(np.where(new, np.arange(len(t)), 0))
        return cls(t, x, d, begin, size, least, at)

    def allowed(self, tau: float) -> Ints:
        """Return how many points of each cell have t <= tau."""
        return np.add.reduceat(self.t <= tau, self.begin, dtype=np.int64)

    def step(self, path: Floats, cell: Ints, allowed: Ints) -> tuple[Floats, Ints]:
        """Return min over the allowed points of x + max(path, d), and the point; one or more must be allowed.

        path, cell, allowed [any]: P of the stages before, the cell, and how many of its points count. Points with
        d <= path add x to it, of which the first has the least; those before it take x + d, whose minimum is known.
        """
        begin = self.begin[cell]
        low, high = np.zeros_like(cell), allowed.copy()
        for _ in range(int(allowed.max(initial=0)).bit_length()):
            middle = (low + high) >> 1
            above = (self.d[np.minimum(begin + middle, len(self.d) - 1)] > path) & (middle < high)
            low, high = np.where(above, middle + 1, low), np.where(above, high, middle)
        first, last = begin + np.minimum(low, allowed - 1), begin + np.maximum(low - 1, 0)
        covered = np.where(low < allowed, path + self.x[first], inf)
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
    """From the first stage to the last under one tau: the n least P per node and where they come from.

    most: what P of the whole chain may be; what cannot stay within it is dropped. paths [level][node, rank]: ascending,
    infinite where there are fewer. back [level][node, rank]: edge x n + rank at its child.
    """

    def __init__(self, graph: Graph, points: Points, edges: Sequence[Edges], n: int, tau: float, most: float) -> None:
        self.graph, self.points, self.edges, self.n, self.labels = graph, points, edges, n, 0
        self.allowed = self.points.allowed(tau)
        self.paths: list[Floats] = []
        self.back: list[Ints] = []
        before = np.full((1, n), inf)
        before[0, 0] = 0.0
        for level in edges:
            before = self._level(level, before, most)

    def _level(self, level: Edges, before: Floats, most: float) -> Floats:
        """Append the paths and origins of a level and return the paths."""
        n, after = self.n, level.after
        near = np.flatnonzero((before[level.child, 0] + after <= most) & (self.allowed[level.cell] > 0))
        edge, rank = np.nonzero(before[level.child[near]] + after[near, None] <= most)
        edge = near[edge]
        cell, owner = level.cell[edge], level.owner[edge]
        path, _ = self.points.step(before[level.child[edge], rank], cell, self.allowed[cell])
        good = np.flatnonzero(path - self.points.x[self.points.begin[cell]] + after[edge] <= most)
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
            path, at = self.points.step(path, np.array([cell]), self.allowed[[cell]])
            yield int(at[0] - self.points.begin[cell])
