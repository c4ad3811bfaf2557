"""Where the time of a step goes: one stacked bar per step."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from sim.engine.hidden import hidden as hidden_s
from sim.engine.step import Step
from sim.report.numbers import Unit, shorten, time_unit
from sim.report.theme import HEIGHT, TERMS, Theme, colour, frame, label, marker, safe, whiskers
from sim.specs import InputError
from sim.specs.arguments import checked

BAR = (0.35, 0.6)
"""Height of the bar of one step, and of several; the whisker lies below the bar, so that it covers no text."""

LETTERS = 24
"""Of a bar's name; the hover has more of it."""

NOTHING = 1e-7
"""Share of a step under which a term is rounding: the engine counts whole nanoseconds."""

PERCENT = Unit(1.0, "%")
Floats = NDArray[np.floating]


class _Axis(NamedTuple):
    """What all bars share: the steps' names and times (s), and the seconds that are 1 on the axis of each."""

    names: Sequence[str]
    total: Floats
    whole: Floats
    unit: Unit
    theme: Theme


@checked
def breakdown(
    step: Step | Sequence[Step],
    labels: Sequence[str] | None = None,
    theme: Theme = "light",
    share: bool = False,
    hidden: bool = False,
) -> go.Figure:
    """Return the exposed time by cause, one horizontal bar per step, with the total's 80 % interval.

    The terms of a bar sum to its step time; terms that are zero everywhere are left out. share: percent of the step in
    place of time. hidden: another bar above each, of what runs beside the rest and nobody waits for (`engine.hidden`).

    Raises:
        InputError: no step, or not a label for each.
    """
    steps = [step] if isinstance(step, Step) else list(step)
    if not steps:
        raise InputError("step", [], "one step or more")
    if labels and len(labels) != len(steps):
        raise InputError("labels", list(labels), f"as many as there are steps: {len(steps)}")
    full = list(labels) if labels else [f"plan {n}" for n in range(1, len(steps) + 1)]
    names = [""] if labels is None and len(steps) == 1 else [safe(shorten(n, LETTERS)) for n in full]
    total = np.array([s.step_time_s for s in steps])
    unit = PERCENT if share else time_unit(float(total.max()))
    whole = total / 100 if share else np.full(len(steps), unit.scale)
    low, high = (np.array([s.step_time_interval_s[i] for s in steps]) / whole for i in (0, 1))
    figure = frame(
        theme,
        HEIGHT,
        f"exposed time ({unit.name}); whisker: 80 % interval of the step time",
        "",
        barmode="stack",
        uniformtext={"mode": "hide", "minsize": 10},
    )
    rows, thick = np.arange(len(steps), dtype=np.float64), BAR[len(steps) > 1]
    axis = _Axis([safe(n) for n in full], total, whole, unit, theme)
    bars = [s.breakdown_s for s in steps]
    _stack(figure, axis, bars, rows, thick)
    figure.add_scatter(
        x=total / whole,
        y=rows + thick / 2 + 0.1,
        mode="markers",
        showlegend=False,
        hoverinfo="skip",
        marker={"size": 1, "color": colour("text", theme)},
        error_x=whiskers(total / whole, low, high, theme),
    )
    if hidden:
        _beside(figure, axis, [hidden_s(s) for s in steps], rows - (0.32 if len(steps) == 1 else 0.4))
    figure.update_yaxes(range=[len(steps) - 0.5, -0.5], tickvals=rows, ticktext=names, showgrid=False)
    least = min(sum(min(0.0, b[term]) for term in TERMS) / w for b, w in zip(bars, whole, strict=True))
    figure.update_xaxes(range=[1.03 * least, 1.03 * float(high.max())])  # least: what a correction takes off
    return figure


def _stack(
    figure: go.Figure, axis: _Axis, bars: Sequence[Mapping[str, float]], rows: Floats, thick: float, more: str = ""
) -> None:
    """Add a bar of stacked terms (s) per step; `more` follows their names, and keeps them out of the legend."""
    for term, look in TERMS.items():
        values = np.array([bar.get(term, 0.0) for bar in bars])
        if not (abs(values) > NOTHING * axis.total).any():
            continue
        shares = 100 * values / axis.total
        figure.add_bar(
            orientation="h",
            x=values / axis.whole,
            y=rows,
            width=thick,
            name=look.label + more,
            legendgroup=term,
            showlegend=not more,
            marker=marker(look, axis.theme),
            text=None if look.hatch else [f"{s:.0f} %" for s in shares],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            customdata=np.stack([shares, axis.total / axis.whole], axis=1),
            hovertext=axis.names,
            meta=term,
            hovertemplate=f"<b>{look.label}{more}</b><br>%{{hovertext}}<br>%{{x:.3~r}} {axis.unit.name}"
            "<br>%{customdata[0]:.3~r} % of "
            f"%{{customdata[1]:.3~r}} {axis.unit.name}<extra></extra>",
        )


def _beside(figure: go.Figure, axis: _Axis, found: Sequence[Mapping[str, float]], rows: Floats) -> None:
    """Add what is hidden as thin bars above those of the exposed time, with their totals in words."""
    _stack(figure, axis, found, rows, 0.12, ", hidden")
    for row, own, scale in zip(rows, found, axis.whole, strict=True):
        end = sum(own.values()) / scale
        figure.add_annotation(
            **label(f"hidden: {end:.3g} {axis.unit.name}" if end else "nothing is hidden", axis.theme),
            x=end, y=row, showarrow=False, xanchor="left", yanchor="middle", xshift=6,
        )  # fmt: skip
