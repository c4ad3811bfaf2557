"""What each cost term is worth: a heat map of terms against sources."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from sim.report.numbers import signed
from sim.report.theme import Theme, colour, frame, safe
from sim.specs.arguments import checked
from sim.validation.ablation import Ablated

MOST = 10.0
"""Percentage points at which the colour stops growing."""


@checked
def ablation(rows: Sequence[Ablated], theme: Theme = "light") -> go.Figure:
    """Return by how many percentage points the bias-removed error of each source grows without each term.

    The row of `term` "" holds the errors with every term. Less than a tenth of a point is left blank.
    """
    sources = list(dict.fromkeys(row.source for row in rows))
    terms = list(dict.fromkeys(row.words for row in rows if row.term))
    known = {(row.words, row.source): row for row in rows}
    whole = {row.source: row.mape_debiased for row in rows if not row.term}
    change = np.array([[known[term, s].mape_debiased - whole[s] for s in sources] for term in terms])
    figure = frame(theme, 150 + 26 * max(4, len(terms)), "", "", margin={"t": 120, "b": 16})
    figure.add_heatmap(
        z=change,
        x=[f"{safe(s.split(' (')[0])}<br>{whole[s]:.1f} %" for s in sources],
        y=terms,
        zmin=-MOST,
        zmax=MOST,
        colorscale=[(0.0, colour("backward", theme)), (0.5, colour("page", theme)), (1.0, colour("forward", theme))],
        colorbar={"title": {"text": "points"}, "thickness": 10},
        xgap=1,
        ygap=1,
        text=[["" if abs(v) < 0.1 else signed(v, 1) for v in line] for line in change],
        texttemplate="%{text}",
        hovertemplate="<b>%{y}</b><br>%{x}<br>%{z:+.2f} points without it<extra></extra>",
    )
    figure.update_xaxes(side="top", tickangle=-30, showgrid=False)
    return figure.update_yaxes(autorange="reversed", showgrid=False, tickmode="linear", dtick=1)
