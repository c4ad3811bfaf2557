"""What faster hardware would buy: the step time with each parameter of the hardware better and worse."""

from collections.abc import Sequence

import plotly.graph_objects as go

from sim.engine.step import Step
from sim.report.numbers import signed
from sim.report.theme import Look, Theme, colour, frame, marker
from sim.specs.arguments import checked
from sim.tuner.elasticity import CHANGE, Elasticity, elasticities
from sim.units import percent

BETTER, WORSE = "better", "worse"
LOOKS = {BETTER: Look("forward", "", BETTER), WORSE: Look("backward", "/", WORSE)}
NOTHING = 5e-4
"""Relative change of the step time under which a parameter is left out."""


@checked
def tornado(
    step: Step, theme: Theme = "light", known: Sequence[Elasticity] | None = None, change: float = CHANGE
) -> go.Figure:
    """Return the change of a step's time (%) with each parameter `change` better and worse, the largest effect on top.

    Better is a higher rate or a shorter time. Beside each name stands the elasticity, d log(step time) / d log(rate or
    time). known: the step's `elasticities`, where they have been computed, with their own `change`.
    """
    found = known or elasticities(step, change)
    shown = [e for e in found if _matters(e, step)]
    size = percent(found[0].change)
    figure = frame(
        theme, 110 + 34 * max(2, len(shown)), "change of step time (%)", "", barmode="overlay", bargap=0.35,
        margin={"l": 12, "r": 12, "t": 48, "b": 44},
    )  # fmt: skip
    names = [f"{e.title} ({signed(e.elasticity, 2)})" for e in shown]
    for i, (meaning, look) in enumerate(LOOKS.items()):
        values = [100 * _changes(e, step)[i] for e in shown]
        figure.add_bar(
            orientation="h",
            x=values,
            y=names,
            name=f"{size} {look.label}",
            meta=meaning,
            marker=marker(look, theme),
            text=[signed(v, 1) if abs(v) >= 0.05 else "" for v in values],
            customdata=[e.name for e in shown],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"<b>%{{y}}</b><br>{size} {look.label}: %{{x:.2f}} % step time<extra></extra>",
        )
    largest = max((abs(100 * c) for e in shown for c in _changes(e, step)), default=1.0)
    figure.update_xaxes(range=[-1.2 * largest, 1.2 * largest], zeroline=True, zerolinecolor=colour("secondary", theme))
    return figure.update_yaxes(autorange="reversed", showgrid=False, tickmode="linear", dtick=1)  # a name a row


def _changes(e: Elasticity, step: Step) -> tuple[float, float]:
    """Return the relative changes of the step time with the parameter better and worse."""
    return e.better_s / step.step_time_s - 1, e.worse_s / step.step_time_s - 1


def _matters(e: Elasticity, step: Step) -> bool:
    return max(map(abs, _changes(e, step))) >= NOTHING
