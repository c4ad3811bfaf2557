"""The dependence graph of a schedule, as arrays in an order in which every action follows what it waits for."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sim.schedules import Action, Kind, Schedule

Ints = NDArray[np.int64]


class DeadlockError(ValueError):
    """An order in which some actions wait for each other; `cycle` names them."""

    def __init__(self, cycle: list[Action]) -> None:
        self.cycle = cycle
        super().__init__("deadlock: " + " waits for ".join(map(str, [*cycle, cycle[0]])))


@dataclass(frozen=True, eq=False)
class Graph:
    """Actions of all ranks; arrays share the index. A predecessor of -1 means none.

    previous: the action before on the same rank. producer: the action whose result arrives by message (or
    locally when `remote` is 0). own: the forward (or input gradient) of the same stage and microbatch.
    order: indices in dependence order.
    """

    rank: Ints
    stage: Ints
    kind: Ints
    microbatch: Ints
    previous: Ints
    producer: Ints
    own: Ints
    remote: Ints
    order: Ints

    def __len__(self) -> int:
        return len(self.rank)

    def action(self, index: int) -> Action:
        """Return the action at `index`."""
        return Action(int(self.stage[index]), Kind(int(self.kind[index])), int(self.microbatch[index]))


@lru_cache(maxsize=16)
def graph_of(schedule: Schedule) -> Graph:
    """Return the graph of a schedule (cached).

    Raises:
        DeadlockError: the order cannot be executed.
    """
    flat = [(rank, *action) for rank, actions in enumerate(schedule.actions) for action in actions]
    rank, stage, kind, microbatch = (np.array(column, dtype=np.int64) for column in zip(*flat, strict=True))
    index = {(s, k, m): i for i, (_, s, k, m) in enumerate(flat)}
    n = len(flat)
    previous = np.arange(-1, n - 1)
    previous[np.flatnonzero(np.diff(rank, prepend=-1))] = -1
    producer, own = np.full(n, -1), np.full(n, -1)
    last = schedule.stages - 1
    for i, (_, s, k, m) in enumerate(flat):
        if k == Kind.F:
            producer[i] = index.get((s - 1, Kind.F, m), -1)
        elif k in (Kind.B, Kind.I):
            own[i] = index.get((s, Kind.F, m), -1)
            if s < last:
                producer[i] = index.get((s + 1, Kind.B, m), index.get((s + 1, Kind.I, m), -1))
        elif k == Kind.W:
            own[i] = index.get((s, Kind.I, m), -1)
    remote = ((producer >= 0) & (rank[producer] != rank)).astype(np.int64)
    partial = Graph(rank, stage, kind, microbatch, previous, producer, own, remote, np.empty(0, dtype=np.int64))
    order = _topological(partial)
    return Graph(rank, stage, kind, microbatch, previous, producer, own, remote, order)


def _topological(graph: Graph) -> Ints:
    """Return the actions in the order in which ranks that never wait longer than needed can run them."""
    n, ranks = len(graph), int(graph.rank.max()) + 1
    start = np.searchsorted(graph.rank, np.arange(ranks + 1))
    cursor, done, order = start[:-1].tolist(), bytearray(n + 1), []
    done[n] = 1  # index -1: nothing to wait for
    producer, own = graph.producer.tolist(), graph.own.tolist()
    moved = True
    while moved:
        moved = False
        for r in range(ranks):
            i = cursor[r]
            while i < start[r + 1] and done[producer[i]] and done[own[i]]:
                done[i] = 1
                order.append(i)
                i += 1
            moved |= i != cursor[r]
            cursor[r] = i
    if len(order) < n:
        raise DeadlockError(_cycle(graph, done))
    return np.array(order, dtype=np.int64)


def _cycle(graph: Graph, done: bytearray) -> list[Action]:
    """Return actions that wait for each other, starting from any that never ran."""
    at, seen = next(i for i in range(len(graph)) if not done[i]), []
    while at not in seen:
        seen.append(at)
        waits = (graph.previous[at], graph.producer[at], graph.own[at])
        at = next(int(w) for w in waits if w >= 0 and not done[w])
    return [graph.action(i) for i in seen[seen.index(at) :]]
