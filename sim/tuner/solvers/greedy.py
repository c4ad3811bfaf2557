"""Iterative bottleneck alleviation in the manner of Aceso (EuroSys 2024), counted in choices instead of seconds.

Aceso's primitives move operators and devices between stages or change how one stage runs. Here a move gives the
bottleneck another cell and one other stage the difference in layers and devices, or gives it another point.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sim.tuner.solvers.chain import USUAL, Chain, Choice, Effort, Solution, value
from sim.tuner.solvers.graph import Graph, on_graph, unproven

CHOICES = 20_000
HOPS = 5
"""Moves in a row that may fail to improve before the search ends."""


def greedy(chain: Chain, effort: Effort = USUAL) -> Solution:
    """Return where alleviating bottlenecks from a balanced start ends; steps are choices evaluated, no seed is used.

    The best move of a bottleneck is taken. Where none improves, the search goes on from the best one it has not been
    at, up to `HOPS` deep, and ends when that does not improve either.
    """
    most = CHOICES if effort.steps is None else effort.steps
    return on_graph(chain, effort, lambda graph: _Descent(chain, effort, graph, most).run())


@dataclass(frozen=True)
class _Want:
    """What a stage is asked to be: layers, devices per type, which of the cells of that size, which point."""

    layers: int
    uses: tuple[int, ...]
    variant: int = 0
    point: int = 0


Wants = tuple[_Want, ...]


@dataclass
class _Descent:
    chain: Chain
    effort: Effort
    graph: Graph
    most: int
    evaluated: int = 0

    def run(self) -> Solution:
        at = self._balanced()
        best = self._placed(at)
        while (better := self._improved(at)) is not None:
            at = better
            best = self._placed(at)
        return unproven(self.chain, self.effort, best, self.evaluated)

    def _improved(self, at: Wants) -> Wants | None:
        """Return the end of the first row of moves that improves."""
        goal, been = self._value(at), {at}
        for _ in range(HOPS):
            moves: dict[Wants, float] = {}
            for wants in self._moves(at):
                if self.evaluated >= self.most or self.effort.stop():
                    break
                if wants not in been and wants not in moves:
                    moves[wants] = self._value(wants)
                    self.evaluated += 1
            at = min(moves, key=moves.__getitem__, default=at)
            if not moves or moves[at] == np.inf:
                return None
            if moves[at] < goal:
                return at
            been.add(at)
        return None

    def _value(self, wants: Wants) -> float:
        choice = self._placed(wants)
        return np.inf if choice is None else value(self.chain, choice)

    def _moves(self, wants: Wants) -> Iterator[Wants]:
        """Yield what relieves the slowest stage, that of the largest surplus or that of the longest optimizer."""
        choice = self._placed(wants)
        if choice is None:
            return
        surplus = choice.of("d") - self.chain.fill * (np.cumsum(choice.of("x")) - choice.of("x"))
        for stage in dict.fromkeys(int(column.argmax()) for column in (choice.t, surplus, choice.of("o"))):
            for point in range(len(choice.cells[stage].t)):
                yield _with(wants, {stage: replace(wants[stage], point=point)})
            yield from self._exchanges(wants, stage)

    def _exchanges(self, wants: Wants, stage: int) -> Iterator[Wants]:
        """Yield every other cell of a stage, with any one other stage taking the difference."""
        own = wants[stage]
        for other in self._offered(wants, stage):
            changed = {stage: replace(other, point=own.point)}
            layers, uses = own.layers - other.layers, tuple(a - b for a, b in zip(own.uses, other.uses, strict=True))
            if not layers and not any(uses):
                yield _with(wants, changed)
                continue
            for j, theirs in enumerate(wants):
                taken = tuple(a + b for a, b in zip(theirs.uses, uses, strict=True))
                if j != stage:
                    yield _with(wants, changed | {j: replace(theirs, layers=theirs.layers + layers, uses=taken)})

    def _offered(self, wants: Wants, stage: int) -> Iterator[_Want]:
        """Yield the cells that a stage could be where it stands."""
        node = 0
        for i in reversed(range(stage + 1, self.chain.stages)):
            node = int(self.graph.levels[i].child[self._edge(i, node, wants[i])])
        seen: dict[tuple[int, tuple[int, ...]], int] = {}
        level = self.graph.levels[stage]
        for edge in range(*level.begin[node : node + 2]):
            cell = self.graph.cells[level.cell[edge]]
            variant = seen[cell.layers, cell.uses] = seen.get((cell.layers, cell.uses), -1) + 1
            yield _Want(cell.layers, cell.uses, variant)

    def _edge(self, stage: int, node: int, want: _Want) -> int:
        """Return the edge that is as wanted, -1 where none has that size."""
        level = self.graph.levels[stage]
        sized = [
            edge
            for edge in range(*level.begin[node : node + 2])
            if (cell := self.graph.cells[level.cell[edge]]).layers == want.layers and cell.uses == want.uses
        ]
        return sized[min(want.variant, len(sized) - 1)] if sized else -1

    def _placed(self, wants: Wants) -> Choice | None:
        node, edges, points = 0, [], []
        for stage in reversed(range(self.chain.stages)):
            level, edge = self.graph.levels[stage], self._edge(stage, node, wants[stage])
            if edge < 0:
                return None
            edges.append(edge)
            points.append(min(wants[stage].point, len(self.graph.cells[level.cell[edge]].t) - 1))
            node = int(level.child[edge])
        return self.graph.choice(edges[::-1], points[::-1])

    def _balanced(self) -> Wants:
        """Return a start: from the last stage on, the cell nearest to an equal share of what is left."""
        node, wants = 0, []
        for stage in reversed(range(self.chain.stages)):
            level = self.graph.levels[stage]
            edges = np.arange(*level.begin[node : node + 2])
            cells = [self.graph.cells[c] for c in level.cell[edges]]
            rest = np.append(level.left[node], np.array(self.chain.devices) - level.used[node]) / (stage + 1)
            off = [float(np.abs(np.array([cell.layers, *cell.uses]) - rest).sum()) for cell in cells]
            best = int(np.argmin(off))
            same = [c for c in cells[:best] if (c.layers, c.uses) == (cells[best].layers, cells[best].uses)]
            wants.append(_Want(cells[best].layers, cells[best].uses, len(same)))
            node = int(level.child[edges[best]])
        return tuple(wants[::-1])


def _with(wants: Wants, changed: dict[int, _Want]) -> Wants:
    return tuple(changed.get(i, want) for i, want in enumerate(wants))
