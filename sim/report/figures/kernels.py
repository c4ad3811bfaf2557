"""Schedules of one kernel: who does which task, and what their costs say beside what was measured."""

from collections.abc import Sequence
from math import log10

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from sim.report.figures.accuracy import diagonal, ticks
from sim.report.numbers import time_unit
from sim.report.theme import HEIGHT, MARGIN, STYLES, Theme, colour, frame, mixed, safe
from sim.specs import InputError
from sim.specs.arguments import checked, numbers

MOST_LABELLED = 512
"""Tasks of a grid that are small enough to be numbered."""

MOST_WORKERS = 8
"""Shades that are told apart; further workers begin again."""


@checked
def tasks(table: NDArray[np.int64], theme: Theme = "light") -> go.Figure:
    """Return the grid of tasks, each in the shade of its worker, with the worker's number and the task's turn.

    table: row and column of every worker's tasks in order, [worker, task, 2].
    """
    workers, turns = table.shape[:2]
    rows, columns = table.reshape(-1, 2).max(axis=0) + 1
    worker, turn = np.full((rows, columns), -1), np.full((rows, columns), -1)
    at = tuple(np.moveaxis(table, -1, 0))
    worker[at], turn[at] = np.arange(workers)[:, None], np.arange(turns)[None, :]
    names = [STYLES[n % len(STYLES)][0] for n in range(MOST_WORKERS)]
    shades = [mixed(name, theme, 0.45) for name in names]
    steps = [(edge / MOST_WORKERS, shade) for n, shade in enumerate(shades) for edge in (n, n + 1)]
    figure = frame(theme, max(220, min(640, 90 + 30 * int(rows))), "column", "row", margin=MARGIN | {"t": 24})
    figure.add_heatmap(
        z=worker % MOST_WORKERS,
        zmin=0,
        zmax=MOST_WORKERS - 1,
        colorscale=steps,
        showscale=False,
        xgap=1,
        ygap=1,
        customdata=np.stack([worker, turn], axis=-1),
        text=[[f"{w}:{t}" for w, t in zip(*pair, strict=True)] for pair in zip(worker, turn, strict=True)],
        texttemplate="%{text}" if rows * columns <= MOST_LABELLED else None,
        textfont={"size": 10, "color": colour("text", theme)},
        hovertemplate="row %{y}, column %{x}<br>worker %{customdata[0]}, task %{customdata[1]} of it<extra></extra>",
    )
    figure.update_xaxes(showgrid=False, constrain="domain", dtick=max(1, int(columns) // 8))
    return figure.update_yaxes(autorange="reversed", showgrid=False, dtick=max(1, int(rows) // 8))


@checked
def schedules(
    predicted_s: Sequence[float],
    measured_s: Sequence[float],
    names: Sequence[str],
    first: int = 10,
    theme: Theme = "light",
    what: str = "schedules",
) -> go.Figure:
    """Return what costs say of every schedule over what it took (seconds), the costs' first ones marked.

    what: what they are, in the plural. The line is a perfect prediction, the band +-10 %; the star is the fastest.

    Raises:
        InputError: no schedule, or not a time above 0 of each.
    """
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise InputError("names", names, "a list of texts, one or more")
    said, took = _times("predicted_s", predicted_s, len(names)), _times("measured_s", measured_s, len(names))
    unit = time_unit(float(np.median(took)))
    ends = float(min(said.min(), took.min())) / 1.15, float(max(said.max(), took.max())) * 1.15
    figure = frame(theme, HEIGHT + 120, f"measured ({unit.name})", f"by its costs ({unit.name})")
    diagonal(figure, ends, unit, theme)
    order = np.argsort(said, kind="stable")
    groups = {
        safe(f"other {what}"): (order[first:], "other", "circle", 6),
        f"the costs' first {first}" if first > 1 else "the costs' pick": (order[:first], "forward", "diamond", 9),
        "the fastest": (np.array([took.argmin()]), "over", "star", 14),
    }
    for name, (chosen, shade, symbol, size) in groups.items():
        figure.add_scatter(
            x=took[chosen] / unit.scale,
            y=said[chosen] / unit.scale,
            name=name,
            mode="markers",
            marker={
                "symbol": symbol,
                "size": size,
                "color": colour(shade, theme),
                "line": {"width": 0.5, "color": colour("edge", theme)},
            },
            text=[safe(names[n]) for n in chosen],
            hovertemplate="<b>%{text}</b><br>measured %{x:.4~r}, by its costs %{y:.4~r}<extra></extra>",
        )
    span, marks = [log10(end / unit.scale) for end in ends], ticks(ends, unit)
    for axis in (figure.update_xaxes, figure.update_yaxes):
        axis(type="log", range=span, tickvals=marks, ticktext=[f"{t:g}" for t in marks])
    return figure


def _times(path: str, values: Sequence[float], count: int) -> NDArray[np.float64]:
    """Return times on a logarithmic axis; raises InputError for what is none."""
    found = np.array(numbers(path, values), dtype=np.float64)
    if len(found) != count or not (found > 0).all():
        raise InputError(path, values, f"a number of seconds above 0 for each of the {count} names")
    return found
