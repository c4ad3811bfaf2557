"""Exact search: bisection of a bound on the slowest stage, with one number per place under each bound.

f(tau), the least critical path under max t <= tau (see `paths`), falls with tau and is constant from the max t of its
own choice up to tau. What is minimised is (G - fill) tau + f(tau) over the values tau that some t has: of an interval
of them, the least tau and f of the greatest give a lower bound.
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
    """Indices a..b of values of tau that are not decided; nothing there is below `bound`, no P below `path`."""

    bound: float
    a: int
    b: int
    path: float


class _Search:
    """One chain: its points, the values of tau, all edges with their bounds, and the labels used.

    least_path, shortest: f of an unbounded tau and its choice, infinite and none where nothing is below
    `effort.at_most`.
    """

    def __init__(self, chain: Chain, graph: Graph, effort: Effort, most: int) -> None:
        self.chain, self.graph, self.effort, self.most, self.labels = chain, graph, effort, most, 0
        self.points = Points.of(chain, graph)
        self.steady = chain.microbatches - chain.fill
        quickest, shortest = self.points.t[self.points.begin], self.points.x[self.points.begin]
        before, tau = [], np.zeros(1)
        for level in graph.levels:
            before.append(tau[level.child])
            tau = np.full(len(level.left), inf)
            np.minimum.at(tau, level.owner, np.maximum(before[-1], quickest[level.cell]))
        self.taus = np.unique(self.points.t[self.points.t >= tau[0]])
        self.edges: list[Edges] = []
        rest, tau = np.zeros(1), np.zeros(1)
        for level, slowest in zip(graph.levels[::-1], before[::-1], strict=True):
            after = rest[level.owner] + shortest[level.cell]
            through = np.maximum(tau[level.owner], quickest[level.cell])
            slow = self.steady * np.maximum(through, slowest)
            self.edges.append(Edges(len(level.left), level.owner, level.cell, level.child, after, slow))
            rest, tau = np.full((2, int(level.child.max()) + 1), inf)
            np.minimum.at(rest, level.child, after)
            np.minimum.at(tau, level.child, through)
        self.edges.reverse()
        whole = self._sweep(self.edges, 1, inf, self._most(effort.at_most, 0))
        self.least_path, self.shortest = whole.path, list(whole.ways())
        paths = [np.zeros(1), *(paths[:, 0] for paths in whole.paths[:-1])]
        for i, (edges, path) in enumerate(zip(self.edges, paths, strict=True)):
            self.edges[i] = replace(edges, value=edges.value + path[edges.child] + edges.after)

    def _sweep(self, edges: Sequence[Edges], n: int, tau: float, most: float) -> Sweep:
        sweep = Sweep(self.graph, self.points, edges, n, tau, most)
        self.labels += sweep.labels
        return sweep

    def _most(self, limit: float, a: int) -> float:
        """Return what P may be in a choice below `limit` with a max t of taus[a] or more."""
        return limit * (1 + SLACK) - self.steady * float(self.taus[a]) if limit < inf else sys.float_info.max

    def _open(self, a: int, b: int, path: float) -> _Open:
        return _Open(self.steady * float(self.taus[a]) + path, a, b, path)

    def run(self, kept: _Kept) -> tuple[float, str]:
        """Decide all values of tau, the most promising interval first; return the bound, and why it is open if so."""
        for choice in self.shortest:
            kept.add(value(self.chain, choice), choice)
        waiting = [self._open(0, len(self.taus) - 1, self.least_path)]
        edges, limit = self.edges, inf
        while waiting and waiting[0].bound < kept.limit:
            if self.labels > self.most or self.effort.stop():
                note = f"more than {self.most} labels" if self.labels > self.most else "interrupted"
                return min(waiting[0].bound, kept.limit), note
            if kept.limit < limit:
                limit = kept.limit
                edges = [level.below(limit) for level in edges]
            top = heapq.heappop(waiting)
            # Above this tau the interval cannot hold anything better.
            b = min(top.b, int(np.searchsorted(self.steady * self.taus + top.path, limit)) - 1)
            for part in self._decide(kept, edges, _Open(top.bound, top.a, b, top.path)):
                heapq.heappush(waiting, part)
        return kept.limit, ""

    def _decide(self, kept: _Kept, edges: Sequence[Edges], top: _Open) -> Iterator[_Open]:
        """Solve for the middle of an interval and yield what is left of it above and below."""
        at = (top.a + top.b) // 2
        found = self._sweep(edges, kept.n, float(self.taus[at]), self._most(kept.limit, top.a))
        ways = list(found.ways())
        for choice in ways:
            kept.add(value(self.chain, choice), choice)
        if at < top.b:
            yield self._open(at + 1, top.b, top.path)
        if ways:
            below = int(np.searchsorted(self.taus, max(choice.t.max() for choice in ways))) - 1
            if below >= top.a:
                yield self._open(top.a, below, max(top.path, found.path))
