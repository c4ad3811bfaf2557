"""A sweep in a notebook: how far it is, the best so far, its points; start, pause, resume, and filters by axis."""

import asyncio
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as w

from sim.report import figures
from sim.report import markup as m
from sim.report.swept import glimpse, swept
from sim.report.theme import HEIGHT, Theme, frame
from sim.specs import InputError
from sim.specs.arguments import checked
from sim.sweep.grid import Grid
from sim.sweep.outcome import OUTCOMES
from sim.sweep.run import sweep
from sim.sweep.store import Store
from sim.units import digits3, seconds
from sim.widgets.background import Progress
from sim.widgets.background_bar import BackgroundBar, State
from sim.widgets.canvas import Canvas
from sim.widgets.knob import STYLE
from sim.widgets.panes import MIN_WIDTH
from sim.widgets.width import WidthSensor

EVERY_S = 1.0
MOST_LISTED = 10


def sweep_job(grid: str, store: str, *, progress: Progress) -> float:
    """Run a grid file into a store, from where that is, and return the seconds: work for `Job.start`."""

    def tell(now: Any) -> None:
        progress("sweeping", now.counts.done, now.counts.total)

    found = sweep(Grid.load(grid), store, resume=Path(store).exists(), progress=tell)
    return float(found.seconds)


class SweepView(w.VBox):
    """A sweep and its store, which may be there already, or be written by another program at the moment.

    Pause ends the processes; Start goes on where the store is. Filters choose among the points drawn.
    """

    def __init__(self, grid: str | Path, store: str | Path) -> None:
        self.file, self.path = Path(grid), Path(store)
        self.grid = Grid.load(self.file)
        self.filters: dict[str, tuple[Any, ...]] = {}
        self.bar = BackgroundBar("Start or resume", self._asked, lambda _: self.refresh(), self._became)
        self._said, self._reasons = w.HTML(), w.HTML()
        axes = {axis.path: axis.values for axis in self.grid.numbering.axes if axis.path and len(axis.values) > 1}
        self.axis = w.Dropdown(options=list(axes), description="filter by", layout=w.Layout(width="420px"))
        self.values = w.SelectMultiple(rows=4, layout=w.Layout(width="160px"))
        self.clear = w.Button(layout=w.Layout(width="auto"))
        self._axes, self.canvas, self.sensor = axes, Canvas(), WidthSensor()
        chosen = w.HBox([self.axis, self.values, self.clear], layout=w.Layout(flex_flow="row wrap"))
        super().__init__([w.HTML(STYLE), self.sensor, self.bar, self._said, chosen, self.canvas, self._reasons])
        self.add_class("trainsim")
        self.axis.observe(lambda _: self._list(), names="value")
        self.values.observe(self._filtered, names="value")
        self.clear.on_click(lambda _: self._cleared())
        self.sensor.observe(lambda _: self.canvas.fill(max(MIN_WIDTH, self.sensor.width)), names="width")
        self.sensor.observe(lambda _: self.refresh(), names="theme")
        self._list()
        self.refresh()

    @property
    def message(self) -> str:
        """How far the sweep is, as HTML."""
        return str(self._said.value)

    def refresh(self) -> None:
        """Look at the store and draw what is in it."""
        theme: Theme = "dark" if self.sensor.theme == "dark" else "light"
        self.clear.description = f"Clear filters ({len(self.filters)})"
        if not self.path.exists():
            self._said.value = m.paragraph(f"{self.grid.size:,} configurations, none done yet.", "say")
            self.canvas.draw(_nothing, theme, self.file.stem, keep_ranges=False)
            return
        try:
            with Store(self.path) as store:
                found = glimpse(store, among=self.filters)
                whole = swept(store) if found.counts.left == 0 and self.bar.state != "running" else None
        except InputError as error:
            self._said.value = m.paragraph(str(error), "say wrong")
            return
        self._said.value = _words(found.counts, found.top)
        self.canvas.draw(lambda t: figures.swept_points(found, t), theme, self.file.stem, keep_ranges=False)
        if whole:
            listed = sorted(whole.reasons.items(), key=lambda item: -item[1])[:MOST_LISTED]
            rows = [[outcome, reason, f"{n:,}"] for (outcome, reason), n in listed]
            heads = [("outcome", ""), ("why configurations have no prediction", ""), ("how many", "")]
            self._reasons.value = f'<div class="data">{m.table(heads, rows)}</div>' if rows else ""

    def _asked(self) -> Any:
        return sweep_job, (str(self.file), str(self.path))

    def _became(self, state: State) -> None:
        if state == "running":
            self._watch()
        else:
            self.refresh()

    def _watch(self) -> None:
        """Look at the store every now and then while the sweep runs."""
        if self.bar.state != "running":
            return
        self.refresh()
        with suppress(RuntimeError):  # no event loop: nobody watches
            asyncio.get_running_loop().call_later(EVERY_S, self._watch)

    def _list(self) -> None:
        """Offer the values of the axis that is chosen."""
        values = self._axes.get(self.axis.value, ())
        self.values.options = [(digits3(v) if isinstance(v, float) else str(v), v) for v in values]
        self.values.value = self.filters.get(self.axis.value, ())

    def _filtered(self, change: Any) -> None:
        chosen = tuple(change["new"])
        if chosen == self.filters.get(self.axis.value, ()):
            return
        self.filters = {k: v for k, v in {**self.filters, self.axis.value: chosen}.items() if v}
        self.refresh()

    def _cleared(self) -> None:
        self.filters = {}
        self._list()
        self.refresh()


def _words(counts: Any, top: Any) -> str:
    each = ", ".join(f"{getattr(counts, name):,} {name}" for name in OUTCOMES if getattr(counts, name))
    done, total, left = (f"{n:,}" for n in (counts.done, counts.total, counts.left))
    said = f"{done} of {total} configurations done ({each}), {left} left."
    if top:
        best = top[0]
        named = ", ".join(f"{path} {value}" for path, value in best.values.items())
        said += f" Best so far: {seconds(best.numbers['step_time_s'])} a step with {named}."
    return f"<p class='say'>{escape(said)}</p>"


def _nothing(theme: Theme) -> Any:
    figure = frame(theme, HEIGHT, "", "").update_xaxes(visible=False).update_yaxes(visible=False)
    place: dict[str, Any] = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
    return figure.add_annotation(text="nothing in the store yet: press Start", showarrow=False, **place)


@checked
def watch_sweep(grid: str | Path, store: str | Path) -> SweepView:
    """Return a live view of the sweep of a grid file into a store; nothing runs before Start is pressed.

    Raises:
        InputError: the grid file is wrong.
    """
    return SweepView(grid, store)
