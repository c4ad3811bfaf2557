"""Compiled engine: the longest path through the graph; exact when operations that run at once share nothing."""

from functools import lru_cache

import numpy as np
from numba import njit

from sim.engine.graph import DeadlockError, Graph, Ints, graph_of, waiting_cycle
from sim.engine.program import Program, Run
from sim.engine.timeline import Durations, Timeline
from sim.schedules import Schedule


@njit(cache=True)
def _dependence_order(previous: Ints, first: Ints, source: Ints, follower: Ints, followers: Ints) -> Ints:
    """Return operations such that each comes after all it waits for; fewer than all where some wait in a cycle.

    follower[followers[i]:followers[i + 1]]: edges' operations that wait for i.
    """
    n = len(previous)
    missing = np.zeros(n, dtype=np.int64)
    after = np.full(n, -1, dtype=np.int64)
    order = np.empty(n, dtype=np.int64)
    count = 0
    for i in range(n):
        missing[i] = first[i + 1] - first[i] + (previous[i] >= 0)
        if previous[i] >= 0:
            after[previous[i]] = i
        if missing[i] == 0:
            order[count] = i
            count += 1
    at = 0
    while at < count:
        i = order[at]
        at += 1
        for e in range(followers[i], followers[i + 1] + 1):
            j = follower[e] if e < followers[i + 1] else after[i]
            if j >= 0:
                missing[j] -= 1
                if missing[j] == 0:
                    order[count] = j
                    count += 1
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
    order: Ints = _dependence_order(graph.previous, graph.first, graph.source, waiting, followers)
    if len(order) < n:
        done = np.zeros(n, dtype=bool)
        done[order] = True
        raise DeadlockError(waiting_cycle(graph, done))
    return order


@njit(cache=True)
def _longest_path(order: Ints, previous: Ints, first: Ints, source: Ints, lag: Ints, duration: Ints) -> Ints:
    end = np.zeros(len(order) + 1, dtype=np.int64)  # the last entry stands for "no operation before"
    for i in order:
        ready = end[previous[i]]
        for e in range(first[i], first[i + 1]):
            ready = max(ready, end[source[e]] + lag[e])
        end[i] = ready + duration[i]
    return end[:-1]


def run_program(program: Program) -> Run:
    """Return when the operations of `program` run if nothing is shared; raises DeadlockError."""
    g = program.graph
    order = dependence_order(g)
    end = _longest_path(order, g.previous, g.first, g.source, program.lag, program.duration)
    return Run(program, end - program.duration, end)


def run_path(schedule: Schedule, durations: Durations) -> Timeline:
    """Return the timeline of `schedule` by the longest path; raises DeadlockError."""
    run = run_program(durations.program(graph_of(schedule)))
    return Timeline.of(schedule, run)
