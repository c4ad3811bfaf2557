"""A number for every pair of two sizes, as a grid of shaded cells with the number in them."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from sim.report.theme import MARGIN, Theme, colour, frame, mixed, safe
from sim.specs.arguments import checked

MOST = 0.6
"""Share of the colour in the cells that are farthest from the middle; numbers stay readable on it."""


@checked
def grid(
    table: Mapping[str, Mapping[str, float]],
    x_title: str,
    y_title: str,
    middle: float = 1.0,
    theme: Theme = "light",
) -> go.Figure:
    """Return a cell for every number: row -> column -> number, the first row at the bottom.

    Above `middle` cells are shaded in one colour, below it in another, the more the farther away.
    """
    rows, columns = list(table), list(dict.fromkeys(name for row in table.values() for name in row))
    values = [[row.get(name) for name in columns] for row in table.values()]
    far = max((abs(v - middle) for row in values for v in row if v is not None), default=0.0) or 1.0
    shades = [mixed("backward", theme, MOST), colour("page", theme), mixed("forward", theme, MOST)]
    figure = frame(theme, 120 + 34 * len(rows), x_title, y_title, margin=MARGIN | {"t": 24})
    hover = f"{safe(y_title)} %{{y}}, {safe(x_title)} %{{x}}: %{{z:.3f}}<extra></extra>"
    return cells(figure, columns, rows, values, (middle - far, middle + far), shades, "%{z:.2f}", hover, theme)


def cells(
    figure: go.Figure,
    columns: Sequence[str],
    rows: Sequence[str],
    values: Sequence[Sequence[float | None]],
    ends: tuple[float, float],
    shades: Sequence[str],
    text: str,
    hover: str,
    theme: Theme,
) -> go.Figure:
    """Add a shaded cell with its number for every row and column; `shades` run evenly from one end to the other."""
    figure.add_heatmap(
        x=list(map(safe, columns)),
        y=list(map(safe, rows)),
        z=values,
        zmin=ends[0],
        zmax=ends[1],
        colorscale=[(n / (len(shades) - 1), shade) for n, shade in enumerate(shades)],
        showscale=False,
        xgap=1,
        ygap=1,
        texttemplate=text,
        textfont={"color": colour("text", theme)},
        hovertemplate=hover,
    )
    figure.update_xaxes(type="category", showgrid=False)
    return figure.update_yaxes(type="category", showgrid=False, tickmode="linear", dtick=1)
