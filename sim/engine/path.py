"""Compiled engine: the longest path through the graph; exact when operations that run at once share nothing."""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.compiled import compiled, soonest
from sim.engine.graph import DeadlockError, Graph, Ints, graph_of, waiting_cycle
from sim.engine.program import Program, Run
from sim.engine.timeline import Durations, Timeline
from sim.schedules import Schedule

_Ints32 = NDArray[np.int32]


@compiled()
def _dependence_order(previous: Ints, first: Ints, follower: Ints, followers: Ints) -> Ints:
    """Return operations such that each comes after all it waits for; fewer than all where some wait in a cycle.

    follower[followers[i]:followers[i + 1]]: edges' operations that wait for i.
    """
    n = len(previous)
    missing = np.zeros(n, dtype=np.int64)
    after = np.full(n, -1, dtype=np.int64)
    order = np.empty(n, dtype=np.int64)
    # Last in, first out: a lane goes on as far as it can, so that a pass in this order reads memory forwards.
    stack = np.empty(n, dtype=np.int64)
    top = count = 0
    for i in range(n):
        missing[i] = first[i + 1] - first[i] + (previous[i] >= 0)
        if previous[i] >= 0:
            after[previous[i]] = i
        if missing[i] == 0:
            stack[top] = i
            top += 1
    while top:
        top -= 1
        i = stack[top]
        order[count] = i
        count += 1
        for e in range(followers[i], followers[i + 1] + 1):
            j = follower[e] if e < followers[i + 1] else after[i]
            if j >= 0:
                missing[j] -= 1
                if missing[j] == 0:
                    stack[top] = j
                    top += 1
    return order[:count]


@lru_cache(maxsize=16)
def dependence_order(graph: Graph) -> Ints:
    """Return the operations in an order in which each follows all it waits for (cached).

    Raises:
        DeadlockError: there is none; the error names the actions that wait for each other.
    """
    n = len(graph)
    by_source = np.argsort(graph.source, kind="stable")
    waiting = np.repeat(np.arange(n), np.diff(graph.first))[by_source]
    followers = np.searchsorted(graph.source[by_source], np.arange(n + 1))
    order: Ints = soonest(_dependence_order, n)(graph.previous, graph.first, waiting, followers)
    if len(order) < n:
        done = np.zeros(n, dtype=bool)
        done[order] = True
        raise DeadlockError(waiting_cycle(graph, done))
    return order


class Ordered(NamedTuple):
    """A graph in dependence order, so that a pass over it reads memory forwards.

    The k-th operation is order[k]; it waits for previous[k] and for source[first[k]:first[k + 1]] over the edges
    edge[...] of the graph. 32-bit: half the memory to read.
    """

    order: _Ints32
    previous: _Ints32
    first: _Ints32
    source: _Ints32
    edge: _Ints32


@lru_cache(maxsize=16)
def ordered(graph: Graph) -> Ordered:
    """Return a graph in dependence order (cached); raises DeadlockError."""
    order = dependence_order(graph)
    count = np.diff(graph.first)[order]
    first = np.concatenate([[0], np.cumsum(count)])
    edge = np.arange(first[-1]) + np.repeat(graph.first[order] - first[:-1], count)
    columns = order, graph.previous[order], first, graph.source[edge], edge
    return Ordered(*(column.astype(np.int32) for column in columns))


@compiled()
def _longest_path(path: Ordered, lag: Ints, duration: Ints) -> tuple[Ints, Ints]:
    n = len(path.order)
    start = np.empty(n, dtype=np.int64)
    end = np.zeros(n + 1, dtype=np.int64)  # the last entry stands for "no operation before"
    for k in range(n):
        i = path.order[k]
        ready = end[path.previous[k]]
        for e in range(path.first[k], path.first[k + 1]):
            ready = max(ready, end[path.source[e]] + lag[path.edge[e]])
        start[i] = ready
        end[i] = ready + duration[i]
    return start, end[:-1]


@compiled()
def _in_turn(path: Ordered, lag: Ints, duration: Ints, rank: Ints, sent: Ints, lasts: Ints) -> tuple[Ints, Ints, Ints]:
    """Return start and end of operations whose messages a rank sends one after the other, and how long these wait.

    sent[i]: ticks in which operation i's message keeps its rank from sending; lasts[i]: from its end to its arrival.
    """
    n = len(path.order)
    start = np.empty(n, dtype=np.int64)
    end = np.zeros(n + 1, dtype=np.int64)
    waits = np.zeros(n, dtype=np.int64)
    free = np.zeros(rank.max() + 1, dtype=np.int64)
    for k in range(n):
        i = path.order[k]
        ready = end[path.previous[k]]
        for e in range(path.first[k], path.first[k + 1]):
            j = path.source[e]
            more = waits[j] if rank[j] != rank[i] else 0
            ready = max(ready, end[j] + lag[path.edge[e]] + more)
        start[i] = ready
        end[i] = ready + duration[i]
        if sent[i] > 0:
            arrives = end[i] + lasts[i]
            waits[i] = max(0, free[rank[i]] - (arrives - sent[i]))
            free[rank[i]] = arrives + waits[i]
    return start, end[:-1], waits


@lru_cache(maxsize=16)
def _messages(graph: Graph) -> tuple[Ints, Ints, Ints]:
    """Return the edges whose data travels between ranks, by sender in the order in which they are sent (cached); the
    operations that send them; and which of them follow another of their rank."""
    edges = np.flatnonzero(graph.boundary >= 0)
    edges = edges[np.argsort(graph.source[edges], kind="stable")]
    source = graph.source[edges]
    return edges, source, np.flatnonzero(np.diff(graph.rank[source]) == 0) + 1


def run_program(program: Program) -> Run:
    """Return when the operations of `program` run if they share nothing but what sends a rank's messages; of the run's
    program lags are as long as messages were under way, the wait for those before them included.

    Raises:
        DeadlockError: operations wait for each other.
    """
    path = ordered(program.graph)
    start, end = soonest(_longest_path, len(path.order))(path, program.lag, program.duration)
    if not len(program.sent):
        return Run(program, start, end)
    edges, source, follows = _messages(program.graph)
    arrives = end[source] + program.lag[edges]
    if np.all((arrives - program.sent[source])[follows] >= arrives[follows - 1]):
        return Run(program, start, end)
    lasts = np.zeros(len(end), dtype=np.int64)
    lasts[source] = program.lag[edges]
    turns = soonest(_in_turn, len(path.order))
    start, end, waits = turns(path, program.lag, program.duration, program.graph.rank, program.sent, lasts)
    lag = program.lag.copy()
    lag[edges] += waits[source]
    return Run(replace(program, lag=lag), start, end)


def run_path(schedule: Schedule, durations: Durations) -> Timeline:
    """Return the timeline of `schedule` by the longest path; raises DeadlockError."""
    return Timeline.of(schedule, run_program(durations.program(graph_of(schedule))))
