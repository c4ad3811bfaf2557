"""Exact search: bisection of bounds on the slowest stage and the last optimizer, with one number per place under each.

f(tau, omega), the least critical path under max t <= tau and max o <= omega (see `paths`), falls with both and is
constant from the max t and max o of its own choice up to them. What is minimised is (G - fill) tau + omega + f(tau,
omega) over the values that some t and some o have: of a box of them, the least of both and f of the greatest give a
lower bound.
"""

import heapq
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from sim.specs import InputError
from sim.tuner.solvers.chain import NOTHING_BELOW, USUAL, Chain, Choice, Effort, Solution, value
from sim.tuner.solvers.graph import Graph, on_graph
from sim.tuner.solvers.paths import SLACK, Edges, Points, Sweep

LABELS = 50_000_000
"""Default number of labels: a label is the P that a place keeps under one tau."""

DEEPER = (1.01, 1.04, 1.16, 1.64, inf)
"""Within which factor of the best value the n best are sought, one after the other until there are n."""


def exact(chain: Chain, effort: Effort = USUAL, n: int = 1) -> Solution:
    """Return the `n` best ways to divide layers and devices, each at its best frontier points; steps are labels.

    Ways differ in a cell of some stage: of two choices with the same cells only the better one is listed. Certified:
    these are the n least values of all ways (of those below `effort.at_most`), up to rounding (1e-12); ties beyond the
    n-th are cut. Not certified: the labels ran out or there was an interrupt, and `bound` is what is proven. The
    number of labels is looked at between two values of tau, and bounds the edges of the graph.

    Raises:
        InputError: n below 1.
    """
    if n < 1:
        raise InputError("n", n, "1 or more")
    most = LABELS if effort.steps is None else effort.steps
    return on_graph(chain, effort, lambda graph: _solved(chain, graph, effort, n, most), most)


def _solved(chain: Chain, graph: Graph, effort: Effort, n: int, most: int) -> Solution:
    """Search for the best way, then for n ways within 1 % of it, 4 %, ...: what is far from it is never unfolded."""
    search = _Search(chain, graph, effort, most)
    kept = _Kept(1, effort.at_most)
    bound, note = search.run(kept)
    for factor in DEEPER if n > 1 and kept.ways and not note else ():
        kept = _Kept(n, min(effort.at_most, bound * factor) if factor < inf else effort.at_most, kept.ways)
        _, note = search.run(kept)
        if note or len(kept.ways) == n or kept.at_most == effort.at_most:
            break
    ways = sorted(kept.ways.values(), key=lambda way: way[0])
    values, choices = tuple(v for v, _ in ways), tuple(c for _, c in ways)
    none = "" if ways or note else NOTHING_BELOW
    return Solution(choices, values, min([bound, *values[:1]]), not note, search.labels, note or none)


@dataclass(eq=False)
class _Kept:
    """The n best ways so far, by their cells, that are below `at_most`."""

    n: int
    at_most: float
    ways: dict[tuple[int, ...], tuple[float, Choice]] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """The value (s) that is worth looking below."""
        worst = max(reached for reached, _ in self.ways.values()) if len(self.ways) == self.n else inf
        return min(self.at_most, worst)

    def add(self, reached: float, choice: Choice) -> None:
        """Remember a way if it is among the n best."""
        key = tuple(map(id, choice.cells))
        if reached < min(self.at_most, self.ways.get(key, (inf,))[0]):
            self.ways[key] = reached, choice
            if len(self.ways) > self.n:
                del self.ways[max(self.ways, key=lambda k: self.ways[k][0])]


@dataclass(order=True)
class _Open:
    """Indices a..b of values of tau and c..d of values of omega that are not decided; nothing there is below `bound`,
    no P below `path`."""

    bound: float
    a: int
    b: int
    c: int
    d: int
    path: float


class _Search:
    """One chain: its points, the values of tau and omega, all edges with their bounds, and the labels used.

    least_path, shortest: f without bounds and its choice, infinite and none where nothing is below `effort.at_most`.
    """

    def __init__(self, chain: Chain, graph: Graph, effort: Effort, most: int) -> None:
        self.chain, self.graph, self.effort, self.most, self.labels = chain, graph, effort, most, 0
        self.points = Points.of(chain, graph)
        self.steady = chain.microbatches - chain.fill
        quickest, shortest = self.points.quickest, self.points.shortest
        before, tau, omega = [], np.zeros(1), np.zeros(1)
        for level in graph.levels:
            before.append(tau[level.child])
            ends = omega[level.child]
            tau, omega = np.full((2, len(level.left)), inf)
            np.minimum.at(tau, level.owner, np.maximum(before[-1], quickest[level.cell]))
            np.minimum.at(omega, level.owner, np.maximum(ends, self.points.soonest[level.cell]))
        self.taus = np.unique(self.points.t[self.points.t >= tau[0]])
        self.omegas = np.unique(self.points.o[self.points.o >= omega[0]])
        self.edges: list[Edges] = []
        rest, tau = np.zeros(1), np.zeros(1)
        for level, slowest in zip(graph.levels[::-1], before[::-1], strict=True):
            after = rest[level.owner] + shortest[level.cell]
            through = np.maximum(tau[level.owner], quickest[level.cell])
            slow = self.steady * np.maximum(through, slowest) + self.omegas[0]
            self.edges.append(Edges(len(level.left), level.owner, level.cell, level.child, after, slow))
            rest, tau = np.full((2, int(level.child.max()) + 1), inf)
            np.minimum.at(rest, level.child, after)
            np.minimum.at(tau, level.child, through)
        self.edges.reverse()
        whole = self._sweep(self.edges, 1, (inf, inf), self._most(effort.at_most, 0, 0))
        self.least_path, self.shortest = whole.path, list(whole.ways())
        paths = [np.zeros(1), *(paths[:, 0] for paths in whole.paths[:-1])]
        for i, (edges, path) in enumerate(zip(self.edges, paths, strict=True)):
            self.edges[i] = replace(edges, value=edges.value + path[edges.child] + edges.after)

    def _sweep(self, edges: Sequence[Edges], n: int, bounds: tuple[float, float], most: float) -> Sweep:
        sweep = Sweep(self.graph, self.points, edges, n, bounds, most)
        self.labels += sweep.labels
        return sweep

    def _least(self, a: int, c: int) -> float:
        """Return what a choice takes beside P with a max t of taus[a] or more and a max o of omegas[c] or more."""
        return self.steady * float(self.taus[a]) + float(self.omegas[c])

    def _most(self, limit: float, a: int, c: int) -> float:
        """Return what P may be in such a choice below `limit`."""
        return limit * (1 + SLACK) - self._least(a, c) if limit < inf else sys.float_info.max

    def _open(self, a: int, b: int, c: int, d: int, path: float) -> Iterator[_Open]:
        """Yield a box of tau and omega where it is not empty."""
        if a <= b and c <= d:
            yield _Open(self._least(a, c) + path, a, b, c, d, path)

    def run(self, kept: _Kept) -> tuple[float, str]:
        """Decide all values of tau and omega, the most promising box first; return the bound, and why it is open if
        so."""
        for choice in self.shortest:
            kept.add(value(self.chain, choice), choice)
        waiting = list(self._open(0, len(self.taus) - 1, 0, len(self.omegas) - 1, self.least_path))
        edges, limit = self.edges, inf
        while waiting and waiting[0].bound < kept.limit:
            if self.labels > self.most or self.effort.stop():
                note = f"more than {self.most} labels" if self.labels > self.most else "interrupted"
                return min(waiting[0].bound, kept.limit), note
            if kept.limit < limit:
                limit = kept.limit
                edges = [level.below(limit) for level in edges]
            top = heapq.heappop(waiting)
            # Above these bounds the box cannot hold anything better.
            tau, omega = self._least(top.a, top.c) + top.path, self.steady * float(self.taus[top.a]) + top.path
            tau -= self.steady * float(self.taus[top.a])
            b = min(top.b, int(np.searchsorted(self.steady * self.taus + tau, limit)) - 1)
            d = min(top.d, int(np.searchsorted(self.omegas + omega, limit)) - 1)
            if top.a <= b and top.c <= d:
                for part in self._decide(kept, edges, replace(top, b=b, d=d)):
                    heapq.heappush(waiting, part)
        return kept.limit, ""

    def _decide(self, kept: _Kept, edges: Sequence[Edges], top: _Open) -> Iterator[_Open]:
        """Solve for the middle of the longer side of a box and yield what is left of it above and below."""
        a, b, c, d = top.a, top.b, top.c, top.d
        if self.steady * (self.taus[b] - self.taus[a]) >= self.omegas[d] - self.omegas[c]:
            at, above = (a + b) // 2, d
            yield from self._open(at + 1, b, c, d, top.path)
        else:
            at, above = b, (c + d) // 2
            yield from self._open(a, b, above + 1, d, top.path)
        bounds = float(self.taus[at]), float(self.omegas[above])
        found = self._sweep(edges, kept.n, bounds, self._most(kept.limit, a, c))
        ways = list(found.ways())
        for choice in ways:
            kept.add(value(self.chain, choice), choice)
        if ways:
            # What has a t and an o as large as all of these is no better than they are.
            t, o = (max(choice.of(name).max() for choice in ways) for name in "to")
            slow, late = int(np.searchsorted(self.taus, t)), int(np.searchsorted(self.omegas, o))
            path = max(top.path, found.path)
            yield from self._open(a, min(slow - 1, at), c, above, path)
            yield from self._open(max(a, slow), at, c, min(late - 1, above), path)
