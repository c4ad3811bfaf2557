"""What a plan shares on its cluster, and what the event engine finds that it waits for."""

import numpy as np

from sim.costs import inputs
from sim.costs.run_level import RunLevelSet
from sim.engine.assembly import Pace, Waits
from sim.engine.lower import Lane, Layout, Lowered
from sim.engine.program import Cause, Sharing, Stream
from sim.engine.timeline import Timeline
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
    return Layout(tuple(int(n) for n in counts) * plan.copies, outside, plan.overlap_dp)


def sharing(level: RunLevelSet) -> Sharing:
    """Return how much compute and collectives of one device slow each other down."""
    slowdown, pair = level.parameters.overlap_slowdown, (Stream.COMPUTE, Stream.COLLECTIVE)
    return Sharing({pair: slowdown, pair[::-1]: slowdown})


def waits_under_contention(lowered: Lowered, timeline: Timeline, pace: Pace) -> Waits:
    """Return what the rank that decides the step waits for, gap by gap: the operation that ended last is the cause.

    What contention adds to a pass is due to the data-parallel collectives beside it. Without flush every gap counts
    for the steps it is shared by.
    """
    graph, run, rank = lowered.program.graph, timeline.run, pace.rank
    ids = np.flatnonzero(graph.lane == rank * len(Lane) + Lane.MAIN)
    took, cause = run.end[ids] - run.start[ids], run.program.cause[ids]
    dp = int(took[cause == Cause.DATA].sum() + (took - run.program.duration[ids])[cause != Cause.DATA].sum())
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
    return Waits(*(ticks * 1e-9 / pace.steps for ticks in (dp, pp, bubble)))
