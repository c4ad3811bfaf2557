"""A step on the event engine with everything that is shared: device streams, links, lanes of collectives."""

from collections.abc import Iterable

import numpy as np

from sim.costs import inputs
from sim.engine.assembly import Costs, Waits
from sim.engine.events import Guest, World
from sim.engine.lower import Lane, Layout, Lowered, lower
from sim.engine.program import Cause, Sharing, Stream
from sim.engine.timeline import Timeline
from sim.schedules import Schedule
from sim.specs import Cluster, Model, PlacedPlan


def layout(model: Model, cluster: Cluster, placed: PlacedPlan) -> Layout:
    """Return the layers of every stage and which of a plan's communicators leave the fast domain.

    Of a mixed cluster the first group's domains count.
    """
    plan = placed.plan
    values = inputs.plan_values(model, placed, cluster.members[0])
    counts = np.sum([values[f"layers_{k}"] for k in range(len(set(model.pattern)))], axis=0)
    inner = ("tp", "cp", "ep")
    outside = {
        "dp": any(bool(values[f"{g}_out"] > 1) for g in ("dp", "shard", "replica")),
        "inner": any(bool(values[f"{g}_out"] > 1) for g in inner),
        "pp": bool(values["pp_inter"]),
    }
    return Layout(tuple(int(n) for n in counts), outside, plan.overlap_dp)


def run_contended(
    schedule: Schedule, costs: Costs, traffic: Costs, layout: Layout, slowdown: float, guests: Iterable[Guest] = ()
) -> tuple[Timeline, Waits]:
    """Return the timeline under contention, and what the rank that decides the step waits for.

    slowdown: how much compute and collectives of one device slow each other down (1 / (1 + slowdown) each).
    """
    lowered = lower(schedule, costs, traffic, layout)
    both = {(Stream.COMPUTE, Stream.COLLECTIVE): slowdown, (Stream.COLLECTIVE, Stream.COMPUTE): slowdown}
    run = World(lowered.program, Sharing(both)).run(guests)
    timeline = lowered.timeline(schedule, run)
    return timeline, waits_of(lowered, timeline)


def waits_of(lowered: Lowered, timeline: Timeline) -> Waits:
    """Return what the rank that decides the step waits for, gap by gap: the operation that ended last is the cause.

    What contention adds to a pass is due to the data-parallel collectives beside it.
    """
    graph, run, rank = lowered.program.graph, timeline.run, timeline.decides()
    ids = np.flatnonzero(graph.lane == rank * len(Lane) + Lane.MAIN)
    took, cause = run.end[ids] - run.start[ids], lowered.program.cause[ids]
    dp = int(took[cause == Cause.DATA].sum() + (took - lowered.program.duration[ids])[cause != Cause.DATA].sum())
    pp = bubble = 0
    free = 0 if timeline.schedule.barrier else int(timeline.first_and_last()[0][rank])
    for i in ids.tolist():
        gap, free = int(run.start[i]) - free, int(run.end[i])
        if gap <= 0:
            continue
        sources = graph.source[graph.first[i] : graph.first[i + 1]]
        last = int(sources[np.argmax(run.end[sources])]) if len(sources) else -1
        by = Cause(int(lowered.program.cause[last])) if last >= 0 and run.end[last] == run.start[i] else None
        if by is Cause.DATA and graph.rank[last] == rank:
            dp += gap
        else:
            message = min(gap, int(run.end[last] - run.start[last])) if by is Cause.MESSAGE else 0
            pp, bubble = pp + message, bubble + gap - message
    return Waits(dp * 1e-9, pp * 1e-9, bubble * 1e-9)
