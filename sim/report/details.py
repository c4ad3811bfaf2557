"""What a click on a figure opens: one operation of a step, or one term of its time, in numbers."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sim.engine.assembly import OFFLOAD, pass_terms
from sim.engine.critical import reasons, slack
from sim.engine.step import Step
from sim.report import markup as m
from sim.report.numbers import byte_unit, signed, time_unit
from sim.report.text import plan_words
from sim.report.theme import TERMS
from sim.schedules import Kind
from sim.tuner.tune import Tuned
from sim.units import counted, digits3, percent, si

MEANS: Mapping[str, str] = {
    "compute": "kernels of forward and backward passes of all microbatches on the pipeline rank that ends last",
    "recompute": "forward passes that the backward repeats instead of keeping activations",
    "tp": "collectives of tensor parallelism inside the layers; the next kernel waits for them",
    "dp": "what reducing gradients and gathering weights leave exposed, after what hides behind compute",
    "pp": "what the step would gain if messages between pipeline ranks took no time",
    "cp": "exchange of keys and values of context parallelism that attention does not hide",
    "ep": "exchange of tokens between experts",
    "offload": "waiting for copies from and to the host",
    "bubble": "time in which the pipeline rank that ends last has nothing to do: filling and draining the pipeline",
    "optimizer": "update of the parameters, and what frameworks do once a step (run-level parameter)",
    "straggler": "what all devices wait for the slowest one (run-level parameter)",
    "other": "launching on the host, and exchange of tied weights",
    "learned": "correction learned from executed plans",
}
"""What each term of a step's time counts."""

PHASES = {Kind.F: ("forward",), Kind.I: ("backward_input",), Kind.W: ("backward_weight",)}
MOST = 8
"""Kernels and plans listed."""

NOTHING = 5e-5
"""Relative change that counts as none."""


def action_at(step: Step, rank: int, at_s: float) -> int | None:
    """Return the index of the action that a pipeline rank does `at_s` seconds into the step, None where it idles."""
    timeline, tick = step.timeline, at_s * 1e9
    start, end = timeline.start - timeline.zero, timeline.end - timeline.zero
    found = np.flatnonzero((timeline.graph.rank == rank) & (start <= tick + 0.5) & (tick + 0.5 < end))
    return int(found[0]) if len(found) else None


def action_named(step: Step, rank: int, label: str) -> int | None:
    """Return the index of a pipeline rank's action by its short name, such as `0F1`; None: it has none of that name."""
    graph = step.timeline.graph
    own = np.flatnonzero(graph.rank == rank).tolist()
    return next((i for i in own if step.timeline.schedule.label(graph.action(i)) == label), None)


def action_card(step: Step, index: int) -> str:
    """Return an action of the timeline as HTML: when, why then, what it consists of, which kernels."""
    timeline, graph = step.timeline, step.timeline.graph
    action, rank = graph.action(index), int(graph.rank[index])
    start, end = (int(t[index]) - timeline.zero for t in (timeline.start, timeline.end))
    unit, whole = time_unit(timeline.makespan * 1e-9), timeline.makespan
    began = int(timeline.begin[index])
    free = int(slack(timeline.run)[began])
    held = next(h for h in step.memory if h.rank == rank)
    bytes_now = _allocated(held.at_ns - timeline.zero, held.activations + held.temporaries, start)
    size = byte_unit(step.cluster.memory_bytes)
    total = sum(held.fixed.values()) + bytes_now
    which = "" if action.microbatch < 0 else f", microbatch {action.microbatch}"
    lines = [
        f"from {start * 1e-9 / unit.scale:.6g} to {end * 1e-9 / unit.scale:.6g} {unit.name}, lasts "
        f"{time_unit((end - start) * 1e-9).text((end - start) * 1e-9)}: {percent((end - start) / whole)} of the step",
        f"why then: {reasons(timeline.run, [began])[0]}",
        "on the critical path: any delay delays the step"
        if free <= 0
        else f"could end {time_unit(free * 1e-9).text(free * 1e-9)} later without delaying the step",
        f"pipeline rank {rank} holds {size.text(total)} when it begins",
    ]
    what = f"{_kind(action.kind)} of stage {action.stage}{which}"
    title = f"{timeline.schedule.label(action)}: {what}, pipeline rank {rank}"
    phases = _phases(action.kind)
    return (
        m.heading(title)
        + m.bullets(lines)
        + m.pair(_parts(step, action.kind, action.stage), _kernels(step, phases) if phases else "", "text")
    )


def term_card(step: Step, term: str) -> str:
    """Return a term of the breakdown as HTML: what it counts, how much, and what it consists of."""
    value, (low, high) = step.breakdown_s[term], step.breakdown_interval_s[term]
    unit = time_unit(max(value, 1e-9))
    look = TERMS[term]
    lines = [
        f"{unit.text(value)} ({unit.interval(low, high)}), {percent(value / step.step_time_s)} of the step",
        f"counts {MEANS[term]}",
    ]
    inside = _kernels(step, ("forward", "backward_input", "backward_weight")) if term == "compute" else ""
    return m.heading(look.label) + m.bullets(lines) + m.pair(_per_pass(step, term), inside, "text")


def _kind(kind: Kind) -> str:
    words = {
        Kind.F: "forward", Kind.B: "backward", Kind.I: "backward for the input", Kind.W: "backward for the weights",
        Kind.REDUCE_GRAD: "gradient reduction", Kind.OPTIMIZER: "update",
    }  # fmt: skip
    return words.get(kind, kind.name.lower())


def _phases(kind: Kind) -> tuple[str, ...]:
    halves = (Kind.I, Kind.W) if kind is Kind.B else (kind,)
    return tuple(phase for half in halves for phase in PHASES.get(half, ()))


def _seconds(step: Step, kind: Kind, stage: int) -> dict[str, float]:
    """Return what a pass of a stage for one microbatch consists of, by term (s)."""
    if kind not in OFFLOAD:
        return {}
    depth = step.timeline.schedule.depth
    found = {term: float(seconds[stage % depth]) for term, seconds in pass_terms(step.costs, kind, depth).items()}
    return {term: value for term, value in found.items() if value}


def _parts(step: Step, kind: Kind, stage: int) -> str:
    found = _seconds(step, kind, stage)
    if not found:
        return ""
    whole = sum(found.values())
    rows = [[TERMS[t].label, time_unit(v).text(v), percent(v / whole)] for t, v in found.items()]
    return m.table([("consists of", "alone, without what runs beside it"), ("time", ""), ("share", "")], rows)


def _per_pass(step: Step, term: str) -> str:
    """Return a term's seconds in one pass of every kind, over the stages."""
    kinds = [kind for kind in (Kind.F, Kind.B) if any(_seconds(step, kind, s).get(term) for s in _stages(step))]
    rows = []
    for kind in kinds:
        values = [_seconds(step, kind, s).get(term, 0.0) for s in _stages(step)]
        unit = time_unit(max(values))
        rows.append([_kind(kind), unit.text(min(values)), unit.text(max(values)), str(step.placed.microbatches)])
    heads = [("pass", ""), ("least", "of all stages, one microbatch"), ("most", ""), ("microbatches", "of each stage")]
    return m.table(heads, rows) if rows else ""


def _stages(step: Step) -> Iterable[int]:
    return range(step.timeline.schedule.depth)


def _kernels(step: Step, phases: tuple[str, ...]) -> str:
    """Return the kernels that take longest in these phases, each with what it computes and moves."""
    own = [one for one in step.operations if one.phase in phases]
    whole = sum(one.count * one.seconds for one in own)
    rows = [
        [
            one.name,
            time_unit(one.seconds).text(one.seconds),
            f"{one.count} layers" if one.count > 1 else "once",
            percent(one.count * one.seconds / whole),
            si(one.flop / one.seconds, "FLOP/s") if one.flop else "–",
            si(one.bytes / one.seconds, "B/s"),
        ]
        for one in sorted(own, key=lambda one: -one.count * one.seconds)[:MOST]
    ]
    heads = [
        ("kernel", ""), ("each", "of one microbatch on one device"), ("in", "the whole model"),
        ("share", "of the kernels of these passes"), ("computes", ""), ("moves", "read and written"),
    ]  # fmt: skip
    return m.table(heads, rows)


def _allocated(at_ns: np.ndarray, values: np.ndarray, start: int) -> float:
    """Return what is held from the instant `start` on."""
    place = int(np.searchsorted(at_ns, start, side="right")) - 1
    return float(values[place]) if place >= 0 else 0.0


def selection_card(found: Tuned, flat: Sequence[int]) -> str:
    """Return configurations of a search (their flat indices) as HTML: how many, and the fastest."""
    scores, space = found.scores, found.space
    time, fits = scores.step_time_s.ravel()[list(flat)], scores.fits.ravel()[list(flat)]
    rows = []
    for i in np.argsort(time)[:MOST].tolist():
        plan = space.plan(*(int(k) for k in np.unravel_index(flat[i], space.allowed.shape)))
        dp = plan.on(found.model, found.cluster).dp
        peak = float(scores.peak_memory_bytes.ravel()[flat[i]])
        unit = time_unit(time[i])
        rows.append([plan_words(plan, dp), unit.text(time[i]), byte_unit(peak).text(peak), "yes" if fits[i] else "no"])
    heads = [
        ("the fastest", ""), ("step time", "by the closed forms"), ("peak memory", "allocated"), ("fits", ""),
    ]  # fmt: skip
    words = f"{counted(len(flat))} configurations selected, {counted(int(fits.sum()))} of them fit"
    return m.heading(words) + m.table(heads, rows)


def multiplier_words(step: Step, without: Step, name: str, factor: float) -> str:
    """Return what one multiplier on the hardware changes, the others as they are. without: the same step at 1x.

    For example "network 2x saves 310 ms (−4.1 % step time): data parallel (dp) 480 → 170 ms".
    """
    change = step.step_time_s - without.step_time_s
    found = []
    if abs(change) > NOTHING * without.step_time_s:
        verb, amount = "costs" if change > 0 else "saves", time_unit(abs(change)).text(abs(change))
        share = signed(100 * change / without.step_time_s, 1)
        found.append(f"{verb} {amount} ({share} % step time){_moved(step, without)}")
    if step.fits != without.fits:
        found.append(f"fits: {without.fits} → {step.fits}")
    before, after = without.usd_per_1e9_tokens, step.usd_per_1e9_tokens
    if not found and before and after and abs(after - before) > NOTHING * before:
        found.append(f"{digits3(before)} → {digits3(after)} USD per 1e9 tokens")
    return f"{name} {factor:g}x {'; '.join(found) or 'changes neither time nor price, nor whether it fits'}"


def _moved(step: Step, without: Step) -> str:
    """Return the terms that change most, before and after."""
    pairs = [(without.breakdown_s[term], step.breakdown_s[term], look.label) for term, look in TERMS.items()]
    parts = []
    for before, after, name in sorted(pairs, key=lambda p: -abs(p[0] - p[1]))[:2]:
        if abs(after - before) > NOTHING * without.step_time_s:
            unit = time_unit(max(before, after))
            parts.append(f"{name} {digits3(before / unit.scale)} → {unit.text(after)}")
    return f": {', '.join(parts)}" if parts else ""
