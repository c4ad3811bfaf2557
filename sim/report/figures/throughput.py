"""Throughput: published and predicted side by side; curves over a knob of the plan, bars of a few cases."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import plotly.graph_objects as go

from sim.report.numbers import signed
from sim.report.theme import HEIGHT, MARGIN, Look, Theme, colour, frame, marker, safe, whiskers
from sim.specs.arguments import checked
from sim.validation.throughput import Throughput

Line = TypeVar("Line")
TFLOP = 1e12
STYLES = (
    ("forward", "circle", "solid"),
    ("backward", "square", "dash"),
    ("weight", "diamond", "dot"),
    ("communication", "triangle-up", "dashdot"),
    ("recompute", "cross", "longdash"),
    ("optimizer", "x", "longdashdot"),
)
"""Colour, symbol and dash of each curve in turn."""


def styled(lines: Mapping[str, Line]) -> Iterator[tuple[tuple[str, Line], tuple[str, str, str]]]:
    """Return names with their values, each with a style of its own; raises ValueError where there are too few."""
    if len(lines) > len(STYLES):
        raise ValueError(f"got {len(lines)} names; allowed: at most {len(STYLES)}")
    return zip(lines.items(), STYLES, strict=False)


@checked
def throughput(rows: Sequence[Throughput], theme: Theme = "light") -> go.Figure:
    """Return TFLOP/s per device, a row per run: predicted as a bar with its 80 % interval, published as a diamond.

    The number is what the prediction is off; a star marks a published figure outside the interval.
    """
    names = [safe(f"{row.scheme + ': ' if row.scheme else ''}{row.name}") for row in rows]
    value, low, high = ([getattr(row.predicted, end) / TFLOP for row in rows] for end in ("value", "low", "high"))
    error = whiskers(0, 0, 0, theme) | {
        "array": [h - v for h, v in zip(high, value, strict=True)],
        "arrayminus": [v - b for v, b in zip(value, low, strict=True)],
    }
    figure = frame(theme, 130 + 30 * len(rows), "TFLOP/s per GPU", "", margin=MARGIN | {"r": 80}, bargap=0.4)
    figure.add_bar(
        x=value,
        y=names,
        orientation="h",
        name="simulated here, with its 80 % interval",
        marker=marker(Look("recompute", "", ""), theme),
        error_x=error,
        hovertemplate="<b>%{y}</b><br>%{x:.4~r} TFLOP/s per GPU<extra></extra>",
    )
    shade, edge = colour("over", theme), colour("text", theme)
    figure.add_scatter(
        x=[row.published / TFLOP for row in rows],
        y=names,
        mode="markers",
        name="published",
        marker={"symbol": "diamond", "size": 9, "color": shade, "line": {"width": 1, "color": edge}},
        hovertemplate="<b>%{y}</b><br>published: %{x:.4~r} TFLOP/s per GPU<extra></extra>",
    )
    for row, name in zip(rows, names, strict=True):
        text = f"{signed(100 * row.error, 0)} %" + ("" if row.inside else " *")
        figure.add_annotation(x=1.01, xref="paper", xanchor="left", y=name, text=text, showarrow=False)
    figure.update_xaxes(rangemode="tozero")
    return figure.update_yaxes(autorange="reversed", showgrid=False, tickmode="linear", dtick=1)


@checked
def curves(
    lines: Mapping[str, Mapping[str, float | None]], x_title: str, y_title: str, theme: Theme = "light"
) -> go.Figure:
    """Return a curve for every name: its values (axis units, None is a gap) over the labels of a knob's settings.

    Raises:
        ValueError: more curves than styles tell apart.
    """
    figure = frame(theme, HEIGHT + 40, x_title, y_title)
    for (name, line), (shade, symbol, dash) in styled(lines):
        style = {"color": colour(shade, theme)}
        figure.add_scatter(
            x=list(map(safe, line)),
            y=list(line.values()),
            name=safe(name),
            mode="lines+markers",
            line=style | {"dash": dash, "width": 2},
            marker=style | {"symbol": symbol, "size": 8},
            hovertemplate=f"<b>{safe(name)}</b><br>%{{x}}: %{{y:.4~r}}<extra></extra>",
        )
    figure.update_xaxes(type="category")
    return figure.update_yaxes(rangemode="tozero")


@checked
def bars(
    groups: Mapping[str, Mapping[str, float]],
    y_title: str,
    limit: tuple[str, float] | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Return a bar for every value (axis units): name -> what it is about -> value, side by side by what it is about.

    limit: words and value of a line across all bars.

    Raises:
        ValueError: more names than styles tell apart.
    """
    figure = frame(theme, HEIGHT + 40, "", y_title, barmode="group")
    for (name, values), (shade, *_) in styled(groups):
        figure.add_bar(
            x=list(map(safe, values)),
            y=list(values.values()),
            name=safe(name),
            marker=marker(Look(shade, "", name), theme),
            hovertemplate=f"<b>{safe(name)}</b><br>%{{x}}: %{{y:.4~r}}<extra></extra>",
        )
    if limit:
        line = {"color": colour("text", theme), "width": 1.5}
        figure.add_hline(y=limit[1], line=line, annotation_text=safe(limit[0]))
    return figure
