"""Event engine: one simpy process a rank, messages as delayed events."""

from collections.abc import Generator
from itertools import pairwise

import numpy as np
import simpy

from sim.engine.graph import graph_of
from sim.engine.timeline import Durations, Timeline
from sim.schedules import Schedule


def run_events(schedule: Schedule, durations: Durations) -> Timeline:
    """Return the timeline of `schedule` by discrete events on an integer clock; raises DeadlockError."""
    graph = graph_of(schedule)
    duration, latency = (column.tolist() for column in durations.per_action(graph))
    producer, own = graph.producer.tolist(), graph.own.tolist()
    env = simpy.Environment()
    finished = [env.event() for _ in range(len(graph))]
    start = [0] * len(graph)

    def rank_process(actions: list[int]) -> Generator[simpy.Event, object, None]:
        for i in actions:
            if own[i] >= 0 and not finished[own[i]].processed:
                yield finished[own[i]]
            if producer[i] >= 0:
                source = finished[producer[i]]
                if not source.processed:
                    yield source
                arrives = start[producer[i]] + duration[producer[i]] + latency[i]
                if arrives > env.now:
                    yield env.timeout(arrives - env.now)
            start[i] = int(env.now)
            yield env.timeout(duration[i])
            finished[i].succeed()

    edges = np.flatnonzero(np.diff(graph.rank, prepend=-1, append=schedule.ranks))
    for first, after in pairwise(edges):
        env.process(rank_process(list(range(first, after))))
    env.run()
    begun = np.array(start, dtype=np.int64)
    return Timeline(schedule, graph, begun, begun + np.array(duration, dtype=np.int64))
