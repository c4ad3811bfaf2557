"""The time of a step by cause: what the rank that decides it computes, and what it waits for."""

from collections.abc import Mapping

import numpy as np

from sim.costs import pairs
from sim.engine.assembly import (
    INSIDE,
    OFFLOAD,
    PASSES,
    TERMS,
    Costs,
    Pace,
    Waits,
    at,
    delayed_seconds,
    exposed_tied,
    longer_seconds,
    of_pairs,
    offloaded,
    pass_terms,
    where,
)
from sim.engine.clock import TICK_S
from sim.engine.graph import graph_of
from sim.engine.steady import counted_in_step
from sim.engine.timeline import Timeline
from sim.schedules import Kind, Schedule


def waits(timeline: Timeline, costs: Costs, pace: Pace, silent: Pace) -> Waits:
    """Return what the closed forms leave exposed of data parallelism; what the step gains when messages take no time
    (`silent`: the same run without them); and what the rank that decides the step is idle beside that.
    """
    rank, place = pace.rank, where(pace.rank, timeline.schedule)
    passes = _spent(timeline, costs, pace)
    pp = (pace.ticks - silent.ticks) * TICK_S
    counted = counted_in_step(timeline, pace.steps) * (timeline.graph.rank == rank)
    idle = (pace.ticks - float(timeline.took() @ counted)) * TICK_S
    copies = passes["offload"] + pace.updates * float(offloaded(costs, "optimizer_offload", timeline.schedule)[rank])
    if len(row := sum(longer_seconds(timeline.schedule, costs, of_copies=True))):
        copies += float(row @ counted)
    reduced = pace.updates * at(costs[f"reduce_{place}"], rank)
    if len(delayed := delayed_seconds(timeline.schedule, costs)):
        reduced += float(delayed @ counted)
    beside = _hidden_on(rank, timeline.schedule, costs, pace.steps)
    return Waits(passes["dp"] + reduced, pp, idle - pp, copies, beside)


def _hidden_on(rank: int, schedule: Schedule, costs: Costs, steps: int) -> dict[tuple[Kind, int], float]:
    """Return the seconds of a step by which the fused pairs of a rank are shorter, by kind and stage, of whose
    collectives each half bears its share."""
    if not any(schedule.fused):
        return {}
    graph, values = graph_of(schedule), of_pairs(schedule, costs)
    inner = np.stack([values[f"pair_{half}_inner"] for half in pairs.HALVES])
    hidden = inner / np.maximum(inner.sum(axis=0), TICK_S) * pairs.hidden(values) / steps
    own = graph.rank[graph.pairs] == rank
    found = np.bincount(graph.cell[graph.pairs[own]], hidden[own])
    return {(Kind(i % len(Kind)), i // len(Kind)): float(found[i]) for i in np.flatnonzero(found).tolist()}


def exposed(
    timeline: Timeline, costs: Costs, pace: Pace, waits: Waits, straggler_s: float, noisy: bool
) -> dict[str, float]:
    """Return the exposed time of a step by cause on the rank that decides it; sums to the step time.

    straggler_s: what waiting for the slowest device adds; noisy: whether the passes were drawn. What adds up a shared
    table is in "other", and not in the time for data parallelism.
    """
    c, rank = costs, pace.rank
    place = where(rank, timeline.schedule)

    passes = _spent(timeline, c, pace)
    for term, seconds in _beside(timeline, c, waits).items():
        passes[term] -= seconds
    terms = dict.fromkeys(TERMS, 0.0) | passes
    terms |= {
        "dp": waits.dp_s,
        "pp": waits.pp_s + passes["pp"],
        "offload": waits.offload_s,
        "bubble": waits.bubble_s,
        "optimizer": pace.updates * at(c[f"optimizer_{place}"], rank),
        "straggler": straggler_s,
        "other": passes["other"] + pace.updates * float(exposed_tied(c, timeline.schedule)[rank]),
    }
    step = pace.ticks * TICK_S
    # What overlaps exactly leaves a difference of the last bit, of either sign.
    terms = {k: v if abs(v) > 1e-12 * step else 0.0 for k, v in terms.items()}
    # What whole nanoseconds rounded off belongs to the largest term.
    terms["compute"] += step + straggler_s - sum(terms.values())
    found = {name: float(value) for name, value in terms.items()}
    return _drawn(found) if noisy else found


def _drawn(terms: Mapping[str, float]) -> dict[str, float]:
    """Return the terms of a step with noise, of the same sum and none below zero.

    Jitter that passes drew is not what the costs say of them, and the rest of the step bears the difference, which may
    be more than it takes.
    """
    kept = {name: max(0.0, seconds) for name, seconds in terms.items()}
    return {name: seconds * sum(terms.values()) / sum(kept.values()) for name, seconds in kept.items()}


def _beside(timeline: Timeline, costs: Costs, waits: Waits) -> dict[str, float]:
    """Return what of a step's collectives inside passes nobody waits for, by term."""
    found, depth = dict.fromkeys(INSIDE, 0.0), timeline.schedule.depth
    for (kind, stage), seconds in waits.beside_s.items():
        terms = {term: float(pass_terms(costs, kind, depth)[term][stage % depth]) for term in INSIDE}
        for term, whole in terms.items():
            found[term] += seconds * whole / sum(terms.values())
    return found


def _spent(timeline: Timeline, costs: Costs, pace: Pace) -> dict[str, float]:
    """Return the seconds of a step that the passes of the rank that decides it take, by term."""
    graph, depth = timeline.graph, timeline.schedule.depth
    own = graph.rank == pace.rank
    found = dict.fromkeys(PASSES, 0.0)
    for kind in OFFLOAD:
        count = np.bincount(graph.stage[own & (graph.kind == kind)] % depth, minlength=depth) / pace.steps
        if count.any():
            for term, seconds in pass_terms(costs, kind, depth).items():
                found[term] += float(count @ seconds)
    return found
