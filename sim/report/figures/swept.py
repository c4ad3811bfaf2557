"""Figures of a sweep: time against memory with the front, and the best along every axis."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sim.report.numbers import byte_unit, time_unit
from sim.report.swept import Along, Swept, axis_label, paths_of
from sim.report.theme import HEIGHT, Look, Theme, colour, frame, marker, safe
from sim.specs.arguments import checked
from sim.sweep.outcome import FITS
from sim.units import digits3, grouped

TITLES = {
    "step_time": "best step time",
    "tokens_per_s_per_gpu": "best tokens/s and GPU",
    "cost": "best USD per 1e9 tokens",
}
GROUPS = (
    ("yes", "fits", "forward", "circle"),
    ("close", "may not fit", "backward", "diamond"),
    ("no", "does not fit", "other", "x-thin"),
)
MOST_OF_FRONT = 1_000
MOST_WORDS = 8
"""Bars that have their value above them and their name below; more would overlap."""

MOST_LETTERS = 100
"""Of all names below the bars together."""

MOST_LINES = 16
"""Axes that the hover of a point lists."""

TICKS = ",.6~r"
"""With a format of its own plotly.js writes whole numbers between powers of ten, not small single digits."""


@checked
def swept_points(found: Swept, theme: Theme = "light", webgl: bool = True) -> go.Figure:
    """Return step time against peak allocated memory of the configurations in `found.points`, with the front.

    Both axes are logarithmic and show what fits, or may fit, with a margin (a double click shows everything); those
    that do not fit are grey. `layout.meta` has the bytes and seconds of a unit of the axes. webgl: False draws vector
    points, which print well.
    """
    points = found.points
    fitting = points["fits"] >= FITS.index("close")
    seen = fitting if fitting.any() else np.ones(len(fitting), dtype=bool)
    time = time_unit(float(np.max(points["step_time_s"][seen], initial=1e-9)))
    size = byte_unit(float(np.max(points["peak_memory_bytes"][seen], initial=1)))
    figure = frame(theme, HEIGHT + 120, f"peak allocated memory ({size.name})", f"step time ({time.name})")
    paths = [path for path in paths_of(points) if len(set(map(str, points[path].tolist()))) > 1]
    lines = ["<b>configuration %{customdata[0]}</b>", f"%{{y:.3~r}} {time.name}", f"%{{x:.3~r}} {size.name}"]
    lines += [f"{safe(path)} %{{customdata[{k}]}}" for k, path in enumerate(paths[:MOST_LINES], 1)]
    hover = "<br>".join([*lines, *["…"] * (len(paths) > MOST_LINES)]) + "<extra></extra>"
    add = figure.add_scattergl if webgl else figure.add_scatter
    for fits, text, shade, symbol in GROUPS:
        rows = np.flatnonzero(points["fits"] == FITS.index(fits))
        if len(rows):
            style = {"symbol": symbol, "size": 5, "color": colour(shade, theme), "opacity": 0.75}
            add(
                x=points["peak_memory_bytes"][rows] / size.scale,
                y=points["step_time_s"][rows] / time.scale,
                customdata=_told(points, paths, rows),
                name=f"{text} ({grouped(len(rows))} drawn)",
                mode="markers",
                marker=style | ({"line": {"width": 1, "color": style["color"]}} if symbol.endswith("thin") else {}),
                hovertemplate=hover,
            )
    front = found.front
    ends = max(1, len(front["number"]) - 1)
    kept = np.unique(np.linspace(0, ends, MOST_OF_FRONT).round().astype(np.int64))[: len(front["number"])]
    figure.add_scatter(
        x=front["peak_memory_bytes"][kept] / size.scale,
        y=front["step_time_s"][kept] / time.scale,
        customdata=_told(front, paths, kept),
        name="front",
        mode="lines+markers",
        marker={"symbol": "circle-open", "size": 7, "color": colour("text", theme)},
        line={"color": colour("text", theme), "width": 1.5, "shape": "hv"},
        hovertemplate=hover,
    )
    return figure.update_layout(
        xaxis=_logarithmic(points["peak_memory_bytes"][seen] / size.scale),
        yaxis=_logarithmic(points["step_time_s"][seen] / time.scale),
        showlegend=True,
        meta={"bytes": size.scale, "seconds": time.scale},
    )


def _told(columns: Mapping[str, Any], paths: Sequence[str], rows: Any) -> list[list[Any]]:
    """Return what a hover tells of some rows: the number and the values of axes."""
    values = (columns[path][rows].tolist() for path in paths[:MOST_LINES])
    texts = ([safe(_middle_cut(axis_label(value, 3), 40)) for value in column] for column in values)
    return [list(row) for row in zip(columns["number"][rows].tolist(), *texts, strict=True)]


def _logarithmic(values: Any) -> dict[str, Any]:
    """Return a logarithmic axis over some values, with a margin."""
    known = values[values > 0]
    low, high = (np.log10(known.min() * 0.85), np.log10(known.max() * 1.3)) if len(known) else (0.0, 1.0)
    # Of more than a decade plotly.js draws 1, 2 and 5 for three ticks asked for, all nine digits for five.
    return {
        "type": "log",
        "range": [float(low), float(high)],
        "nticks": 5 if high - low < 1 else 3,
        "tickformat": TICKS,
    }


@checked
def swept_axis(found: Swept, along: Along, theme: Theme = "light") -> go.Figure:
    """Return the best value of the objective for every value (or range of values) of one axis; "none runs" where every
    configuration breaks a rule or does not fit."""
    unit = time_unit(float(np.nanmax(along.best, initial=1e-9)))
    is_time = found.objective == "step_time"
    values = [None if np.isnan(v) else float(v) / (unit.scale if is_time else 1.0) for v in along.best]
    title = f"{TITLES[found.objective]} ({unit.name})" if is_time else TITLES[found.objective]
    figure = frame(theme, HEIGHT - 40, safe(along.path), title, margin_t=20, bargap=0.4)
    few, named = len(values) <= MOST_WORDS, range(0, len(values), -(-len(values) // MOST_WORDS))
    figure.add_bar(
        x=list(range(len(values))),
        y=values,
        customdata=[safe(_middle_cut(text, 40)) for text in along.labels],
        text=["" if v is None else digits3(v) for v in values] if few else None,
        textposition="outside",
        cliponaxis=False,
        name="best",
        showlegend=False,
        marker=marker(Look("forward", "", ""), theme),
        hovertemplate=f"<b>%{{customdata}}</b><br>%{{y:.4~r}}{f' {unit.name}' if is_time else ''}<extra></extra>",
    )
    for place, value in enumerate(values if few else ()):
        if value is None:
            figure.add_annotation(x=place, y=0, text="none runs", showarrow=False, yanchor="bottom")
    words = [safe(_middle_cut(along.labels[n], max(8, MOST_LETTERS // len(named)))) for n in named]
    figure.update_xaxes(tickvals=list(named), ticktext=words, range=[-0.6, len(values) - 0.4], showgrid=False)
    return figure.update_yaxes(rangemode="tozero", tickformat=TICKS)


def _middle_cut(text: str, most: int) -> str:
    """Return text cut to some letters where it is longer: of file names beginning and end differ."""
    keep = (most - 1) // 2
    return text if len(text) <= most else f"{text[:keep]}…{text[-keep:]}"
