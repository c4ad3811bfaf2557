"""A figure that stays in its place: redrawn in one message, with axes that only grow, pale where it is out of date."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go

from sim.report.theme import Theme
from sim.widgets.export import ExportBar
from sim.widgets.figure import Figure

CONFIG = {"showSendToCloud": False, "plotlyServerURL": "", "displaylogo": False}
UNWANTED = ("lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "select2d")
"""plotly.js would offer to upload the figure; a long bar of buttons would cover the legend."""

STALE = "trainsim-stale"
MIN_WIDTH = 500
"""Pixels of a figure in a column that is narrower, which scrolls: with less a legend covers its figure."""


class Canvas(w.VBox):
    """One plotly figure with buttons that export it. `plot` is its widget once it is drawn.

    width: in pixels, None before the browser has told; selects: whether points can be selected with a box.
    """

    def __init__(self, width: int | None = None, selects: bool = False) -> None:
        self.plot: Any = None
        self.width = width and max(MIN_WIDTH, width)
        self._drawing = False
        self._zoom: Callable[[tuple[float, float]], None] | None = None
        self._config = CONFIG | {"modeBarButtonsToRemove": UNWANTED[: -1 if selects else None]}
        self._theme: Theme | None = None
        self._source: Callable[[Theme], go.Figure] | None = None
        self.export = ExportBar(lambda theme: self._source(theme) if self._source else None)
        super().__init__([self.export], layout=w.Layout(overflow="auto hidden"))

    def draw(self, source: Callable[[Theme], go.Figure], theme: Theme, name: str, keep_ranges: bool = True) -> None:
        """Show what `source` draws, nothing where that is empty; `name` is that of exported files, without ending.

        With `keep_ranges` axes of the same title never shrink, so that a change is seen as one.
        """
        plot, fresh = self.plot, source(theme)
        self._source, self.export.name = source, name
        fresh.update_layout(width=self.width, modebar_orientation="v")
        if plot and keep_ranges:
            _grow(plot, fresh)
        empty = not (fresh.data or fresh.layout.annotations)
        self.layout.display = "none" if empty else None
        if empty:  # what it has shown stays behind it: plotly.js fails on changes of a figure that is not laid out
            return
        if not (plot and self.width):  # whole: changes sent before the browser has loaded plotly.js would be lost
            self.plot, self._theme = Figure(fresh, self._config, partial(self.send_state, "children")), theme
            self._hear()
            self.children = (self.plot, self.export)
            if plot:
                plot.close()
            return
        self._drawing = True
        try:
            with plot.batch_update():
                if [t.type for t in plot.data] == [t.type for t in fresh.data] and plot.data:
                    for old, new in zip(plot.data, fresh.data, strict=True):
                        _put(old, new)
                else:
                    plot.data = []
                    plot.add_traces(fresh.data)
                if theme == self._theme:
                    fresh.layout.template = None  # the same again, and large
                # In place: a layout of its own would hear of no zoom.
                _put(plot.layout, fresh.layout, ("template",) if theme == self._theme else ())
                self._theme = theme
        finally:
            self._drawing = False

    def fill(self, width: int) -> None:
        """Make the figure as wide as its column."""
        self.width = max(MIN_WIDTH, width)
        if self.plot and self.plot.layout.width != self.width:
            self.plot.layout.width = self.width

    def stale(self, is_stale: bool) -> None:
        """Show the figure pale, as that of a previous plan, or as it is."""
        pale(self, is_stale)

    def on_zoom(self, what: Callable[[tuple[float, float]], None]) -> None:
        """Call `what` with the ends of the time axis when somebody zooms in the browser."""
        self._zoom = what
        self._hear()

    def _hear(self) -> None:
        def zoomed(layout: Any, ends: Any) -> None:
            del layout
            if self._zoom and not self._drawing and ends:
                self._zoom((float(ends[0]), float(ends[1])))

        if self._zoom and self.plot:
            self.plot.layout.on_change(zoomed, "xaxis.range")


def pale(part: w.DOMWidget, is_stale: bool) -> None:
    """Show a part of a panel pale, as that of a previous plan, or as it is."""
    (part.add_class if is_stale else part.remove_class)(STALE)


def _put(old: Any, new: Any, kept: Sequence[str] = ()) -> None:
    """Make `old` what `new` is: what it has more is taken away, but for what is `kept`.

    plotly's public way to the properties copies them all, long arrays too.
    """
    held, wanted = old._props or {}, new._props or {}
    beside = {"type", "uid", *kept}
    changed = {k: v for k, v in wanted.items() if k not in beside and not _equal(held.get(k), v)}
    old.update(changed | dict.fromkeys(held.keys() - wanted.keys() - beside), overwrite=True)


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and np.array_equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(v, other[k]) for k, v in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _grow(plot: Any, fresh: go.Figure) -> None:
    """Let axes of `fresh` reach as far as those of the figure that is shown, where they measure the same."""
    for name in (n for n in fresh.layout if n[:5] in ("xaxis", "yaxis") and n in plot.layout):
        old, new = plot.layout[name], fresh.layout[name]
        if old.range and new.range and (old.title.text, old.type) == (new.title.text, new.type):
            (a, b), (c, d) = old.range, new.range
            if all(isinstance(v, int | float) for v in (a, b, c, d)) and a <= b and c <= d:
                new.range = (min(a, c), max(b, d))
