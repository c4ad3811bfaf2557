"""What wholes are made of: a bar of stacked parts for each."""

from collections.abc import Mapping

import plotly.graph_objects as go

from sim.report.figures.throughput import styled
from sim.report.theme import Look, Theme, frame, marker, safe
from sim.specs.arguments import checked

ROW = 22
"""Pixels of a bar."""

HOVER = "%{customdata[0]:.4~r} (%{customdata[1]:.1f} %)"


@checked
def parts(
    rows: Mapping[str, Mapping[str, float]], x_title: str, relative: bool = False, theme: Theme = "light"
) -> go.Figure:
    """Return a bar for every row, its parts (axis units) one behind the other, in the order in which they first occur.

    relative: bars are as long as each other, and a part's length is its share of the row in percent; a row of
    nothing has no bar.

    Raises:
        ValueError: more parts than styles tell apart.
    """
    names = list(dict.fromkeys(part for row in rows.values() for part in row))
    wholes = {name: sum(row.values()) for name, row in rows.items()}
    figure = frame(theme, 130 + ROW * max(4, len(rows)), x_title, "", barmode="stack", bargap=0.25)
    for (part, _), (shade, *_) in styled(dict.fromkeys(names)):
        values = [row.get(part, 0.0) for row in rows.values()]
        shares = [100 * v / wholes[name] if wholes[name] else 0.0 for name, v in zip(rows, values, strict=True)]
        figure.add_bar(
            x=shares if relative else values,
            y=list(map(safe, rows)),
            customdata=list(zip(values, shares, strict=True)),
            orientation="h",
            name=safe(part),
            marker=marker(Look(shade, "", part), theme),
            hovertemplate=f"<b>%{{y}}</b><br>{safe(part)}: {HOVER}<extra></extra>",
        )
    figure.update_layout(legend_traceorder="normal", margin_l=12)
    return figure.update_yaxes(autorange="reversed", showgrid=False, tickmode="linear", dtick=1)
