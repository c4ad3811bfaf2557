"""Copies between a device and host memory as the event engine runs them: layer by layer, in lanes of their own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from sim.costs.offload import ROOM, UPDATE_ROOM
from sim.engine.assembly import Costs, offloaded
from sim.engine.graph import Graph, Ints
from sim.schedules import Kind, Schedule

Where = tuple[int, int, int, int]
"""Rank, stage, kind and microbatch of an action."""

Copy = Callable[[Where, bool, float, list[int]], int]
"""Add a copy of an action: whether it leaves the device, its seconds, what it waits for; returns the operation."""


class Copies:
    """What is under way on every rank; nothing where nothing is offloaded."""

    def __init__(self, schedule: Schedule, graph: Graph, costs: Costs, add: Copy) -> None:
        self.add = add
        copied = np.zeros(schedule.depth) + costs.get("copied", 0.0)
        self.copied = np.tile(copied, schedule.pipelines)
        self.swapped = offloaded(costs, "swapped", schedule)
        self.follows = _follows(graph)
        self.left: dict[int, list[int]] = {}
        self.used: dict[int, list[int]] = {}
        self.home: dict[tuple[int, int], list[int]] = {}

    def of_pass(self, action: int, where: Where, layers: int) -> "Moves | None":
        """Return the copies beside a pass over `layers` layers, or None where it has none."""
        _, stage, kind, _ = where
        if kind == Kind.W or not self.copied[stage]:
            return None
        # Layers that are needed again at once never leave: they are in the room for copies anyway.
        staying = ROOM if self.follows[action] else 0
        return Moves(self, where, layers, min(layers, staying), float(self.copied[stage]) / layers)

    def of_update(self, where: Where, pieces: int, after: int) -> Iterator[tuple[list[int], Callable[[int], int]]]:
        """Yield for every piece of an update what it waits for, and what adds the way back when it is known."""
        seconds, out = float(self.swapped[where[0]]) / pieces, list[int]()
        for _ in range(pieces):
            arrived = self.add(where, False, seconds, [after, *_roomless(out, UPDATE_ROOM)])

            def leave(updated: int) -> int:
                out.append(self.add(where, True, seconds, [updated]))
                return out[-1]

            yield [arrived], leave


@dataclass(frozen=True)
class Moves:
    """Copies beside one pass: of a forward away from the device, of a backward back to it.

    The last `staying` layers of a forward, the first of its backward, do not move.
    """

    of: Copies
    where: Where
    layers: int
    staying: int
    seconds: float

    def before(self, piece: int) -> list[int]:
        """Return what the layer at `piece` waits for; a backward's layer is on its way here while others run."""
        rank, stage, kind, microbatch = self.where
        if kind == Kind.F:
            return _roomless(self.of.left.get(rank, []))
        if piece < self.staying:
            return []
        used, home = self.of.used.setdefault(rank, []), self.of.home[stage, microbatch]
        return [self.of.add(self.where, False, self.seconds, [*_roomless(used), home[self.layers - 1 - piece]])]

    def after(self, piece: int, done: int) -> None:
        """Note that the layer at `piece` is `done`; a forward's leaves."""
        rank, stage, kind, microbatch = self.where
        if kind != Kind.F:
            self.of.used.setdefault(rank, []).append(done)
        elif piece < self.layers - self.staying:
            i = self.of.add(self.where, True, self.seconds, [done])
            self.of.left.setdefault(rank, []).append(i)
            self.of.home.setdefault((stage, microbatch), []).append(i)


def _roomless(operations: list[int], room: int = ROOM) -> list[int]:
    """Return the operation that makes room for another, `room` before it."""
    return operations[-room : len(operations) - room + 1] if len(operations) >= room else []


def _follows(graph: Graph) -> Ints:
    """Return whether an action's partner (a forward's backward, a backward's forward) is its neighbour on the rank."""
    kind, backward = graph.kind, np.isin(graph.kind, (Kind.B, Kind.I))
    same = (graph.rank[1:] == graph.rank[:-1]) & (graph.stage[1:] == graph.stage[:-1])
    pair = same & (graph.microbatch[1:] == graph.microbatch[:-1]) & (kind[:-1] == Kind.F) & backward[1:]
    return np.asarray(np.append(pair, False) | np.append(False, pair), dtype=np.int64)
