"""Copies between a device and host memory as the event engine runs them: layer by layer, in lanes of their own."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from sim.costs.offload import UPDATE_ROOM
from sim.costs.side_by_side import ROOM
from sim.engine.assembly import Costs, offloaded
from sim.engine.graph import Graph, Ints
from sim.schedules import Kind, Schedule

Where = tuple[int, int, int, int]
"""Rank, stage, kind and microbatch of an action."""

Copy = Callable[[Where, bool, float, list[int]], int]
"""Add a copy of an action: whether it leaves the device, its seconds, what it waits for; returns the operation."""


class Copies:
    """What is under way on every rank; nothing where nothing is offloaded. delayed: updates are of gradients that were
    reduced beside a step, from a buffer of their own."""

    def __init__(self, schedule: Schedule, graph: Graph, costs: Costs, add: Copy, delayed: bool) -> None:
        self.add, self.delayed = add, delayed
        self.weights, self.activations, self.gradients = (
            np.tile(np.zeros(schedule.depth) + costs.get(n, 0.0), schedule.pipelines)
            for n in ("forward_h2d", "forward_d2h", "backward_d2h")
        )
        self.none = not any(x.any() for x in (self.weights, self.activations, self.gradients))
        self.h2d, self.d2h, self.kernels, self.pieces = (
            offloaded(costs, f"update_{n}", schedule) for n in ("h2d", "d2h", "kernels", "pieces")
        )
        self.follows = _follows(graph)
        # By rank: layers' activations that left and those used since they came; weights used; gradients that left.
        self.left, self.used, self.read, self.added = (defaultdict[int, list[int]](list) for _ in range(4))
        self.home: dict[tuple[int, int], list[int]] = {}
        self.sums: dict[int, dict[int, int]] = {}

    def of_pass(self, action: int, where: Where, layers: int) -> "Moves | None":
        """Return the copies beside a pass over `layers` layers, or None where it has none."""
        if self.none:
            return None
        _, stage, kind, _ = where
        seconds = (
            float(self.weights[stage]) * (kind != Kind.W) / layers,
            float(self.activations[stage]) * (kind != Kind.W) / layers,
            float(self.gradients[stage]) * (kind in (Kind.B, Kind.W)) / layers,
        )
        # Layers that are needed again at once never leave: they are in the room for copies anyway.
        staying = ROOM if self.follows[action] else 0
        return Moves(self, where, layers, min(layers, staying), *seconds) if any(seconds) else None

    def moves_states(self, rank: int) -> bool:
        """Return whether anything is copied beside a rank's updates."""
        return bool(self.h2d[rank] or self.d2h[rank])

    def shares(self, rank: int) -> list[float]:
        """Return what share of a rank's update each piece is: as large as a layer all but the first, what is left."""
        pieces = max(1.0, float(self.pieces[rank]))
        whole = ceil(pieces - 1e-6) - 1
        return [1 - whole / pieces] + [1 / pieces] * whole

    def of_update(
        self, where: Where, stages: Iterable[int], after: int
    ) -> Iterator[tuple[list[int], Callable[[int], int]]]:
        """Yield for every piece of an update of `stages` what it waits for, and what adds the way back when it is
        known."""
        rank = where[0]
        # A delayed update is of the sums before these, which its reduction has waited for.
        done, summed = list[int](), [] if self.delayed else self.added[rank][-1:]
        for share in self.shares(rank):
            h2d, d2h = (share * float(x[rank]) for x in (self.h2d, self.d2h))
            waits = [after, *summed, *_roomless(done, UPDATE_ROOM)]

            def leave(updated: int, d2h: float = d2h) -> int:
                done.append(self.add(where, True, d2h, [updated]) if d2h else updated)
                return done[-1]

            yield [self.add(where, False, h2d, waits)] if h2d else waits, leave
        for s in stages:  # the next sums start anew, and the next weights are those that have left
            self.sums.pop(s, None)
        self.read[rank] = done[-1:] * ROOM


@dataclass(frozen=True)
class Moves:
    """Copies beside one pass, in seconds of a layer (0: none).

    Weights come; activations leave beside a forward and come back beside its backward; summed gradients come and leave
    where weight gradients are made. The last `staying` layers of a forward, the first of its backward, keep their
    activations.
    """

    of: Copies
    where: Where
    layers: int
    staying: int
    weights: float
    activations: float
    gradients: float

    def fetch(self) -> list[int]:
        """Return the copy of a layer's weights, which it or their gathering waits for."""
        if not self.weights:
            return []
        return [self.of.add(self.where, False, self.weights, _roomless(self.of.read[self.where[0]]))]

    def before(self, piece: int) -> list[int]:
        """Return what else the layer at `piece` waits for; a backward's layer is on its way here while others run."""
        rank, stage, kind, microbatch = self.where
        waits = list[int]()
        if self.activations and kind == Kind.F:
            waits += _roomless(self.of.left[rank])
        elif self.activations and piece >= self.staying:
            home = self.of.home[stage, microbatch][self.layers - 1 - piece]
            waits.append(self.of.add(self.where, False, self.activations, [*_roomless(self.of.used[rank]), home]))
        if self.gradients:
            room, sums = _roomless(self.of.added[rank], UPDATE_ROOM), self.of.sums.get(stage, {})
            # Nothing has been summed before the first microbatch: it needs the room alone.
            known = piece in sums
            waits += [self.of.add(self.where, False, self.gradients, [*room, sums[piece]])] if known else room
        return waits

    def after(self, piece: int, done: int, read: int, reduced: Sequence[int]) -> None:
        """Note that the layer at `piece` is `done`, that its weights were last `read` as they are kept, and what has
        `reduced` its gradients; what leaves does so."""
        rank, stage, kind, microbatch = self.where
        if self.weights:
            self.of.read[rank].append(read)
        if self.activations and kind != Kind.F:
            self.of.used[rank].append(done)
        elif self.activations and piece < self.layers - self.staying:
            i = self.of.add(self.where, True, self.activations, [done])
            self.of.left[rank].append(i)
            self.of.home.setdefault((stage, microbatch), []).append(i)
        if self.gradients:
            i = self.of.add(self.where, True, self.gradients, [done, *reduced])
            self.of.added[rank].append(i)
            self.of.sums.setdefault(stage, {})[piece] = i


def _roomless(operations: list[int], room: int = ROOM) -> list[int]:
    """Return the operation that makes room for another, `room` before it."""
    return operations[-room : len(operations) - room + 1] if len(operations) >= room else []


def _follows(graph: Graph) -> Ints:
    """Return whether an action's partner (a forward's backward, a backward's forward) is its neighbour on the rank."""
    kind, backward = graph.kind, np.isin(graph.kind, (Kind.B, Kind.I))
    same = (graph.rank[1:] == graph.rank[:-1]) & (graph.stage[1:] == graph.stage[:-1])
    pair = same & (graph.microbatch[1:] == graph.microbatch[:-1]) & (kind[:-1] == Kind.F) & backward[1:]
    return np.asarray(np.append(pair, False) | np.append(False, pair), dtype=np.int64)
