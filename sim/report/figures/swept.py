"""Figures of a sweep: time against memory with the front, and the best along every axis."""

import numpy as np
import plotly.graph_objects as go

from sim.report.numbers import byte_unit, time_unit
from sim.report.swept import Along, Swept
from sim.report.theme import HEIGHT, Look, Theme, colour, frame, marker, safe
from sim.sweep.outcome import FITS
from sim.units import THIN_SPACE

TITLES = {
    "step_time": "best step time (s)",
    "tokens_per_s_per_gpu": "best tokens/s and GPU",
    "cost": "best USD per 1e9 tokens",
}
GROUPS = (
    ("yes", "fits", "forward", "circle"),
    ("close", "may not fit", "recompute", "diamond"),
    ("no", "does not fit", "other", "x-thin"),
)
MOST_OF_FRONT = 1_000


def swept_points(found: Swept, theme: Theme = "light", webgl: bool = True) -> go.Figure:
    """Return step time against peak allocated memory of the configurations in `found.points`, with the front.

    Both axes are logarithmic; those that do not fit are grey. webgl: False draws vector points, which print well.
    """
    points = found.points
    longest, largest = (float(np.max(points[name], initial=1e-9)) for name in ("step_time_s", "peak_memory_bytes"))
    time, size = time_unit(longest), byte_unit(largest)
    figure = frame(theme, HEIGHT + 120, f"peak allocated memory ({size.name})", f"step time ({time.name})")
    lines = (
        "<b>configuration %{customdata}</b>",
        f"%{{y:.3~r}} {time.name}",
        f"%{{x:.3~r}} {size.name}<extra></extra>",
    )
    hover = "<br>".join(lines)
    add = figure.add_scattergl if webgl else figure.add_scatter
    for fits, text, shade, symbol in GROUPS:
        rows = np.flatnonzero(points["fits"] == FITS.index(fits))
        if len(rows):
            style = {"symbol": symbol, "size": 5, "color": colour(shade, theme), "opacity": 0.75}
            add(
                x=points["peak_memory_bytes"][rows] / size.scale,
                y=points["step_time_s"][rows] / time.scale,
                customdata=points["number"][rows],
                name=f"{text} ({len(rows):,} drawn)".replace(",", THIN_SPACE),
                mode="markers",
                marker=style | ({"line": {"width": 1, "color": style["color"]}} if symbol.endswith("thin") else {}),
                hovertemplate=hover,
            )
    front = found.front
    size_of_front = len(front["number"])
    kept = np.unique(np.linspace(0, size_of_front - 1, min(size_of_front, MOST_OF_FRONT)).round().astype(np.int64))
    figure.add_scatter(
        x=front["peak_memory_bytes"][kept] / size.scale,
        y=front["step_time_s"][kept] / time.scale,
        name="front",
        hoverinfo="skip",
        mode="lines",
        line={"color": colour("text", theme), "width": 1.5, "shape": "hv"},
    )
    return figure.update_xaxes(type="log").update_yaxes(type="log")


def swept_axis(found: Swept, along: Along, theme: Theme = "light") -> go.Figure:
    """Return the best value of the objective for every value (or range of values) of one axis."""
    figure = frame(theme, HEIGHT, safe(along.path), TITLES[found.objective])
    figure.add_bar(
        x=[safe(text) for text in along.labels],
        y=[None if np.isnan(v) else float(v) for v in along.best],
        name="best",
        showlegend=False,
        marker=marker(Look("forward", "", ""), theme),
        hovertemplate="<b>%{x}</b><br>%{y:.4~r}<extra></extra>",
    )
    return figure.update_xaxes(type="category").update_yaxes(rangemode="tozero")
