"""The what-if panel: sliders for a plan, its answer in one sentence, and the figures of the open tab."""

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

from sim.engine.step import Step, simulate
from sim.plans import HasStep
from sim.report import figures
from sim.report.text import answer
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.arguments import checked
from sim.specs.rules import divisors
from sim.tuner.space import default_knobs
from sim.widgets.width import WidthSensor

FIGURES: dict[str, Callable[[Step], go.Figure]] = {
    "Timeline": figures.timeline,
    "Memory": figures.memory_peaks,
    "Memory over time": figures.memory,
    "Breakdown": figures.breakdown,
}
TAB_PADDING = 36
"""Pixels between the column and the figure in a tab: padding and border on both sides."""

MIN_WIDTH = 320
QUIET = {"showSendToCloud": False, "plotlyServerURL": "", "displaylogo": False}
"""plotly.js would offer to upload the figure."""


class WhatIf(w.HBox):
    """Sliders on the left, answer and figures on the right.

    An impossible setting stays in its control: the card names the reason and the nearest values that work, and
    the figures keep the last possible plan. `step` is the step shown.
    """

    def __init__(self, model: Model, cluster: Cluster, plan: Plan) -> None:
        self.model, self.cluster, self.plan = model, cluster, plan
        self.step = simulate(model, cluster, plan)
        self._controls = _controls(model, cluster, plan)
        self._answer = w.HTML()
        self._canvases = [go.FigureWidget(draw(self.step)) for draw in FIGURES.values()]
        for canvas in self._canvases:
            canvas._config = QUIET
        self._tabs = w.Tab(children=self._canvases, titles=list(FIGURES))
        self._drawn = [self.step] * len(self._canvases)
        left = w.VBox(list(self._controls.values()), layout=w.Layout(width="280px", flex="0 0 auto"))
        self._sensor = WidthSensor()
        right = w.VBox([self._sensor, self._answer, self._tabs], layout=w.Layout(flex="1 1 auto", min_width="0"))
        super().__init__([left, right])
        self._sensor.observe(lambda _: self._fill(), names="width")
        for control in self._controls.values():
            control.observe(self._changed, names="value")
        self._tabs.observe(lambda _: self._redraw(), names="selected_index")
        self._say(None)

    @property
    def message(self) -> str:
        """The answer, or the reason why the setting is impossible, as HTML."""
        return str(self._answer.value)

    def _changed(self, _: object) -> None:
        try:
            asked = self.plan.but(**{name: control.value for name, control in self._controls.items()})
            self.step = simulate(self.model, self.cluster, asked)
        except InputError as error:
            self._say(error)
            return
        self.plan = asked
        self._say(None)
        self._redraw()

    @property
    def _width(self) -> int | None:
        """Pixels for a figure, or None before the browser has told."""
        return max(MIN_WIDTH, self._sensor.width - TAB_PADDING) if self._sensor.width else None

    def _fill(self) -> None:
        """Make every figure as wide as the tab that holds it."""
        for canvas in self._canvases:
            canvas.layout.width = self._width

    def _say(self, error: InputError | None) -> None:
        if error is None:
            self._answer.value = f"<p style='font-size:14px'>{escape(answer(self.step))}</p>"
            return
        name = error.path.removeprefix("plan.")
        self._answer.value = (
            f"<p style='font-size:14px'><b>Not possible:</b> {escape(name)} {escape(str(error.value))}; allowed: "
            f"{escape(error.allowed)}. <i>The figures show the previous plan.</i></p>"
        )

    def _redraw(self) -> None:
        """Draw the open tab again if it shows an older step."""
        tab = self._tabs.selected_index or 0
        if self._drawn[tab] is self.step:
            return
        fresh, canvas = list(FIGURES.values())[tab](self.step), self._canvases[tab]
        with canvas.batch_update():
            canvas.data = []
            canvas.layout = fresh.layout
            canvas.layout.width = self._width
            canvas.add_traces(fresh.data)
        self._drawn[tab] = self.step


@checked
def whatif(model: Model, cluster: Cluster, plan: Plan | HasStep) -> WhatIf:
    """Return the what-if panel for a plan (or a ranked plan of a search) on a cluster.

    Raises:
        InputError: the plan to start from is not possible.
    """
    return WhatIf(model, cluster, plan if isinstance(plan, Plan) else plan.step.plan)


def _controls(model: Model, cluster: Cluster, plan: Plan) -> dict[str, Any]:
    """Return the controls by knob; each offers what could be legal and whatever the plan has."""
    options = default_knobs(model, cluster)
    # Depths that suit the layers but not the cluster are offered too: the card says what does.
    options["pp"] = sorted({*options["pp"], *(d for d in divisors(model.layers) if d <= cluster.gpus)})
    sliders = {
        knob: w.SelectionSlider(
            options=sorted({*values, getattr(plan, knob)}, key=values.index if knob == "recompute" else None),
            value=getattr(plan, knob),
            description=knob.replace("_", " "),
            style={"description_width": "96px"},
            layout=w.Layout(width="270px"),
        )
        for knob, values in options.items()
        if knob != "sequence_parallel"
    }
    batch = w.BoundedIntText(
        plan.global_batch,
        min=1,
        max=10_000_000,
        description="global batch",
        style={"description_width": "96px"},
        layout=w.Layout(width="270px"),
    )
    return sliders | {"global_batch": batch}
