"""What a plan shares on its cluster, and what the event engine finds that it waits for."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs import inputs, mesh
from sim.costs.contention import nearest
from sim.costs.profile import Profile, load_profile
from sim.costs.run_level import RunLevelSet
from sim.engine.assembly import Pace, Waits
from sim.engine.clock import TICK_S
from sim.engine.graph import Ints
from sim.engine.lower import Lane, Layout, Lowered
from sim.engine.placed import crossings, holders
from sim.engine.program import Cause, Run, Sharing, Stream
from sim.engine.timeline import Timeline
from sim.schedules import Kind
from sim.specs import Cluster, Model, PlacedPlan

CONTENDERS = (Stream.COMPUTE, Stream.COLLECTIVE, Stream.H2D, Stream.D2H)
"""The streams of a contention matrix, in its order (`sim.costs.contention.STREAMS`)."""


def layout(model: Model, cluster: Cluster, placed: PlacedPlan, level: RunLevelSet) -> Layout:
    """Return the layers of every stage and which of its communicators leave the fast domain, on any of its devices."""
    plan = placed.plan

    @cache
    def values(n: int, rank: int) -> dict[str, Any]:
        found = inputs.plan_values(model, placed.at(rank), cluster.members[n])
        return found | mesh.hops(placed, found)

    held = holders(model, cluster, placed, level)
    ranks = [[values(n, r if plan.stages else 0) for n in numbers] for r, numbers in enumerate(held)]
    counts = np.sum([ranks[0][0][f"layers_{k}"] for k in range(len(set(model.pattern)))], axis=0)
    groups = {"dp": mesh.BESIDE, "inner": mesh.INNER}
    outside = {
        name: tuple(any(bool(v[f"{g}_out"] > 1) for g in some for v in each) for each in ranks)
        for name, some in groups.items()
    }
    into = [
        crossings(member, placed)
        if plan.stages
        else np.broadcast_to(values(n, 0)["pp_inter"] > 0, placed.stages).tolist()
        for n, member in enumerate(cluster.members)
    ]
    messages = tuple(any(into[n][s] for n in held[r]) for s, r in enumerate(plan.rank_of[: placed.stages]))
    layers = tuple(int(n) for n in counts) * plan.copies
    return Layout(layers, outside | {"pp": messages * plan.copies}, plan.overlap_dp)


def sharing(level: RunLevelSet, profile: Profile, shape: tuple[int, int], offloads: bool = False) -> Sharing:
    """Return how much the streams of one device slow each other down.

    By the profile's matrix of the communicator `shape` (ranks in a node, nodes) or the one nearest to it; where there
    is none, compute and collectives by the run level's one number, and copies from and to host memory (`offloads`) as
    these slow each other, while the two directions of the host link do not meet.
    """
    held = nearest(profile.contention, *shape)
    if held is not None:
        matrix = {(a, b): held.matrix[a][b] for a in CONTENDERS for b in CONTENDERS if a != b}
        measured = f"{held.n_in} x {held.n_out} ranks, measured (held-out mape {held.mape:g} %; {held.source})"
        return Sharing(
            matrix, source=f"contention of {shape[0]} x {shape[1]} ranks (in a node x nodes) as of {measured}"
        )
    slowdown, kinds = level.parameters.overlap_slowdown, (Stream.COMPUTE, Stream.COLLECTIVE)
    copies = [(a, b) for a in kinds for b in (Stream.H2D, Stream.D2H)] if offloads else []
    pairs = {each: slowdown for pair in (kinds, *copies) for each in (pair, pair[::-1])}
    why = f"profile {profile.name} has no contention matrix of such a communicator"
    return Sharing(pairs, source=f"what runs side by side on a device slows each other by {slowdown:g}: {why}")


def sharing_on(model: Model, cluster: Cluster, placed: PlacedPlan, level: RunLevelSet, offloads: bool) -> Sharing:
    """Return how much the streams of the devices of every pipeline rank slow each other down, each as `sharing`.

    Of several kinds on a rank the one whose passes take longest counts, as in `slowest`, also for the collectives that
    all take part in: it computes beside them for longest, and what has computed by then no longer slows them.
    """
    plan, members = placed.plan, cluster.members

    @cache
    def of(n: int, rank: int) -> Sharing:
        shape = data_parallel_shape(model, members[n], placed, rank)
        return sharing(level, load_profile(members[n].profile, plan.product_kernel), shape, offloads)

    if len(members) == 1 and not plan.stages:
        return of(0, 0)
    held = holders(model, cluster, placed, level)
    ranks = [[of(n, r if plan.stages else 0) for n in numbers] for r, numbers in enumerate(held)]
    named = [f"{members[n].device}: " if len(members) > 1 else "" for n in range(len(members))]
    words = dict.fromkeys(named[numbers[0]] + each[0].source for each, numbers in zip(ranks, held, strict=True))
    return Sharing(own=tuple(each[0].slowdown for each in ranks), source="; ".join(words))


def data_parallel_shape(model: Model, cluster: Cluster, placed: PlacedPlan, rank: int = 0) -> tuple[int, int]:
    """Return the ranks in a node and the nodes of the communicator whose collectives run beside compute, of a rank."""
    values = inputs.plan_values(model, placed.at(rank), cluster.members[0])
    return int(values["shard_in"]), int(values["shard_out"])


def waits_under_contention(lowered: Lowered, timeline: Timeline, pace: Pace) -> Waits:
    """Return what the rank that decides the step waits for, gap by gap: the operation that ended last is the cause.

    What contention adds to a pass is due to the collectives and the copies beside it, by how long they run beside it.
    Without flush every gap counts for the steps it is shared by. A shared table is no part of it.
    """
    graph, run, rank = lowered.program.graph, timeline.run, pace.rank
    ids = np.flatnonzero(graph.lane == rank * len(Lane) + Lane.MAIN)
    took, cause = run.end[ids] - run.start[ids], run.program.cause[ids]
    slowed = (took - run.program.duration[ids]) * (cause != Cause.DATA)
    by_copies, by_pairs = (
        int(np.rint(slowed * share).sum()) for share in _due_to(lowered, timeline, rank, ids, (_COPIES, _PAIRS))
    )
    offload, inside = by_copies, _Inside(lowered, timeline, rank, by_pairs)
    dp = int(took[cause == Cause.DATA].sum() + slowed.sum()) - by_copies - by_pairs
    pp = bubble = 0
    free = 0 if timeline.schedule.barrier else int(timeline.first_and_last()[0][rank])
    for i in ids.tolist():
        start, gap, free = free, int(run.start[i]) - free, int(run.end[i])
        if gap <= 0:
            continue
        last = _ended_last(lowered, run, i)
        by = Cause(int(lowered.program.cause[last])) if last >= 0 and run.end[last] == run.start[i] else None
        if by is Cause.DATA and graph.rank[last] == rank:
            dp += gap
        elif by is Cause.OFFLOAD:
            offload += gap
        elif by is Cause.INNER and graph.rank[last] == rank:
            inside.waited(start, int(run.start[i]))
        else:
            message = min(gap, int(run.end[last] - run.start[last])) if by is Cause.MESSAGE else 0
            pp, bubble = pp + message, bubble + gap - message
    dp_s, pp_s, bubble_s, offload_s = (ticks * TICK_S / pace.steps for ticks in (dp, pp, bubble, offload))
    dp_s = max(0.0, dp_s - pace.updates * float(lowered.tied[rank]))  # which is not rounded to ticks
    return Waits(dp_s, pp_s, bubble_s, offload_s, inside.beside_s(pace.steps))


def _ended_last(lowered: Lowered, run: Run, i: int) -> int:
    """Return the operation that ended last of those that one waits for, of a fused pair which of both; -1: none."""
    graph = lowered.program.graph
    sources = graph.source[graph.first[i] : graph.first[i + 1]]
    last = int(sources[np.argmax(run.end[sources])]) if len(sources) else -1
    joins = last >= 0 and graph.lane[last] % len(Lane) == Lane.PAIR and lowered.program.cause[last] == Cause.PASS
    return _ended_last(lowered, run, last) if joins else last


class _Inside:
    """The collectives inside the fused pairs of a rank, and how long it waits for each of them.

    slowed: ticks by which they make what runs beside them longer, which is the same as to wait.
    """

    def __init__(self, lowered: Lowered, timeline: Timeline, rank: int, slowed: int) -> None:
        graph, run, cause = lowered.program.graph, timeline.run, lowered.program.cause
        self.ids = np.flatnonzero((graph.lane == rank * len(Lane) + Lane.PAIR) & (cause == Cause.INNER))
        self.start, self.end = run.start[self.ids], run.end[self.ids]
        self.kind, self.stage = graph.kind[self.ids], graph.stage[self.ids]
        alone = run.program.duration[self.ids]
        self.hidden = alone - slowed * alone / max(1, int(alone.sum()))

    def waited(self, begin: int, until: int) -> None:
        """Count a gap between the actions of the rank, which these collectives fill."""
        first, last = np.searchsorted(self.end, [begin, until], "right").tolist()
        some = slice(first, last + 1)
        self.hidden[some] -= np.maximum(0, np.minimum(self.end[some], until) - np.maximum(self.start[some], begin))

    def beside_s(self, steps: int) -> dict[tuple[Kind, int], float]:
        """Return the seconds of a step that the rank does not wait for, by kind and stage."""
        found: dict[tuple[Kind, int], float] = {}
        for kind, stage, ticks in zip(self.kind.tolist(), self.stage.tolist(), self.hidden.tolist(), strict=True):
            found[Kind(kind), stage] = found.get((Kind(kind), stage), 0.0) + ticks * TICK_S / steps
        return found


_COPIES, _PAIRS, _DATA = (Lane.H2D, Lane.D2H), (Lane.PAIR,), (Lane.GATHER, Lane.REDUCE)
"""Lanes of what runs beside the actions of a rank."""


def _due_to(
    lowered: Lowered, timeline: Timeline, rank: int, ids: Ints, lanes: Sequence[tuple[Lane, ...]]
) -> list[NDArray[np.float64]]:
    """Return which share of what contention adds to operations `ids` of a rank is due to each group of lanes."""
    run, graph = timeline.run, lowered.program.graph

    def beside(lane: Lane) -> Ints:
        others = np.flatnonzero(graph.lane == rank * len(Lane) + lane)
        start, end = run.start[others], run.end[others]
        before = np.concatenate([[0], np.cumsum(end - start)])

        def upto(at: Ints) -> Ints:
            n = np.searchsorted(start, at)
            last = np.append(end, 0)[n - 1]
            return np.asarray(before[n] - np.maximum(0, last - at) * (n > 0))

        return upto(run.end[ids]) - upto(run.start[ids])

    took = {lane: beside(lane) for lane in (*_COPIES, *_PAIRS, *_DATA)}
    every = np.maximum(1, sum(took.values()))
    return [np.asarray(sum(took[lane] for lane in group) / every) for group in lanes]
