"""The tabs of a panel: each a sentence and its figures, drawn when it is open and only where something has changed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

from sim.report import markup as m
from sim.report.figures.tornado import BETTER
from sim.report.numbers import time_unit
from sim.report.sections import certainty_section, peak_table, term_table
from sim.report.theme import Theme
from sim.widgets.canvas import Canvas
from sim.widgets.views import VIEWS, Draw, Scene, View, words

PADDING = 36
"""Pixels between the column and the figure in a tab: padding and border on both sides."""

MIN_WIDTH = 320
NAMED = {"best": -1, "baseline": -2}
"""Points of a search that stand for themselves, in place of the index of a configuration."""

WHOLE = 0.98
"""Share of the time axis from which on a part of it is all of it."""


class Pane(w.VBox):
    """One tab: `scene` is what its figures show.

    There is no figure before it is drawn: each loads a plotly.js of its own, and nine at once keep a browser busy for
    longer than it waits for a widget.
    """

    def __init__(self, view: View, *above: w.Widget) -> None:
        self.view = view
        self.scene: Scene | None = None
        self.width: int | None = None
        self._words = w.HTML()
        self.canvases: list[Canvas] = []
        self._above = (self._words, *above)
        super().__init__(self._above)

    def draw(self, scene: Scene, name: str, keep_ranges: bool) -> bool:
        """Draw what has changed since the last time; return whether anything had. name: of exported files."""
        self._words.value = m.paragraph(words(self.view.title, scene), "say")
        if self.scene is not None and self.view.key(self.scene) == self.view.key(scene):
            return False
        self.scene, new = scene, not self.canvases
        if new:
            self.canvases = [Canvas(self.width) for _ in self.view.draws]
        for canvas, draw in zip(self.canvases, self.view.draws, strict=True):
            source = partial(_in_theme, draw, scene)
            canvas.draw(source, scene.theme, name, keep_ranges and self.view.grows and scene.window is None)
        if new:  # drawn before they are shown, so that the browser draws them once
            self.children = (*self._above, *self.canvases)
        return True

    def fill(self, width: int) -> None:
        """Make the figures as wide as the column, also those to come."""
        self.width = width
        for canvas in self.canvases:
            canvas.fill(width)


def _in_theme(draw: Draw, scene: Scene, theme: Theme) -> go.Figure:
    return draw(replace(scene, theme=theme))


class Data(w.VBox):
    """The numbers behind the figures, what they rest on, and code that computes them again."""

    def __init__(self) -> None:
        self._html = w.HTML()
        super().__init__([self._html])

    def draw(self, scene: Scene, code: str) -> None:
        """Write everything about the scene's plan."""
        step = scene.step
        steps = {"A": scene.pinned, "B": step} if scene.pinned else {"": step}
        self._html.value = "".join(
            (
                '<div class="data">',
                m.section("Exposed time by cause", term_table({k: s for k, s in steps.items() if s})),
                m.section("Peak memory of every pipeline rank", peak_table(step)),
                certainty_section(step),
                m.section("The same in code", m.code(code)),
                "</div>",
            )
        )


class Panes(w.Tab):
    """All tabs; only the open one is drawn.

    look: called when the reader looks at another rank or part of the step; choose: when a point of a search is clicked
    (its index, whether with shift); better: when a bar of the tornado is (the parameter, whether it is the better one).
    """

    def __init__(
        self,
        look: Callable[..., None],
        choose: Callable[[int, bool], None],
        better: Callable[[str, bool], None],
    ) -> None:
        self.rank = w.Dropdown(options=[("fullest rank", None)], layout=w.Layout(width="160px"))
        self.panes = {v.title: Pane(v, *([self.rank] if v.title == "Memory" else [])) for v in VIEWS}
        self.data = Data()
        self._look, self._choose, self._better, self.is_stale = look, choose, better, False
        super().__init__([*self.panes.values(), self.data], titles=[*self.panes, "Data"])
        self.selected_index = 0
        self.rank.observe(lambda _: look(stage=self.rank.value), names="value")

    @property
    def current(self) -> str:
        """The title of the open tab."""
        return str(self.titles[self.selected_index or 0])

    def show(self, scene: Scene, name: str, code: str, keep_ranges: bool) -> None:
        """Draw the open tab. name: of exported files, code: that computes what is shown."""
        if self.current == "Data":
            self.data.draw(scene, code)
            return
        ranks = [("fullest rank", None), *((f"rank {r}", r) for r in range(len(scene.step.memory)))]
        if list(self.rank.options) != ranks and self.current == "Memory":
            self.rank.options = ranks
        pane = self.panes[self.current]
        new = not pane.canvases
        if not pane.draw(scene, f"{name}-{self.current.lower()}", keep_ranges):
            return
        if new:
            for canvas in pane.canvases:
                canvas.stale(self.is_stale)
            if self.current == "Timeline":
                pane.canvases[0].on_zoom(self._zoomed)
        clicked = {"Front": self._clicked, "Tornado": self._tried, "Memory": self._looked_at}.get(self.current)
        for trace in pane.canvases[0].plot.data if clicked else ():
            trace.on_click(clicked)

    def fill(self, width: int) -> None:
        """Make every figure as wide as the tab that holds it."""
        for pane in self.panes.values():
            pane.fill(max(MIN_WIDTH, width - PADDING))

    def stale(self, is_stale: bool) -> None:
        """Show the figures pale, as those of a previous plan, or as they are."""
        self.is_stale = is_stale
        for pane in self.panes.values():
            for canvas in pane.canvases:
                canvas.stale(is_stale)

    def _zoomed(self, ends: tuple[float, float]) -> None:
        scene = self.panes["Timeline"].scene
        if scene is None:
            return
        whole = scene.step.timeline.makespan * 1e-9
        scale = time_unit(scene.window[1] if scene.window else whole).scale
        low, high = max(0.0, ends[0] * scale), min(whole, ends[1] * scale)
        self._look(window=None if high - low > WHOLE * whole or high <= low else (low, high))

    def _clicked(self, trace: Any, points: Any, state: Any) -> None:
        which = NAMED.get(trace.name)
        if points.point_inds and (which or trace.customdata is not None):
            flat = which or int(trace.customdata[points.point_inds[0]][-1])
            self._choose(flat, bool(getattr(state, "shift", False)))

    def _tried(self, trace: Any, points: Any, state: Any) -> None:
        del state
        if points.point_inds:
            self._better(str(trace.customdata[points.point_inds[0]]), trace.name == BETTER.label)

    def _looked_at(self, trace: Any, points: Any, state: Any) -> None:
        del trace, state
        if points.xs and points.xs[0] in [value for _, value in self.rank.options]:
            self.rank.value = int(points.xs[0])
