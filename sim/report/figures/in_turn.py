"""What a run takes as each part of its job joins: days, dollars, energy."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from sim.report.theme import Theme, colour, frame, safe
from sim.run import Measures
from sim.specs import InputError
from sim.specs.arguments import checked
from sim.units import digits3

GAP = 0.05
COLUMNS = (("days", "days", 1.0), ("cost_usd", "thousand USD", 1e3), ("energy_kwh", "MWh", 1e3))
"""A field of measures, the unit of its axis, and what one of it is."""


@checked
def in_turn(
    turns: Mapping[str, Measures], before: Mapping[str, Measures] | None = None, theme: Theme = "light"
) -> go.Figure:
    """Return days, dollars and energy of a run with their 80 % intervals, a row for each of `turns`, from the top.

    before: the same of another run, as open circles: what it was until something changed.

    Raises:
        InputError: there are no rows.
    """
    if not turns:
        raise InputError("turns", {}, "one row or more (sim.run.in_turn)")
    rows = list(dict.fromkeys(safe(name) for name in (*turns, *(before or {}))))
    figure = frame(theme, 130 + 44 * len(rows), "", "", margin={"l": 12, "r": 24, "t": 64, "b": 44})
    wide = (1 - GAP * (len(COLUMNS) - 1)) / len(COLUMNS)
    for n, (field, unit, one) in enumerate(COLUMNS):
        axis = f"x{n + 1}" if n else "x"
        for name, held, look in (("before", before, _open(theme)), ("now", turns, _full(theme))):
            if held:
                figure.add_scatter(**_marks(held, field, unit, one), **look, name=name, xaxis=axis, showlegend=n == 0)
        begin = n * (wide + GAP)
        style = {"domain": [begin, begin + wide], "anchor": "y", "rangemode": "tozero", "title": {"text": unit}}
        figure.update_layout({f"xaxis{n + 1 if n else ''}": style})
    figure.update_layout(showlegend=bool(before))
    return figure.update_yaxes(categoryorder="array", categoryarray=rows, range=[len(rows) - 0.5, -0.5])


def _full(theme: Theme) -> dict[str, Any]:
    shade = colour("forward", theme)
    return {"marker": {"color": shade, "size": 10}, "error_x_color": shade}


def _open(theme: Theme) -> dict[str, Any]:
    shade = colour("secondary", theme)
    look = {"color": shade, "size": 11, "symbol": "circle-open", "line": {"width": 2}}
    return {"marker": look, "error_x_color": shade}


def _marks(held: Mapping[str, Measures], field: str, unit: str, one: float) -> dict[str, Any]:
    """Return the marks of a column: where each row lies, how far its interval goes, and what it says."""
    known = [(name, run) for name, run in held.items() if getattr(run, field) is not None]
    values = [getattr(run, field) / one for _, run in known]
    ends = [[end / one for end in getattr(run, f"{field}_interval")] for _, run in known]
    return {
        "x": values,
        "y": [safe(name) for name, _ in known],
        "mode": "markers",
        "text": [f"{digits3(v)} {unit} ({digits3(a)}–{digits3(b)})" for v, (a, b) in zip(values, ends, strict=True)],
        "hovertemplate": "<b>%{y}</b><br>%{text}<extra></extra>",
        "error_x_array": [b - value for value, (_, b) in zip(values, ends, strict=True)],
        "error_x_arrayminus": [value - a for value, (a, _) in zip(values, ends, strict=True)],
        "error_x_symmetric": False,
    }
