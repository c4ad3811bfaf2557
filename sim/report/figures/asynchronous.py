"""Schedules without flush: their order as bars, and what they gain against what was published."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from sim.engine.timeline import Timeline
from sim.report.numbers import signed
from sim.report.theme import Look, Theme, colour, frame, legend_entry, marker, safe
from sim.schedules import Kind
from sim.specs.arguments import checked

LOOKS = {
    Kind.F: Look("forward", "", "forward"),
    Kind.B: Look("backward", "", "backward"),
    Kind.OPTIMIZER: Look("optimizer", "", "update"),
}
TICKS = (1, 1.5, 2, 3, 5, 10, 20, 30)
OURS, PUBLISHED = Look("forward", "", "simulated here"), Look("over", "", "published")


@dataclass(frozen=True)
class Gain:
    """A speed-up that was published (or the two ends of a range), and the same as simulated."""

    name: str
    published: tuple[float, ...]
    simulated: tuple[float, ...]

    def within(self, band: float) -> bool:
        """Whether what is simulated is at most `band` (a share) off, between the nearest points of both ranges."""
        return abs(nearest(self) - 1) <= band


@checked
def order(timeline: Timeline, until: float | None = None, theme: Theme = "light") -> go.Figure:
    """Return a schedule's actions as bars with the number of their microbatch, from 1: ticks against rank.

    until: the last tick shown (None: all). Meant for short runs: every action is a bar.
    """
    graph, ranks = timeline.graph, timeline.schedule.ranks
    figure = frame(theme, 120 + 26 * ranks, "time (ticks)", "pipeline rank", barmode="overlay", bargap=0.15)
    shown = (timeline.start < (until or np.inf)) & (timeline.end > timeline.start)
    for kind, look in LOOKS.items():
        chosen = np.flatnonzero(shown & (graph.kind == kind))
        if not len(chosen):
            continue
        legend_entry(figure, look, theme, kind.name)
        figure.add_bar(
            orientation="h",
            base=timeline.start[chosen],
            x=(timeline.end - timeline.start)[chosen],
            y=graph.rank[chosen],
            width=0.85,
            marker=marker(look, theme),
            text=None if kind is Kind.OPTIMIZER else graph.microbatch[chosen] + 1,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            legendgroup=kind.name,
            name=look.label,
            showlegend=False,
            hovertemplate=f"{look.label} of microbatch %{{customdata}}, pipeline rank %{{y}}, from %{{base}}"
            "<extra></extra>",
            customdata=graph.microbatch[chosen] + 1,
        )
    figure.update_layout(uniformtext={"mode": "hide", "minsize": 9})
    figure.update_yaxes(range=[ranks - 0.5, -0.5], dtick=1, showgrid=False)
    return figure.update_xaxes(range=[0, until or timeline.makespan])


@checked
def gains(rows: Sequence[Gain], band: float = 0.25, theme: Theme = "light") -> go.Figure:
    """Return published and simulated speed-ups, one row each, on a logarithmic axis; a range is a line.

    The number is simulated over published at the nearest points of both; a star marks what is outside `band`.
    """
    figure = frame(theme, 130 + 30 * len(rows), "speed-up (logarithmic)", "", margin_r=70)
    names = [safe(row.name) for row in rows]
    for look, symbol, width, values in (
        (PUBLISHED, "diamond-open", 5, [row.published for row in rows]),
        (OURS, "circle", 2, [row.simulated for row in rows]),
    ):
        x = [v for ends in values for v in (min(ends), max(ends), None)]
        y = [name for name in names for _ in range(3)]
        shade = colour(look.colour, theme)
        style = {"marker": {"color": shade, "symbol": symbol, "size": 10}, "line": {"color": shade, "width": width}}
        figure.add_scatter(x=x, y=y, mode="lines+markers", name=look.label, connectgaps=False, **style)
    for row, name in zip(rows, names, strict=True):
        off = nearest(row) - 1
        text = (f"{signed(100 * off, 0)} %" if off else "overlap") + ("" if row.within(band) else " *")
        figure.add_annotation(x=1.01, xref="paper", xanchor="left", y=name, text=text, showarrow=False)
    figure.update_xaxes(
        type="log", tickvals=[1, 1.5, 2, 3, 5, 10, 20, 30], ticktext=["1", "1.5", "2", "3", "5", "10", "20", "30"]
    )
    return figure.update_yaxes(autorange="reversed", dtick=1)


def nearest(row: Gain) -> float:
    """Return simulated over published between the nearest points of both ranges (1 where they overlap)."""
    low, high = min(row.published), max(row.published)
    if min(row.simulated) > high:
        return min(row.simulated) / high
    return max(row.simulated) / low if max(row.simulated) < low else 1.0
