"""Pipelines whose chunks hold different layers, many of one shape at once.

Closed forms hold for equal chunks. Here the order itself is run: the longest path that the path engine takes, of a
whole vector of costs in one pass over the graph, in seconds instead of ticks; and the memory that the order keeps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.assembly import with_update
from sim.engine.compiled import compiled
from sim.engine.graph import Ints, graph_of
from sim.engine.path import Ordered, ordered
from sim.schedules import CLOSED, Kind, Schedule, Shape, build

Floats = NDArray[np.float64]
WIDTH = 64
"""Rows that run together: a vector for the processor, while the ends of a thousand actions stay in its cache."""
SETTLED = 8
"""Microbatches a rank, of at least four ranks, after which further ones take a steady time and keep no more (but where
all are kept)."""
BACKWARD = (Kind.B, Kind.I, Kind.W)


@dataclass(frozen=True)
class Pipeline:
    """What pipelines of different costs share. barrier: no rank updates before all have reduced their gradients."""

    schedule: str
    shape: Shape
    barrier: bool

    @property
    def few(self) -> int:
        """Microbatches that are run, of those that there are."""
        p, m = self.shape.ranks, self.shape.microbatches
        settled = SETTLED * max(p, 4)
        return min(m, settled + (m - settled) % p)

    def step_s(self, costs: Mapping[str, Floats]) -> Floats:
        """Return the seconds of a step, [row].

        costs: of stages [stage, row], embedding and head included, `forward`, `backward` and `weight`; `message` into
        a stage and `back` from it; of ranks [rank, row] `reduce` and `optimizer`; all in seconds.
        """
        further, ranks = self.shape.microbatches - self.few, self.shape.ranks
        time = self._run(self.few, costs)
        return time + further / ranks * (time - self._run(self.few - ranks, costs)) if further else time

    def _run(self, microbatches: int, costs: Mapping[str, Floats]) -> Floats:
        order = _order(self, microbatches)
        stages, rows = costs["forward"].shape
        took = np.zeros((stages, len(Kind), rows))
        took[:, Kind.F], took[:, Kind.W] = costs["forward"], costs["weight"]
        took[:, Kind.B] = took[:, Kind.I] = costs["backward"]
        for kind, name in ((Kind.REDUCE_GRAD, "reduce"), (Kind.OPTIMIZER, "optimizer")):
            took[: order.ranks, kind] = costs[name]
        lag = np.concatenate([np.zeros((1, rows)), costs["message"], costs["back"]])
        walk = _walk(order)
        begin, end = _spans(walk.path, walk.cell, walk.lag, walk.rank, order.ranks, took.reshape(-1, rows), lag)
        return np.asarray(end.max(axis=0) - begin.min(axis=0) if order.barrier else (end - begin).max(axis=0))

    def peak_bytes(self, costs: Mapping[str, Floats]) -> Floats:
        """Return the allocated bytes of the fullest rank, [row].

        costs: of stages [stage, row] `saved` and `temporary`, embedding and head included; of ranks [rank, row] `held`
        all through the step and the `room` of an update; all in bytes.
        """
        order = _order(self, self.few)
        kept = CLOSED[self.schedule].in_flight(0, self.shape, min)
        beyond = kept / CLOSED[order.name].in_flight(0, replace(self.shape, microbatches=self.few), min)
        peaks = []
        for rank, states in enumerate(_states(order)):
            passing = [
                beyond * (alive @ costs["saved"][states.stages]) + costs["temporary"][running]
                for running, alive in states.alive
            ]
            most = np.max([each.max(axis=0) for each in passing], axis=0)
            peaks.append(costs["held"][rank] + np.maximum(most, costs["room"][rank]))
        return np.asarray(np.max(peaks, axis=0))


@lru_cache(maxsize=256)
def _order(pipeline: Pipeline, microbatches: int) -> Schedule:
    """Return the order of so many microbatches; of a searched one that of the kind that estimates its length."""
    name = getattr(CLOSED[pipeline.schedule], "by_hand", CLOSED[pipeline.schedule]).name
    return with_update(build(name, replace(pipeline.shape, microbatches=microbatches)), pipeline.barrier)


class _Walk(NamedTuple):
    """A graph as `_spans` reads it. lag: of every edge the row of the table of messages, 0 where none travels."""

    path: Ordered
    cell: Ints
    lag: Ints
    rank: Ints


@lru_cache(maxsize=256)
def _walk(order: Schedule) -> _Walk:
    graph = graph_of(order)
    path = ordered(graph)
    back = np.repeat(graph.kind != Kind.F, np.diff(graph.first))
    lag = np.where(graph.boundary < 0, 0, 1 + graph.boundary + back * order.stages)
    return _Walk(path, graph.cell, lag, graph.rank)


@compiled()
def _spans(
    path: Ordered, cell: Ints, lag_of: Ints, rank: Ints, ranks: int, took: Floats, lag: Floats
) -> tuple[Floats, Floats]:
    """Return when every rank begins and ends, [rank, row]; took [cell, row], lag [message, row]."""
    n, rows = len(path.order), took.shape[1]
    begin, end = np.empty((ranks, rows)), np.empty((ranks, rows))
    done = np.zeros((n + 1, WIDTH))  # the last entry stands for "no operation before"
    start = np.empty(WIDTH)
    for first in range(0, rows, WIDTH):
        width = min(WIDTH, rows - first)
        for k in range(n):
            i = path.order[k]
            before, own = done[path.previous[k]], done[i]
            for j in range(width):
                start[j] = before[j]
            for e in range(path.first[k], path.first[k + 1]):
                source, message = done[path.source[e]], lag[lag_of[path.edge[e]]]
                served = took[cell[path.source[e]]]
                for j in range(width):  # nobody is served before its server begins
                    start[j] = max(start[j], source[j] + max(message[first + j], -served[first + j]))
            takes = took[cell[i]]
            for j in range(width):
                own[j] = start[j] + takes[first + j]
            if path.previous[k] < 0:
                begin[rank[i], first : first + width] = start[:width]
            end[rank[i], first : first + width] = own[:width]
    return begin, end


class _States(NamedTuple):
    """What a rank keeps when a backward begins: by the stage that runs it, how many activations [state, stage] of its
    `stages` are alive; only where no other state keeps as many of all."""

    stages: list[int]
    alive: tuple[tuple[int, NDArray[np.float64]], ...]


@lru_cache(maxsize=256)
def _states(order: Schedule) -> tuple[_States, ...]:
    found = []
    for rank, actions in enumerate(order.actions):
        stages = [s for s, r in enumerate(order.rank_of) if r == rank]
        alive, seen = dict.fromkeys(stages, 0), dict[int, set[tuple[int, ...]]]()
        for action in actions:
            if action.kind is Kind.F:
                alive[action.stage] += 1
            elif action.kind in BACKWARD:
                seen.setdefault(action.stage, set()).add(tuple(alive.values()))
                alive[action.stage] -= action.kind is not Kind.I
        found.append(_States(stages, tuple((s, _most(np.array(list(each), dtype=float))) for s, each in seen.items())))
    return tuple(found)


def _most(states: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the states that no other one exceeds."""
    under: NDArray[np.bool_] = (states[:, None] <= states).all(axis=-1).sum(axis=1) > 1  # each is under itself
    return np.asarray(states[~under])
