"""A sweep in a notebook: how far it is, the best so far, its points and their table; start, pause, resume, filters."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go

from sim.report import figures
from sim.report import markup as m
from sim.report.swept import Swept, axis_label, glimpse
from sim.report.swept_table import COLUMNS, Box, best_words, chosen_points, configurations
from sim.report.theme import HEIGHT, Theme, colour, frame
from sim.specs import InputError
from sim.specs.arguments import checked
from sim.sweep.grid import Grid
from sim.sweep.run import sweep
from sim.sweep.store import MOST_READ, Counts, Store
from sim.sweep.writer import discard
from sim.units import digits3, grouped, many, percent
from sim.widgets.background import Progress
from sim.widgets.background_bar import BackgroundBar, State
from sim.widgets.canvas import Canvas
from sim.widgets.knob import STYLE
from sim.widgets.names import named
from sim.widgets.width import WidthSensor

EVERY_S = 1.0
LOOKS = 60
"""Looks without anything new after which nobody else seems to write the store."""

CANCEL = "Cancel"
MOST_LISTED = 20
MOST_CHOSEN = 1_000
"""Values of an axis to filter by: of more, a browser's list is slow to open and no one finds anything in it."""


def sweep_job(grid: Grid, store: str, *, progress: Progress) -> float:
    """Run a grid into a store, from where that is, and return the seconds: work for `Job.start`."""

    def tell(now: Any) -> None:
        progress("sweeping", now.counts.done, now.counts.total)

    found = sweep(grid, store, resume=Path(store).exists(), progress=tell)
    return float(found.seconds)


class SweepView(w.VBox):
    """A sweep and its store, which may be there already, or be written by another program at the moment.

    Pause ends the processes, and what is done stays in the store; Resume goes on from there. Cancel ends them too, and
    pressed once more it discards what is done: the store's file, of a sweep that was started here and that nobody else
    writes. `filters` (values of axes) choose among the points drawn, a box drawn in the figure (`brush`) among the rows
    of the table.
    """

    def __init__(self, grid: Grid | str | Path, store: str | Path) -> None:
        self.path, self.grid = Path(store), grid if isinstance(grid, Grid) else Grid.load(grid)
        self.filters: dict[str, tuple[Any, ...]] = {}
        self.brush: Box | None = None
        self.cancel = w.Button(description=CANCEL, disabled=True, layout=w.Layout(width="auto", flex="0 0 auto"))
        ended = ("Pause", "paused")
        self.bar = BackgroundBar("Start", self._asked, lambda _: self.refresh(), self._became, ended, (self.cancel,))
        self._said, self._cards, self._table, self._reasons = (w.HTML() for _ in range(4))
        self._said.layout.min_height = "52px"  # two lines: what is below stays in its place
        paths = [axis for axis in self.grid.numbering.axes if axis.path]
        axes = {axis.path: axis.values for axis in paths if 1 < len(axis.values) <= MOST_CHOSEN}
        self.axis = w.Dropdown(options=list(axes), description="filter by", layout=w.Layout(width="420px"))
        self.values = named(w.SelectMultiple(rows=4, layout=w.Layout(width="160px")), "values to filter by")
        names = [*(axis.path for axis in paths), *COLUMNS]
        wide = w.Layout(width="420px")
        self.columns = w.SelectMultiple(options=names, value=names, rows=4, description="columns", layout=wide)
        self.clear = w.Button(layout=w.Layout(width="auto"))
        self._axes, self.canvas, self.sensor = axes, Canvas(selects=True), WidthSensor()
        self._drawn: dict[str, Any] = {}
        self._seen: Any = None
        self._looks = 0
        chosen = w.HBox([self.axis, self.values, self.clear], layout=w.Layout(flex_flow="row wrap"))
        shown = [self.bar, self._said, self._cards, chosen, self.canvas, self.columns, self._table, self._reasons]
        super().__init__([w.HTML(STYLE), self.sensor, *shown])
        self.add_class("trainsim")
        self.axis.observe(lambda _: self._list(), names="value")
        self.values.observe(self._filtered, names="value")
        self.columns.observe(lambda _: self.refresh(), names="value")
        self.clear.on_click(lambda _: self._cleared())
        self.cancel.on_click(lambda _: self._cancelled())
        self.sensor.tell(self.canvas.fill, self.refresh)
        self._list()
        self.refresh()
        self._watch()

    @property
    def message(self) -> str:
        """How far the sweep is, as HTML."""
        return str(self._said.value)

    def refresh(self) -> None:
        """Look at the store and show what is in it."""
        self.clear.description = f"Clear filters ({len(self.filters) + (self.brush is not None)})"
        if not self.path.exists():
            self._said.value = m.paragraph(f"{many(self.grid.size, 'configuration')}, none done yet.", "say")
            self._cards.value = _cards(Counts(self.grid.size, 0, 0, 0, 0, 0.0, None), None, self._state_words)
            self._table.value = self._reasons.value = ""
            self.bar.offer("Start")
            self._draw_words("nothing in the store yet: press Start")
            return
        try:
            with Store(self.path) as store:
                if not self._holds(store):
                    raise InputError(str(self.path), "the store of another grid", "a new file, or that of this grid")
                found = glimpse(store, among=self.filters, most=MOST_READ * (1 if self.bar.state == "running" else 4))
        except InputError as error:
            self._said.value = m.paragraph(str(error), "say wrong")
            return
        left = found.counts.left
        if self.bar.state != "running":
            self.bar.offer("Resume" if 0 < left < found.counts.total else "Start")
        self._said.value = m.paragraph(_words(found), "say")
        self._cards.value = _cards(found.counts, self.bar.pace, self._state_words)
        self._draw(found)
        self._table.value = self._rows(found)
        self._reasons.value = _reasons(found)

    @property
    def _state_words(self) -> str:
        return {"running": "no rate yet", "cancelled": "paused", "failed": "stopped"}.get(
            self.bar.state, "not started here"
        )

    def _draw(self, found: Swept) -> None:
        """Draw the points, or say that there are none; an axis that somebody has zoomed stays."""
        if not len(found.points["number"]):
            none = "no configuration has a prediction" + " yet" * (found.counts.left > 0)
            self._draw_words("no point has these values" if self.filters and found.counts.ok else none)
            return
        axes, zoomed = ("xaxis", "yaxis"), {}
        for name in axes:
            shown = self.canvas.plot.layout[name].range if name in self._drawn else None
            if shown and shown != self._drawn[name]:
                zoomed[name] = shown

        def source(theme: Theme) -> go.Figure:
            figure = figures.swept_points(found, theme).update_layout(dragmode="select", newselection_mode="immediate")
            figure.update_traces(name="front of the points drawn", selector={"name": "front"})
            for name, ends in zoomed.items():
                figure.layout[name].range = ends
            return _brushed(figure, self.brush, theme)

        self.canvas.draw(source, self.sensor.look, self.path.stem, keep_ranges=self.bar.state == "running")
        self._drawn = {name: self.canvas.plot.layout[name].range for name in axes if name not in zoomed} | {
            name: self._drawn[name] for name in zoomed
        }
        for trace in self.canvas.plot.data:
            if not trace._select_callbacks:
                trace.on_selection(self._selected)
                trace.on_deselect(lambda *_: self._brush(None))

    def _draw_words(self, words: str) -> None:
        """Show an empty figure that says why it is empty."""
        self._drawn = {}
        self.canvas.draw(partial(_nothing, words), self.sensor.look, self.path.stem, keep_ranges=False)

    def _selected(self, trace: Any, points: Any, selector: Any) -> None:
        del trace, points
        if selector is None or not hasattr(selector, "xrange"):
            return
        units = self.canvas.plot.layout.meta
        memory, time = ([v * units[name] for v in sorted(ends)] for name, ends in (
            ("bytes", selector.xrange), ("seconds", selector.yrange)
        ))  # fmt: skip
        self._brush((*memory, *time))

    def _brush(self, box: Any) -> None:
        known = box is not None and self.brush is not None and np.allclose(box, self.brush, rtol=1e-6, atol=0)
        if not known and box != self.brush:
            self.brush = box
            self.refresh()

    def _rows(self, found: Swept) -> str:
        points, of = chosen_points(found, self.brush, self.filters, MOST_LISTED)
        if not points:
            return m.paragraph("No point lies in the box." if self.brush else "", "say")
        where = "in the box" if self.brush else "drawn"
        words = f"The best {len(points)} of {grouped(of)} points {where}, those that fit first."
        table = configurations(points, self.columns.value)
        return f'<div class="data">{m.paragraph(words)}<div class="wide">{table}</div></div>'

    def _asked(self) -> Any:
        return sweep_job, (self.grid, str(self.path))

    def _cancelled(self) -> None:
        """End the sweep; pressed once more, or with nothing done, discard its store if nobody else writes it."""
        self.bar.cancel()
        done = self._done()
        label = f"Discard {grouped(done)} done" if done else CANCEL
        if done and self.cancel.description != label:  # others may have gone on since it was asked
            self.cancel.description = label
            return
        try:
            if done is not None:
                discard(self.path)
        except InputError as error:
            self.bar.reset(f"not discarded: {error}")
            return
        self.brush = None
        self.bar.reset("cancelled")

    def _done(self) -> int | None:
        """Return how many configurations the store has; None where there is none, or it is not this sweep's."""
        try:
            with Store(self.path) as store:
                return store.counts.done if self._holds(store) else None
        except InputError:
            return None

    def _holds(self, store: Store) -> bool:
        return store.head.digest == self.grid.digest or self.grid.extends(store.head.grid)

    def _became(self, state: State) -> None:
        self.cancel.description, self.cancel.disabled = CANCEL, state not in ("running", "cancelled")
        if state == "running" and self._looks >= LOOKS:
            self._looks = 0
            self._watch()
        self.refresh()

    def _watch(self) -> None:
        """Look at the store every now and then, while the sweep runs or somebody else seems to write it."""
        parts = [self.path, self.path.with_name(f"{self.path.name}-wal")]
        seen = [(p.stat().st_size, p.stat().st_mtime_ns) if p.exists() else None for p in parts]
        self._looks = 0 if seen != self._seen or self.bar.state == "running" else self._looks + 1
        if seen != self._seen and self._seen is not None:
            self.refresh()
        self._seen = seen
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nobody watches
            self._looks = LOOKS
        if self._looks < LOOKS:
            loop.call_later(EVERY_S, self._watch)

    def _list(self) -> None:
        """Offer the values of the axis that is chosen."""
        values = self._axes.get(self.axis.value, ())
        self.values.options = [(axis_label(v), v) for v in values]
        self.values.value = self.filters.get(self.axis.value, ())

    def _filtered(self, change: Any) -> None:
        chosen = tuple(change["new"])
        if chosen == self.filters.get(self.axis.value, ()):
            return
        self.filters = {k: v for k, v in {**self.filters, self.axis.value: chosen}.items() if v}
        self.refresh()

    def _cleared(self) -> None:
        self.filters, self.brush = {}, None
        self._list()
        self.refresh()


def _brushed(figure: go.Figure, box: Box | None, theme: Theme) -> go.Figure:
    """Return the figure with a box in it, and what lies outside pale."""
    if box is None:
        # Where a box goes away plotly.js leaves points unselected, and draws it on unless others are selected.
        for trace in figure.data:
            trace.update(selectedpoints=np.arange(len(trace.x)), unselected_marker_opacity=trace.marker.opacity or 1)
        return figure
    size, time = figure.layout.meta["bytes"], figure.layout.meta["seconds"]
    x0, x1, y0, y1 = box[0] / size, box[1] / size, box[2] / time, box[3] / time
    for trace in figure.data:
        inside = (x0 <= trace.x) & (trace.x <= x1) & (y0 <= trace.y) & (trace.y <= y1)
        trace.selectedpoints = np.flatnonzero(inside)
    return figure.add_selection(
        type="rect", x0=x0, x1=x1, y0=y0, y1=y1, xref="x", yref="y", line={"color": colour("text", theme)}
    )


def _words(found: Swept) -> str:
    counts = found.counts
    said = f"{grouped(counts.done)} of {many(counts.total, 'configuration')} done, {grouped(counts.left)} left."
    if found.top:
        return f"{said} Best{' so far' if counts.left else ''}: {best_words(found.top[0], found.objective)}."
    return f"{said} Nothing fits{' so far' if counts.left else ''}." if counts.done else said


def _cards(counts: Counts, pace: float | None, words: str) -> str:
    """Return what became of the configurations, and how fast it goes. pace: configurations a second; words: said
    where none is known."""
    going = f"{digits3(pace)}/s, {grouped(round(counts.left / pace))} s left" if pace else words
    items = [
        ("Done", grouped(counts.done), f"{percent(counts.done / counts.total)} of {grouped(counts.total)}"),
        ("Predicted", grouped(counts.ok), "with a time and a peak"),
        ("Impossible", grouped(counts.impossible), "refused by a rule"),
        ("Failed", grouped(counts.failed), "errors of the program"),
        ("Left out", grouped(counts.filtered), "by the grid's filters"),
        ("Left", grouped(counts.left), going if counts.left else "finished"),
    ]
    return m.cards(items)


def _reasons(found: Swept) -> str:
    if not found.reasons:
        return ""
    ordered = sorted(found.reasons.items(), key=lambda item: (-item[1], item[0]))
    rows = [[outcome, reason, grouped(n)] for (outcome, reason), n in ordered[:MOST_LISTED]]
    counted, every = sum(found.reasons.values()), found.counts.impossible + found.counts.failed
    words = [f"{grouped(len(ordered) - len(rows))} further reasons."] if len(ordered) > len(rows) else []
    words += [f"Counted are {grouped(counted)} of {grouped(every)}, spread evenly."] if counted < every else []
    heads = [("outcome", ""), ("why configurations have no prediction", ""), ("how many", "")]
    return f'<div class="data">{m.table(heads, rows)}{m.paragraph(" ".join(words)) if words else ""}</div>'


def _nothing(words: str, theme: Theme) -> Any:
    figure = frame(theme, HEIGHT + 120, "", "").update_xaxes(visible=False).update_yaxes(visible=False)
    place: dict[str, Any] = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
    return figure.add_annotation(text=words, showarrow=False, **place)


@checked
def watch_sweep(grid: Grid | str | Path, store: str | Path) -> SweepView:
    """Return a live view of the sweep of a grid, or of a grid file, into a store; nothing runs before Start is pressed.

    Raises:
        InputError: the grid file is wrong.
    """
    return SweepView(grid, store)
