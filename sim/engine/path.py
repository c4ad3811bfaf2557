"""Compiled engine: the longest path through the graph; exact when concurrent actions share nothing."""

import numpy as np
from numba import njit

from sim.engine.graph import Ints, graph_of
from sim.engine.timeline import Durations, Timeline
from sim.schedules import Schedule


@njit(cache=True)
def _longest_path(order: Ints, previous: Ints, producer: Ints, own: Ints, duration: Ints, latency: Ints) -> Ints:
    end = np.zeros(len(order) + 1, dtype=np.int64)  # the last entry stands for "no predecessor"
    for i in order:
        ready = max(end[previous[i]], end[own[i]])
        if producer[i] >= 0:
            ready = max(ready, end[producer[i]] + latency[i])
        end[i] = ready + duration[i]
    return end[:-1]


def run_path(schedule: Schedule, durations: Durations) -> Timeline:
    """Return the timeline of `schedule` by the longest path; raises DeadlockError."""
    graph = graph_of(schedule)
    duration, latency = durations.per_action(graph)
    end = _longest_path(graph.order, graph.previous, graph.producer, graph.own, duration, latency)
    return Timeline(schedule, graph, end - duration, end)
