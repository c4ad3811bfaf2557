"""The tabs of a panel: each a sentence and its figures, drawn when it is open and only where something has changed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

from sim.report import markup as m
from sim.report.details import action_at, action_card, action_named, selection_card, term_card
from sim.report.figures.tornado import BETTER
from sim.report.numbers import time_unit
from sim.report.sections import certainty_section, peak_table, step_cards, term_table
from sim.report.theme import Theme
from sim.widgets.canvas import Canvas, pale
from sim.widgets.copying import CopyButton
from sim.widgets.names import named
from sim.widgets.views import VIEWS, Draw, Option, Scene, View, words

PADDING = 36
"""Pixels between the column and the figure in a tab: padding and border on both sides."""

NAMED = {"best": -1, "baseline": -2}
"""Points of a search that stand for themselves, in place of the index of a configuration."""

FULLEST = ("fullest rank", -1)
"""ipywidgets would show no choice at all where its value is None."""

COMPUTING = m.paragraph("computing …", "say")
WHOLE = 0.98
"""Share of the time axis from which on a part of it is all of it."""


class Pane(w.VBox):
    """One tab: `scene` is what its figures show, `detail` what a click on them has opened below.

    There is no figure before it is drawn: nine at once keep a browser busy.
    """

    def __init__(self, view: View, *above: w.Widget) -> None:
        self.view = view
        self.scene: Scene | None = None
        self.width: int | None = None
        self._words, self.detail = w.HTML(COMPUTING), w.HTML()
        self.canvases: list[Canvas] = []
        row = w.HBox(above, layout=w.Layout(flex_flow="row wrap"))
        self._above = (self._words, *([row] if above else []))
        super().__init__(self._above)

    def draw(self, scene: Scene, name: str, keep_ranges: bool) -> bool:
        """Draw what has changed since the last time; return whether anything had. name: of exported files."""
        drawn = self.scene is None or self.view.key(self.scene) != self.view.key(scene)
        if drawn:
            self._redraw(scene, name, keep_ranges)
        told = m.paragraph(words(self.view.title, scene), "say")  # last: it may say that it is computing
        self._words.value = told + (_both(scene) if self.view.title == "Compare" else "")
        return drawn

    def _redraw(self, scene: Scene, name: str, keep_ranges: bool) -> None:
        if self.scene is None or scene.step is not self.scene.step or scene.found is not self.scene.found:
            self.detail.value = ""
        self.scene, new = scene, not self.canvases
        if new:
            self.canvases = [Canvas(self.width, self.view.selects) for _ in self.view.draws]
        for canvas, draw in zip(self.canvases, self.view.draws, strict=True):
            source = partial(_in_theme, draw, scene)
            canvas.draw(source, scene.theme, name, keep_ranges and self.view.grows and scene.window is None)
        if new:  # drawn before they are shown, so that the browser draws them once
            self.children = (*self._above, *self.canvases, self.detail)

    def wait(self) -> None:
        """Say that what is asked for is being computed; what is shown is pale until it is there."""
        self._words.value = COMPUTING
        for canvas in self.canvases:
            canvas.stale(True)

    def stale(self, is_stale: bool) -> None:
        """Show figures, and what is said of them, pale as those of a previous plan, or as they are."""
        for part in (self._words, self.detail, *self.canvases):
            pale(part, is_stale)

    def explain(self, html: str) -> None:
        """Show what a click on the figures asks for, below them."""
        self.detail.value = f'<div class="data">{html}</div>' if html else ""

    def fill(self, width: int) -> None:
        """Make the figures as wide as the column, also those to come."""
        self.width = width
        for canvas in self.canvases:
            canvas.fill(width)


def _chooser(option: Option, look: Callable[..., None]) -> w.Dropdown:
    """Return a choice above a figure; what is chosen goes to `look` under the field's name."""
    box = w.Dropdown(
        options=list(option.choices), value=getattr(Scene, option.field), description=option.label,
        style={"description_width": "auto"}, layout=w.Layout(width="auto"),
    )  # fmt: skip
    box.observe(lambda change: look(**{option.field: change["new"]}), names="value")
    return box


def _in_theme(draw: Draw, scene: Scene, theme: Theme) -> go.Figure:
    return draw(replace(scene, theme=theme))


def _both(scene: Scene) -> str:
    """Return the cards of the plan that is compared with, and of the one shown."""
    steps = {"A": scene.pinned, "B": scene.step} if scene.pinned else {}
    return "".join(m.heading(name) + step_cards(step) for name, step in steps.items() if step)


class Data(w.VBox):
    """The numbers behind the figures, what they rest on, and code that computes them again."""

    def __init__(self) -> None:
        self._html, self._copy = w.HTML(COMPUTING), CopyButton(label="Copy code")
        super().__init__([self._html, self._copy])

    def draw(self, scene: Scene, code: str) -> None:
        """Write everything about the scene's plan."""
        step, self._copy.text = scene.step, code
        steps = {"A": scene.pinned, "B": step} if scene.pinned else {"": step}
        self._html.value = "".join(
            (
                '<div class="data numbers">',
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
        self.rank = named(w.Dropdown(options=[FULLEST], layout=w.Layout(width="160px")), "curve over time of")
        self._selected: dict[str, list[int]] = {}
        self.options = {v.title: {o.field: _chooser(o, look) for o in v.options} for v in VIEWS}
        above = {v.title: [self.rank] if v.title == "Memory" else self.options[v.title].values() for v in VIEWS}
        self.panes = {v.title: Pane(v, *above[v.title]) for v in VIEWS}
        self.data = Data()
        self._look, self._choose, self._better, self.is_stale = look, choose, better, False
        super().__init__([*self.panes.values(), self.data], titles=[*self.panes, "Data"])
        self.selected_index = 0
        self.rank.observe(self._ranked, names="value")

    @property
    def current(self) -> str:
        """The title of the open tab."""
        return str(self.titles[self.selected_index or 0])

    def show(self, scene: Scene, name: str, code: str, keep_ranges: bool) -> None:
        """Draw the open tab. name: of exported files, code: that computes what is shown."""
        if self.current == "Data":
            self.data.draw(scene, code)
            return
        ranks = [FULLEST, *((f"pipeline rank {r}", r) for r in range(len(scene.step.memory)))]
        if list(self.rank.options) != ranks and self.current == "Memory":
            self.rank.options = ranks
        pane = self.panes[self.current]
        new = not pane.canvases
        self.stale(self.is_stale)
        if not pane.draw(scene, f"{name}-{self.current.lower()}", keep_ranges):
            return
        if new:
            self.stale(self.is_stale)
            if self.current in ("Timeline", "Compare"):
                pane.canvases[-1].on_zoom(self._zoomed)
        for option in pane.view.options:
            self.options[self.current][option.field].value = getattr(scene, option.field)
        self._listen(pane.canvases[0].plot.data)

    def _listen(self, traces: Any) -> None:
        """Hear clicks on the open tab's first figure, whose traces may be new."""
        clicked = {
            "Timeline": self._opened, "Memory": self._looked_at, "Breakdown": self._asked, "Tornado": self._tried,
            "Front": self._clicked,
        }.get(self.current)  # fmt: skip
        self._selected.clear()
        for trace in traces if clicked else ():
            trace.on_click(clicked)
            if self.current == "Front" and trace.customdata is not None:
                trace.on_selection(self._boxed)

    def fill(self, width: int) -> None:
        """Make every figure as wide as the tab that holds it."""
        for pane in self.panes.values():
            pane.fill(width - PADDING)

    def stale(self, is_stale: bool) -> None:
        """Show what depends on a plan pale, as of a previous one, or as it is."""
        self.is_stale = is_stale
        pale(self.data, is_stale)
        for pane in self.panes.values():
            pane.stale(is_stale and "step" in pane.view.needs)

    def _ranked(self, change: Any) -> None:
        self._look(stage=None if change["new"] == FULLEST[1] else change["new"])

    def _zoomed(self, ends: tuple[float, float]) -> None:
        scene = self.panes[self.current].scene
        if scene is None:
            return
        whole = scene.end_s
        scale = time_unit(scene.window[1] if scene.window else whole).scale
        low, high = max(0.0, ends[0] * scale), min(whole, ends[1] * scale)
        self._look(window=None if high - low > WHOLE * whole or high <= low else (low, high))

    def _opened(self, trace: Any, points: Any, state: Any) -> None:
        """Open the costs of the operation that was clicked, a bar or a point of the picture."""
        del state
        pane = self.panes["Timeline"]
        if pane.scene is None or not points.point_inds:
            return
        lower = trace.xaxis == "x2"  # A is above
        step, place = pane.scene.steps[-1 if lower else 0], points.point_inds[0]
        if trace.type == "heatmap":  # the operation that the point shows, one of those that it covers
            row, column = place
            index = action_named(step, int(trace.customdata[row][0]), str(trace.text[row][column]))
        else:
            scale = time_unit(pane.scene.window[1] if pane.scene.window else pane.scene.end_s).scale
            at, rank = trace.customdata[place][:2]
            index = action_at(step, int(rank), float(at) * scale)
        pane.explain("" if index is None else action_card(step, index))

    def _asked(self, trace: Any, points: Any, state: Any) -> None:
        """Open what the term of the breakdown that was clicked counts."""
        del state
        pane = self.panes["Breakdown"]
        if pane.scene and points.point_inds and trace.meta:
            pane.explain(term_card(pane.scene.steps[points.point_inds[0]], trace.meta))

    def _boxed(self, trace: Any, points: Any, state: Any) -> None:
        """List the configurations inside the box; every trace is told of its own."""
        del state
        pane = self.panes["Front"]
        self._selected[trace.uid] = [int(trace.customdata[i][-1]) for i in points.point_inds]
        flat = [i for own in self._selected.values() for i in own]
        if pane.scene and pane.scene.found:
            pane.explain(selection_card(pane.scene.found, flat) if flat else "")

    def _clicked(self, trace: Any, points: Any, state: Any) -> None:
        which = NAMED.get(trace.name)
        if points.point_inds and (which or trace.customdata is not None):
            flat = which or int(trace.customdata[points.point_inds[0]][-1])
            self._choose(flat, bool(getattr(state, "shift", False)))

    def _tried(self, trace: Any, points: Any, state: Any) -> None:
        del state
        if points.point_inds:
            self._better(str(trace.customdata[points.point_inds[0]]), trace.meta == BETTER)

    def _looked_at(self, trace: Any, points: Any, state: Any) -> None:
        del trace, state
        if points.xs and points.xs[0] in [value for _, value in self.rank.options]:
            self.rank.value = int(points.xs[0])
