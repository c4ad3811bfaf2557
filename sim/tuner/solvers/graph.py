"""Every way to build a chain as a layered graph: nodes are what is left for a stage, edges the cells it can take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf, prod

import numpy as np

from sim.specs import InputError
from sim.tuner.solvers.chain import NOTHING_BELOW, Cell, Chain, Choice, Effort, Floats, Ints, Solution, never, value

MOST_EDGES = 20_000_000
DENSE = 16
"""So many times as many keys as there are edges may exist for a table of them to be faster than sorting."""
IMPOSSIBLE = "no choice of the offered cells uses all layers and all devices"


class UnfinishedError(Exception):
    """The graph was not finished: too many edges, or an interrupt. The text says which."""


@dataclass(frozen=True, eq=False)
class Level:
    """The places where one stage is chosen, and what it can be there.

    left [node]: layers for this stage and those before it; used [node, type]: devices of the stages after it.
    owner, cell, child [edge]: the node that an edge starts from (ascending), an index into `Graph.cells`, and the node
    of the level of the stage before to which it leads (0 from the first stage, where everything is used).
    """

    left: Ints
    used: Ints
    owner: Ints
    cell: Ints
    child: Ints

    @cached_property
    def begin(self) -> list[int]:
        """Edges begin[node] .. begin[node + 1] - 1 are those of a node."""
        return [int(i) for i in np.searchsorted(self.owner, np.arange(len(self.left) + 1))]


@dataclass(frozen=True, eq=False)
class Graph:
    """levels [stage], each only with nodes and edges of some whole chain; `cells`: all that edges name."""

    levels: tuple[Level, ...]
    cells: tuple[Cell, ...]

    @property
    def possible(self) -> bool:
        """Whether there is any choice at all."""
        return len(self.levels[-1].owner) > 0

    @property
    def edges(self) -> int:
        """How many edges there are."""
        return sum(len(level.owner) for level in self.levels)

    def choice(self, edges: Sequence[int], points: Sequence[int]) -> Choice:
        """Return the choice that takes these edges and points, per stage."""
        cells = (self.cells[level.cell[e]] for level, e in zip(self.levels, edges, strict=True))
        return Choice(tuple(cells), tuple(points))

    def decode(self, keys: Floats) -> Choice:
        """Return the choice that numbers in [0, 1) stand for, keys [stage, 2]: which of the cells, which point."""
        node, edges, points = 0, [], []
        for level, (first, second) in zip(self.levels[::-1], keys[::-1].tolist(), strict=True):
            begin, end = level.begin[node : node + 2]
            edges.append(begin + int(first * (end - begin)))
            points.append(int(second * len(self.cells[level.cell[edges[-1]]].t)))
            node = int(level.child[edges[-1]])
        return self.choice(edges[::-1], points[::-1])


def on_graph(chain: Chain, effort: Effort, search: Callable[[Graph], Solution], most: int = MOST_EDGES) -> Solution:
    """Return what `search` makes of the graph of a chain, or what is known without one; see `grow`."""
    try:
        graph = grow(chain, most, effort.stop, effort.at_most)
    except UnfinishedError as error:
        return Solution((), (), 0.0, False, 0, str(error))
    if graph.possible:
        return search(graph)
    return Solution((), (), effort.at_most, True, 0, IMPOSSIBLE if effort.at_most == inf else NOTHING_BELOW)


def unproven(chain: Chain, effort: Effort, choice: Choice | None, steps: int) -> Solution:
    """Return the solution of a heuristic, which keeps its best choice only where it is below `effort.at_most`."""
    reached = inf if choice is None else value(chain, choice)
    if choice is None or not reached < effort.at_most:
        return Solution((), (), 0.0, False, steps, "nothing better found")
    return Solution((choice,), (reached,), 0.0, False, steps, "a heuristic proves nothing")


def grow(chain: Chain, most: int = MOST_EDGES, stop: Callable[[], bool] = never, at_most: float = inf) -> Graph:
    """Return the graph of a chain; only what can be finished is kept, of cells that alone take less than `at_most`.

    Raises:
        UnfinishedError: there are more than `most` edges, or `stop` returned True.
        InputError: cells that name another number of device types than the chain, or too many devices to count.
    """
    if (chain.layers + 1) * prod(n + 1 for n in chain.devices) >= 2**62:
        raise InputError("chain.devices", chain.devices, "so few that layers x devices of each type stay below 2^62")
    growing = _Growing(chain, at_most)
    left, used = np.array([chain.layers]), np.zeros((1, len(chain.devices)), dtype=np.int64)
    grown: list[Level] = []
    edges = 0
    for stage in reversed(range(chain.stages)):
        if stop():
            raise UnfinishedError("interrupted")
        level, left, used = growing.expand(stage, left, used)
        edges += len(level.owner)
        if edges > most:
            raise UnfinishedError(f"more than {most} ways to place a stage")
        grown.append(level)
    return Graph(_trimmed(grown[::-1]), tuple(growing.cells))


class _Growing:
    """Collects the cells in the order in which they are first offered."""

    def __init__(self, chain: Chain, at_most: float) -> None:
        self.chain, self.devices, self.at_most = chain, np.array(chain.devices, dtype=np.int64), at_most
        self.cells: list[Cell] = []
        self.index: dict[int, int] = {}

    def expand(self, stage: int, left: Ints, used: Ints) -> tuple[Level, Ints, Ints]:
        """Return the level of a stage with these nodes, and the nodes of the stage before."""
        owner, cell, rest, taken = [], [], [], []
        for offered, nodes in self._offers(stage, left, used):
            layers, uses, ids = self._columns(offered)
            fewer, more = left[nodes, None] - layers, used[nodes, None] + uses
            whole = (fewer == 0) & (more == self.devices).all(axis=2)
            some = (fewer >= 0) & (fewer <= stage * self.chain.most_layers) & (more <= self.devices).all(axis=2)
            r, c = np.nonzero(whole if stage == 0 else some)
            owner.append(nodes[r])
            cell.append(ids[c])
            rest.append(fewer[r, c])
            taken.append(more[r, c])
        order = np.argsort(np.concatenate(owner), kind="stable") if owner else np.zeros(0, dtype=np.int64)
        fewer, more = _joined(rest, ())[order], _joined(taken, (len(self.devices),))[order]
        key = fewer
        for column, most in zip(more.T, self.chain.devices, strict=True):
            key = key * (most + 1) + column
        many, child = _numbered(key)
        level = Level(left, used, _joined(owner, ())[order], _joined(cell, ())[order], child)
        return level, _of_each(fewer, many, child), _of_each(more, many, child)

    def _offers(self, stage: int, left: Ints, used: Ints) -> list[tuple[Sequence[Cell], Ints]]:
        """Return the nodes by the sequence of cells that they are offered."""
        # Of nodes that are asked about alike the first one is asked; there are millions of them, on many devices.
        alike = np.column_stack([left, used] if self.chain.by_layers else [used])
        _, first, where = np.unique(alike, axis=0, return_index=True, return_inverse=True)
        groups: dict[int, tuple[Sequence[Cell], list[int]]] = {}
        for n in np.argsort(first).tolist():
            offered = self.chain.cells(stage, int(left[first[n]]), tuple(used[first[n]].tolist()))
            groups.setdefault(id(offered), (offered, []))[1].append(n)
        group = np.zeros(len(first), dtype=np.int64)
        for number, (_, members) in enumerate(groups.values()):
            group[members] = number
        of_node = group[where.ravel()]
        order = np.argsort(of_node, kind="stable")
        begins = np.searchsorted(of_node[order], range(len(groups) + 1))
        nodes = (order[begin:end] for begin, end in pairwise(begins))
        each = ((self._quick(offered), some) for (offered, _), some in zip(groups.values(), nodes, strict=True))
        return [(offered, some) for offered, some in each if offered]

    def _quick(self, offered: Sequence[Cell]) -> Sequence[Cell]:
        """Return the cells with which a step may take less than `at_most`, were theirs the only stage."""
        if self.at_most == inf:
            return offered
        steady, fill = self.chain.microbatches - self.chain.fill, self.chain.fill
        return [cell for cell in offered if steady * cell.t[0] + fill * cell.x.min() < self.at_most]

    def _columns(self, offered: Sequence[Cell]) -> tuple[Ints, Ints, Ints]:
        """Return layers [cell], devices [cell, type] and indices [cell] of a sequence."""
        for cell in offered:
            if len(cell.uses) != len(self.devices):
                raise InputError("cell.uses", cell.uses, f"a number for each of {len(self.devices)} device types")
            if id(cell) not in self.index:
                self.index[id(cell)] = len(self.cells)
                self.cells.append(cell)
        ids = np.array([self.index[id(cell)] for cell in offered])
        uses = np.array([cell.uses for cell in offered], dtype=np.int64).reshape(len(offered), len(self.devices))
        return np.array([cell.layers for cell in offered]), uses, ids


def _numbered(keys: Ints) -> tuple[int, Ints]:
    """Return how many different keys there are, and the number of each in their order.

    Where keys lie dense a table of all that there could be takes a fraction of the time that sorting them does.
    """
    most = int(keys.max(initial=0)) + 1
    if most > DENSE * len(keys):
        different, number = np.unique(keys, return_inverse=True)
        return len(different), number
    held = np.zeros(most, dtype=np.int64)
    held[keys] = 1
    np.cumsum(held, out=held)
    return int(held[-1]), held[keys] - 1


def _of_each(values: Ints, nodes: int, number: Ints) -> Ints:
    """Return the value of every node, of which all edges to it have the same."""
    found = np.empty((nodes, *values.shape[1:]), dtype=np.int64)
    found[number] = values
    return found


def _joined(parts: list[Ints], shape: tuple[int, ...]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros((0, *shape), dtype=np.int64)


def _trimmed(levels: list[Level]) -> tuple[Level, ...]:
    """Return the levels without nodes that lead nowhere; what is left is reached from the last stage."""
    found: list[Level] = []
    lives = np.ones(1, dtype=bool)
    for level in levels:
        number = np.cumsum(lives) - 1
        keep = lives[level.child]
        owner, child = level.owner[keep], number[level.child[keep]]
        lives = np.zeros(len(level.left), dtype=bool)
        lives[owner] = True
        owner = (np.cumsum(lives) - 1)[owner]
        found.append(Level(level.left[lives], level.used[lives], owner, level.cell[keep], child))
    return tuple(found)
