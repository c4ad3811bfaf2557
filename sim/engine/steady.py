"""The rate at which a schedule without flush goes on, once warm-up is over and before it drains."""

from collections import Counter
from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray

from sim.engine.timeline import Timeline
from sim.schedules import SCHEDULES, Kind, Schedule


@dataclass(frozen=True, eq=False)
class SteadyState:
    """Averages over whole periods of the steady state.

    ticks_per_microbatch: of the pipeline as a whole; microbatches_per_update: of the first stage
    (0: it never does one); busy: share of the time that each rank works.
    """

    ticks_per_microbatch: float
    microbatches_per_update: float
    busy: NDArray[np.float64]

    @property
    def bubble(self) -> float:
        """Idle share of the busiest rank: 0 where the slowest stage sets the pace and never waits."""
        return float(1 - self.busy.max())


def steady_state(timeline: Timeline) -> SteadyState:
    """Return the steady state of a long run of a schedule without flush.

    A microbatch is done when its backward on the first stage ends. Those done after the last one entered belong to
    the drain; of the others the first half is taken as warm-up; of the rest the largest whole number of periods (whole
    rounds of all replicas, whole updates, and whole turns of what the first rank keeps in flight) counts.

    Raises:
        ValueError: fewer microbatches than one warm-up, one period and one drain take.
    """
    graph, order = timeline.graph, timeline.schedule
    before, last, microbatches = window(timeline)
    start, end = int(timeline.end[before]), int(timeline.end[last])
    inside = np.clip(np.minimum(timeline.end, end) - np.maximum(timeline.start, start), 0, None)
    busy = np.bincount(graph.rank, inside, order.ranks) / (end - start)
    return SteadyState((end - start) / microbatches, _per_update(order), busy)


def bubbles(timeline: Timeline) -> dict[str, float]:
    """Return the idle share by its three definitions: of a step, or of steps without end where nothing flushes."""
    if SCHEDULES[timeline.schedule.name].asynchronous:
        idle = steady_state(timeline).bubble
        return {"bubble_fraction": idle, "bubble_over_ideal": idle / (1 - idle), "bubble_rank_span": idle}
    return {
        "bubble_fraction": timeline.bubble_fraction(),
        "bubble_over_ideal": timeline.bubble_makespan(),
        "bubble_rank_span": timeline.bubble_rank_span(),
    }


def window(timeline: Timeline) -> tuple[int, int, int]:
    """Return the actions at whose ends the whole periods begin and end, and how many microbatches these hold.

    Raises:
        ValueError: fewer microbatches than one warm-up, one period and one drain take.
    """
    graph, order = timeline.graph, timeline.schedule
    first = graph.stage == 0
    backward = np.flatnonzero(first & ((graph.kind == Kind.B) | (graph.kind == Kind.I)))
    done = backward[np.argsort(timeline.end[backward], kind="stable")]
    entered = timeline.start[first & (graph.kind == Kind.F)].max()
    before_drain = int((timeline.end[done] <= entered).sum())
    replicas = Counter(rank[0].stage for rank in order.actions)
    period = lcm(max(_per_update(order), 1), order.peak_in_flight()[0], *replicas.values())
    periods = (before_drain - 1 - before_drain // 2) // period
    if periods < 1:
        raise ValueError(f"microbatches: got {order.microbatches}; allowed: enough for a steady state")
    last = before_drain - 1
    return int(done[last - periods * period]), int(done[last]), periods * period


def counted_in_step(timeline: Timeline, steps: int) -> NDArray[np.float64]:
    """Return how many times each action counts in one of the `steps` of a timeline; without flush those of the steady
    state alone.

    Raises:
        ValueError: fewer microbatches than one warm-up, one period and one drain take.
    """
    if not SCHEDULES[timeline.schedule.name].asynchronous:
        return np.full(len(timeline.graph), 1 / steps)
    before, last, microbatches = window(timeline)
    inside = (timeline.end > timeline.end[before]) & (timeline.end <= timeline.end[last])
    return np.where(inside, timeline.schedule.microbatches / steps / microbatches, 0.0)


def _per_update(schedule: Schedule) -> int:
    """Return how many microbatches of the whole pipeline one update of a stage takes (0: no updates)."""
    kinds = Counter(action.kind for action in schedule.actions[0])
    replicas = sum(rank[0].stage == 0 for rank in schedule.actions)
    updates = kinds[Kind.OPTIMIZER]
    return kinds[Kind.F] // updates * replicas if updates else 0
