"""What better hardware, or fewer bytes, would buy: a step's time, memory or price with each better and worse."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from sim.engine.step import Step
from sim.report.numbers import signed
from sim.report.text import TARGETS
from sim.report.theme import Look, Theme, colour, frame, marker, outline
from sim.specs.arguments import checked
from sim.tuner.effects import Effect, Target, effects
from sim.tuner.elasticity import CHANGE, Elasticity
from sim.units import percent

BETTER, WORSE = "better", "worse"
LOOKS = {BETTER: Look("forward", "", BETTER), WORSE: Look("backward", "/", WORSE)}
NOTHING = 5e-4
"""Relative change of the target under which a parameter is left out."""

MOST = 8
"""Effects that are drawn, beside those that flip whether a plan fits."""

ROOM = 1.45
"""Ends of the axis over the longest bar, beside which its number has to fit where names take half of the width."""


@checked
def tornado(
    step: Step,
    theme: Theme = "light",
    known: Sequence[Elasticity] | None = None,
    change: float = CHANGE,
    target: Target = "step_time",
    reference: Step | None = None,
) -> go.Figure:
    """Return the change of a step's time (%) with each parameter `change` better and worse, the largest effect on top.

    Drawn are the eight largest effects, and every one that flips whether the plan fits; `tuner.effects` returns all.
    Better is a higher rate, a shorter time, fewer bytes or a lower price. Beside each name stands the elasticity,
    d log(target) / d log(parameter), and below it where the plan would fit that does not, or the other way round.
    known: the step's `elasticities`, where they have been computed, with their own `change`. target: what changes, if
    not the step time (`tuner.effects`). reference: another plan, A, whose bars are drawn as outlines.

    Raises:
        InputError: a change that is none, or a cost without a price.
    """
    change = known[0].change if known else change
    found = {e.title: e for e in effects(step, change, target, known)}
    before = {e.title: e for e in effects(reference, change, target)} if reference else {}
    shown = _shown([(step, found), *([(reference, before)] if reference else [])])
    figure = frame(
        theme, 110 + 34 * max(2, len(shown)), f"change of {TARGETS[target]} (%)", "", barmode="overlay", bargap=0.35,
        margin={"l": 12, "r": 12, "t": 48, "b": 44},
    )  # fmt: skip
    rows = [found.get(n) or before[n] for n in shown]
    names = [f"{e.title} ({signed(e.elasticity, 2)}){_flips(found.get(e.title), step)}" for e in rows]
    outlined: list[dict[str, Any]] = []
    for meaning, look in LOOKS.items():
        values, others = (_values(own, shown, meaning) for own in (found, before))
        further = [abs(other) > abs(v) for v, other in zip(values, others, strict=True)]
        numbers = [signed(v, 1) if abs(v) >= 0.05 else "" for v in values]
        told = [f"<br>A: {other:.2f} %" if n in before else "" for n, other in zip(shown, others, strict=True)]
        size = f"{percent(change)} {look.label}"
        figure.add_bar(
            orientation="h",
            x=values,
            y=names,
            name=size,
            meta=meaning,
            marker=marker(look, theme),
            text=["" if out else number for out, number in zip(further, numbers, strict=True)],
            customdata=[e.name for e in rows],
            hovertext=told if before else None,
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"<b>%{{y}}</b><br>{size}: %{{x:.2f}} % {TARGETS[target]}"
            f"{'%{hovertext}' if before else ''}<extra></extra>",
        )
        # The number of a bar stands beyond the outline, if that is longer.
        ends = [number if out else "" for out, number in zip(further, numbers, strict=True)]
        outlined.append({"x": others, "text": ends, "showlegend": not outlined})
    for bar in outlined if before else ():
        figure.add_bar(
            **bar, orientation="h", y=names, name="A", legendgroup="A", hoverinfo="skip", marker=outline(theme),
            textposition="outside", cliponaxis=False,
        )  # fmt: skip
    largest = max((abs(x) for bar in figure.data for x in bar.x), default=0.0) or 1.0
    span = [-ROOM * largest, ROOM * largest]
    figure.update_xaxes(range=span, zeroline=True, zerolinecolor=colour("secondary", theme))
    return figure.update_yaxes(autorange="reversed", showgrid=False, tickmode="linear", dtick=1)  # a name a row


def _values(found: Mapping[str, Effect], shown: Sequence[str], meaning: str) -> list[float]:
    """Return the changes in percent of the parameters that are shown, 0 of those that a plan does not have."""
    return [100 * getattr(found[n], meaning) if n in found else 0.0 for n in shown]


def _shown(plans: Sequence[tuple[Step, Mapping[str, Effect]]]) -> list[str]:
    """Return the titles of the largest effects on one plan or two, and of those that flip whether one fits."""
    size: dict[str, float] = {}
    flips: set[str] = set()
    for step, found in plans:
        for title, e in found.items():
            size[title] = max(size.get(title, NOTHING), abs(e.better), abs(e.worse))
            flips |= {title} if set(e.fits) != {step.fits} else set()
    largest = sorted((n for n in size if size[n] > NOTHING), key=size.__getitem__, reverse=True)[:MOST]
    return [n for n in size if n in flips or n in largest]


def _flips(e: Effect | None, step: Step) -> str:
    """Return a line that says where the plan would fit that does not, or the other way round."""
    ways = [f"{fits} if {way}" for fits, way in zip(e.fits, LOOKS, strict=True) if fits != step.fits] if e else []
    return f"<br>fits: {', '.join(ways)}" if ways else ""
