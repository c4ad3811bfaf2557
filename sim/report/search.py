"""The parts of the page that only a search has: ranking, margins, front, what was left out."""

from sim.engine.step import Step
from sim.report import figures
from sim.report import markup as m
from sim.report.numbers import seconds_interval, signed, time_unit
from sim.report.ranked import ranked
from sim.report.table import COLUMNS
from sim.report.text import effect_words, next_words, plan_words, robust_words
from sim.tuner.effects import effects
from sim.tuner.tune import Tuned
from sim.units import digits3, grouped, percent, seconds

PAGE_POINTS = 2_000
"""Configurations drawn on the page, as vectors: WebGL would need code evaluation and prints badly."""


def ranking_section(tuned: Tuned) -> str:
    """Return the ranked table; every plan's reasons stand in a second row that opens."""
    body, made = [], ranked(tuned)
    names = made.names
    for cells, one in zip(made.rows, tuned.plans, strict=True):
        why = m.folded("why: " + one.why[0], m.bullets(one.why[1:]))
        body.append(
            f'<tbody class="plan">{m.row([cells[name] for name in names])}'
            f'<tr class="why"><td></td><td colspan="{len(names) - 1}">{why}</td></tr></tbody>'
        )
    table = f'<table class="ranking">{m.head([COLUMNS[name] for name in names])}{"".join(body)}</table>'
    words = f"{' '.join(made.notes)} Intervals overlap: plans share most of their error."
    robust = tuned.robustness
    sure = m.paragraph(robust_words(robust), "words") if robust else ""
    return m.section("Ranked plans", m.paragraph(words, "words"), sure, table)


def hardware_section(tuned: Tuned) -> str:
    """Return what faster hardware would do for the best plan."""
    step, found = tuned.best.step, tuned.elasticities
    caption = (
        f"{effect_words(effects(step, known=found))} In brackets the elasticity, d log(step time) / d log(parameter): "
        "those of times less those of rates add up to 1, as a step on hardware twice as fast in everything takes half "
        "as long."
    )
    rows = [[e.title, signed(e.elasticity, 3), *(seconds(t) for t in (e.better_s, e.worse_s))] for e in found]
    heads = [("parameter", ""), ("elasticity", ""), ("10 % better", "step time"), ("10 % worse", "step time")]
    drawn = m.figure("tornado", lambda t: figures.tornado(step, t, found), caption, m.table(heads, rows))
    return m.section("What faster hardware would buy", drawn)


def against_section(tuned: Tuned) -> str:
    """Return why the winner wins, and what makes the difference to the textbook plan."""
    best, base = tuned.best.step, tuned.baseline
    reasons = m.bullets(tuned.best.why)
    if base is None:
        fits = "No plan of the textbook heuristic fits this cluster, so there is no baseline to compare with."
        none = "The search was interrupted before the textbook plan." if tuned.interrupted else fits
        return m.section("Why this plan", reasons, m.paragraph(none, "words"))
    change = best.step_time_s - base.step_time_s
    caption = (
        f"Plan 1 against the textbook plan ({plan_words(base.plan, base.placed.dp)}; "
        f"{seconds_interval(base.step_time_s, base.step_time_interval_s)} a step): {_signed(change)} a step, by term. "
        "The textbook plan: tp within the node as far as memory needs it, then pp, ZeRO-1, micro-batch 1. "
        "tp, dp, pp: tensor-, data- and pipeline-parallel communication; the whisker is the 80 % interval if both "
        "plans share the same relative error."
    )
    drawn = m.figure("difference", lambda t: figures.difference(best, base, t), caption, _differences(best, base))
    return m.section(
        "Why this plan", m.pair(m.heading("Reasons") + reasons, m.heading("Against the textbook plan") + drawn)
    )


def _signed(change_s: float) -> str:
    return ("+" if change_s > 0 else "−") + seconds(abs(change_s))


def _differences(best: Step, base: Step) -> str:
    unit = time_unit(base.step_time_s)
    terms = {t: (best.breakdown_s[t], base.breakdown_s[t]) for t in best.breakdown_s}
    rows = [(t, a, b) for t, (a, b) in terms.items() if a or b] + [("total", best.step_time_s, base.step_time_s)]
    heads = [("term", ""), ("plan 1", ""), ("textbook", ""), (f"difference, {unit.name}", "")]
    return m.table(
        heads,
        [
            [t, *(digits3(v / unit.scale) for v in (a, b)), digits3((a - b) / unit.scale).replace("-", "−")]
            for t, a, b in rows
        ],
    )


def front_section(tuned: Tuned) -> str:
    """Return all configurations with the front."""
    next_ = f" The next plan takes {next_words(tuned)}." if len(tuned.plans) > 1 else ""
    caption = (
        f"{grouped(tuned.feasible)} of {grouped(tuned.uniform)} configurations of equal stages fit; each point is one. "
        f"Nothing that fits is both faster and smaller than the front.{next_} "
        "Axes show what fits; a double click shows everything."
    )
    return m.section(
        "Time against memory", m.figure("front", lambda t: figures.front(tuned, t, PAGE_POINTS, webgl=False), caption)
    )


def search_section(tuned: Tuned) -> str:
    """Return what was left out by reason, and how the search went."""
    left_out = m.table(
        [("configurations", ""), ("left out because", "")],
        [[grouped(n), reason] for reason, n in tuned.excluded.items()],
    )
    spent = tuned.seconds
    rate = tuned.evaluated / max(spent["score"] + spent["stages"], 1e-9)
    certified = (
        "yes: every plan that could win was confirmed"
        if tuned.certified
        else "no: the search was interrupted"
        if tuned.interrupted
        else "no: the limit of time or of plans was reached before every plan that could win was confirmed"
        if tuned.same_order
        else "no: under contention the best plans stand in another order than by the bounds"
    )
    facts = [
        ["combinations asked for", grouped(tuned.space.asked)],
        ["scored", f"{grouped(tuned.evaluated)} ({digits3(rate)} per second)"],
        ["of equal stages", f"{grouped(tuned.uniform)}, of which {grouped(tuned.feasible)} fit the memory"],
        ["seconds in all", digits3(spent["total"])],
        ["of it compiling, scoring, confirming", ", ".join(digits3(spent[k]) for k in ("compile", "score", "confirm"))],
        ["optimum of the space certified", certified],
        ["gap to the best possible", percent(tuned.gap)],
    ]
    went = m.table([("search", ""), ("", "")], facts)
    return m.section(
        "What was searched", m.pair(m.heading("Left out") + left_out, m.heading("How it went") + went, "text")
    )
