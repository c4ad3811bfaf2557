"""Where the time of a step goes: one stacked bar per step."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from sim.engine.step import Step
from sim.report.numbers import shorten, time_unit
from sim.report.theme import HEIGHT, TERMS, Theme, colour, frame, marker, safe, whiskers
from sim.specs.arguments import checked

BAR = (0.35, 0.6)
"""Height of the bar of one step, and of several; the whisker lies below the bar, so that it covers no text."""

NOTHING = 1e-7
"""Share of a step under which a term is rounding: the engine counts whole nanoseconds."""


@checked
def breakdown(step: Step | Sequence[Step], labels: Sequence[str] | None = None, theme: Theme = "light") -> go.Figure:
    """Return the exposed time by cause, one horizontal bar per step, with the total's 80 % interval.

    The terms of a bar sum to its step time; terms that are zero everywhere are left out.
    """
    steps = [step] if isinstance(step, Step) else list(step)
    full = list(labels) if labels else [f"plan {n}" for n in range(1, len(steps) + 1)]
    names = [""] if labels is None and len(steps) == 1 else [safe(shorten(n, 9)) for n in full]
    total = np.array([s.step_time_s for s in steps])
    low, high = (np.array([s.step_time_interval_s[i] for s in steps]) for i in (0, 1))
    unit = time_unit(float(total.max()))
    figure = frame(
        theme,
        HEIGHT,
        f"exposed time ({unit.name}); whisker: 80 % interval of the step time",
        "",
        barmode="stack",
        uniformtext={"mode": "hide", "minsize": 10},
    )
    rows, thick = np.arange(len(steps)), BAR[len(steps) > 1]
    for term, look in TERMS.items():
        values = np.array([s.breakdown_s[term] for s in steps])
        if (abs(values) > NOTHING * total).any():
            shares = 100 * values / total
            figure.add_bar(
                orientation="h",
                x=values / unit.scale,
                y=rows,
                width=thick,
                name=look.label,
                marker=marker(look, theme),
                text=None if look.hatch else [f"{s:.0f} %" for s in shares],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                customdata=np.stack([shares, total / unit.scale], axis=1),
                hovertext=[safe(n) for n in full],
                hovertemplate=f"<b>{look.label}</b><br>%{{hovertext}}<br>%{{x:.3~r}} {unit.name}"
                "<br>%{customdata[0]:.3~r} % of "
                f"%{{customdata[1]:.3~r}} {unit.name}<extra></extra>",
            )
    figure.add_scatter(
        x=total / unit.scale,
        y=rows + thick / 2 + 0.1,
        mode="markers",
        showlegend=False,
        hoverinfo="skip",
        marker={"size": 1, "color": colour("text", theme)},
        error_x=whiskers(total / unit.scale, low / unit.scale, high / unit.scale, theme),
    )
    figure.update_yaxes(range=[len(steps) - 0.5, -0.5], tickvals=rows, ticktext=names, showgrid=False)
    least = min(sum(min(0.0, s.breakdown_s[term]) for term in TERMS) for s in steps)  # what a correction takes off
    figure.update_xaxes(range=[1.03 * least / unit.scale, 1.03 * float(high.max()) / unit.scale])
    return figure
