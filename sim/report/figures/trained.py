"""A stretch of training as one timeline."""

import numpy as np
import plotly.graph_objects as go

from sim.report.figures.gantt import LOOK_OF_KIND, NAMES, Shown, draw, height
from sim.report.figures.timeline import spread
from sim.report.numbers import time_unit
from sim.report.stretch import bars
from sim.report.theme import Theme, frame
from sim.run.trained import Trained
from sim.specs import InputError
from sim.specs.arguments import checked


@checked
def trained(
    trained: Trained, window: tuple[float, float] | None = None, ranks: int = 4, theme: Theme = "light"
) -> go.Figure:
    """Return what training, data and checkpoints did, row by row, over the same time.

    window: the part to show, in seconds from the begin; None is all of it. Short ones show the passes of at most
    `ranks` pipeline ranks, longer ones a bar a step. Rows of data show the first workers of the busiest node.

    Raises:
        InputError: the window is empty or outside of what was simulated.
    """
    begin, finish = window or (0.0, trained.seconds)
    if not 0 <= begin < finish or begin >= trained.seconds:
        raise InputError("window", (begin, finish), f"from 0 to {trained.seconds:g} s, the begin before the end")
    span = round(begin * 1e9), round(finish * 1e9)
    found = bars(trained, span, spread(trained.repeated.schedule.ranks, ranks))
    rows = list(dict.fromkeys(bar.row for bar in found))
    unit = time_unit(finish)
    figure = frame(theme, height(len(rows)), f"time ({unit.name})", "", barmode="overlay", bargap=0.15)
    looks = [NAMES.index(bar.look) if bar.kind is None else LOOK_OF_KIND[bar.kind] for bar in found]
    nothing = np.zeros(len(found), dtype=np.int64)
    shown = Shown(
        rows=rows,
        index=np.arange(len(found)),
        row=np.array([rows.index(bar.row) for bar in found], dtype=np.int64),
        rank=nothing,
        start=np.array([bar.start for bar in found], dtype=np.int64),
        end=np.array([bar.end for bar in found], dtype=np.int64),
        look=np.array(looks, dtype=np.int64),
        group=nothing,
        half=nothing,
        words=[bar.words for bar in found],
        groups=1,
        begin=span[0],
        finish=span[1],
        path=[],
    )
    draw(figure, shown, unit, theme, legend=shown.looks)
    return figure
