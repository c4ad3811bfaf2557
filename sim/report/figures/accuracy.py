"""How far predictions are from measurements: one point a run, and one row of errors a table of runs."""

from collections.abc import Sequence
from math import log10

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from sim.report.numbers import Unit, byte_unit, bytes_interval, seconds_interval, signed, time_unit
from sim.report.theme import HEIGHT, MARGIN, STYLES, Look, Theme, colour, frame, marker, mixed, safe
from sim.specs.arguments import checked
from sim.validation.accuracy import Accuracy, What, errors_by_source
from sim.validation.baselines import NAMES
from sim.validation.metrics import mape

BAND = 0.1
"""Half-width of the shaded band round the diagonal."""


@checked
def accuracy(rows: Sequence[Accuracy], what: What = "time", theme: Theme = "light") -> go.Figure:
    """Return predicted against measured step time (or peak memory), both axes logarithmic, a colour per table.

    The line is a perfect prediction, the band +-10 %. Runs that do not score `what` are left out.
    """
    kept = [row for row in rows if row.of(what)[3] is not None]
    name = {"time": "step time", "memory": "peak memory"}[what]
    figure = frame(theme, HEIGHT + 160, f"measured {name}", f"predicted {name}", margin=MARGIN | {"t": 84})
    if not kept:
        return figure.update_layout(title_text=f"no run that measured {name}")
    predicted, measured = _values(kept, what)
    unit = (time_unit if what == "time" else byte_unit)(float(np.median(measured)))
    ends = float(min(predicted.min(), measured.min())) / 1.3, float(max(predicted.max(), measured.max())) * 1.3
    diagonal(figure, ends, unit, theme)
    for n, source in enumerate(dict.fromkeys(row.source for row in kept)):
        part = [row for row in kept if row.source == source]
        shade, symbol = STYLES[n % len(STYLES)]
        y, x = _values(part, what)
        figure.add_scatter(
            x=x / unit.scale,
            y=y / unit.scale,
            name=safe(source),
            mode="markers",
            marker={
                "symbol": symbol,
                "size": 6,
                "opacity": 0.75,
                "color": colour(shade, theme),
                "line": {"width": 0.5, "color": colour("edge", theme)},
            },
            text=[_hover(row, what) for row in part],
            hovertemplate="%{text}<extra></extra>",
        )
    marks = ticks(ends, unit)
    span = [log10(end / unit.scale) for end in ends]
    for axis in (figure.update_xaxes, figure.update_yaxes):
        axis(type="log", range=span, tickvals=marks, ticktext=[f"{t:g}" for t in marks])
    figure.update_xaxes(title_text=f"measured {name} ({unit.name}); band: within 10 %")
    return figure.update_yaxes(title_text=f"predicted {name} ({unit.name})")


@checked
def accuracy_errors(rows: Sequence[Accuracy], theme: Theme = "light") -> go.Figure:
    """Return the mean absolute error of the step time by table (percent), beside two constants.

    Bar: as predicted; circle: after removing the table's one common factor; the constants are those that fit the
    table best, without and with the pipeline's bubble.
    """
    kept = [row for row in rows if row.ratio is not None]
    errors = errors_by_source(rows)
    labels = [f"{safe(source)} ({e.n})" for source, e in errors.items()]
    height = 160 + 36 * max(3, len(errors))
    figure = frame(theme, height, "mean absolute error of the step time (%)", "", bargap=0.45)
    figure.update_yaxes(tickmode="linear", dtick=1)  # every table has its name
    figure.add_bar(
        x=[e.mape for e in errors.values()],
        y=labels,
        orientation="h",
        name="predicted",
        marker=marker(Look("forward", "", ""), theme),
        hovertemplate="<b>%{y}</b><br>%{x:.3~r} % mean error<extra></extra>",
    )
    constants = {name: [_constant(kept, source, name) for source in errors] for name in NAMES}
    dots = (
        ("bias removed", [e.mape_debiased for e in errors.values()], "circle", "backward"),
        ("constant MFU", constants["constant_mfu"], "diamond", "page"),
        ("constant MFU + bubble", constants["constant_mfu_bubble"], "square", "page"),
    )
    for name, values, symbol, fill in dots:
        figure.add_scatter(
            x=values,
            y=labels,
            name=name,
            mode="markers",
            marker={
                "symbol": symbol,
                "size": 10,
                "color": colour(fill, theme),
                "line": {"width": 1.5, "color": colour("text", theme)},
            },
            hovertemplate=f"<b>%{{y}}</b><br>%{{x:.3~r}} % {name}<extra></extra>",
        )
    figure.update_xaxes(rangemode="tozero")
    return figure.update_yaxes(autorange="reversed", showgrid=False)


def _constant(rows: Sequence[Accuracy], source: str, name: str) -> float | None:
    """Return the mean absolute error (percent) of a baseline on one table."""
    found = np.array([getattr(row, f"{name}_ratio") for row in rows if row.source == source], dtype=float)
    return mape(found, np.ones(len(found)))


def _values(rows: Sequence[Accuracy], what: What) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (predicted, measured) in SI units."""
    table = np.array([row.of(what) for row in rows], dtype=float)
    return table[:, 0], table[:, 0] / table[:, 3]


def _hover(row: Accuracy, what: What) -> str:
    value, low, high, ratio = row.of(what)
    shown = (seconds_interval if what == "time" else bytes_interval)(value, (low, high))
    model, _, plan = row.plan.partition(": ")
    off = f"{signed(100 * ((ratio or 1.0) - 1), 1)} % off"
    return "<br>".join([f"<b>{safe(row.id)}</b>", safe(model), *_wrapped(plan), f"predicted {shown}", off])


def _wrapped(plan: str) -> list[str]:
    """Return a plan's text in two lines."""
    words = plan.split(", ")
    return [safe(", ".join(part)) for part in (words[:4], words[4:]) if part]


def diagonal(figure: go.Figure, ends: tuple[float, float], unit: Unit, theme: Theme) -> None:
    """Draw the line of perfect predictions between the ends (seconds or bytes), and its band."""
    low, high = (end / unit.scale for end in ends)
    figure.add_scatter(
        x=[low, high, high, low],
        y=[low * (1 - BAND), high * (1 - BAND), high * (1 + BAND), low * (1 + BAND)],
        fill="toself",
        fillcolor=mixed("other", theme, 0.35),
        line={"width": 0},
        mode="lines",
        showlegend=False,
        hoverinfo="skip",
    )
    line = {"width": 1, "color": colour("text", theme)}
    figure.add_scatter(x=[low, high], y=[low, high], mode="lines", line=line, showlegend=False, hoverinfo="skip")


def ticks(ends: tuple[float, float], unit: Unit) -> list[float]:
    """Return at most eight round numbers between the ends, in axis units."""
    low, high = (log10(end / unit.scale) for end in ends)
    decades = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        marks = [n * 10.0**k for k in decades for n in steps if low <= log10(n * 10.0**k) <= high]
        if len(marks) <= 8:
            return marks
    return marks[:: -(-len(marks) // 8)]
