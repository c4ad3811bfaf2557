"""How many times as long: what plans that other searches find take, or ours without an idea, over our plan's time."""

from collections.abc import Mapping

import plotly.graph_objects as go

from sim.report.figures.throughput import styled
from sim.report.theme import Theme, colour, frame, safe
from sim.specs.arguments import checked


@checked
def factors(
    lines: Mapping[str, Mapping[str, float]],
    x_title: str,
    published: Mapping[str, float] | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Return a marker for every factor, one row for each of what the lines are about, in their order.

    lines: name -> row -> factor; published: a name of `lines` -> a factor that is drawn as a dotted line beside it.

    Raises:
        ValueError: more lines than styles tell apart.
    """
    rows = list(dict.fromkeys(row for line in lines.values() for row in line))
    figure = frame(theme, 150 + 26 * max(3, len(rows)), x_title, "", margin={"l": 12, "r": 24, "t": 72, "b": 44})
    for (name, line), (shade, symbol, _) in styled(lines):
        figure.add_scatter(
            x=list(line.values()),
            y=[safe(row) for row in line],
            name=safe(name),
            mode="markers",
            marker={"color": colour(shade, theme), "symbol": symbol, "size": 10, "opacity": 0.85},
            hovertemplate=f"<b>%{{y}}</b><br>{safe(name)}: %{{x:.3f}}<extra></extra>",
        )
        if name in (published or {}):
            at = (published or {})[name]
            figure.add_vline(x=at, line={"color": colour(shade, theme), "dash": "dot", "width": 1.5})
    figure.add_vline(x=1, line={"color": colour("secondary", theme), "width": 1})
    order = [safe(row) for row in rows]
    return figure.update_yaxes(categoryorder="array", categoryarray=order, range=[len(order) - 0.5, -0.5], dtick=1)
