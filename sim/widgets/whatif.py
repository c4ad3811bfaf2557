"""The what-if panel: sliders for model, cluster, plan and hardware, its answer in one sentence, and the figures."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as w
import numpy as np

from sim.costs.algebra import settle
from sim.engine.step import Step, simulate
from sim.market.job_prices import priced
from sim.plans import HasStep
from sim.plans.plan_file import load_plan, save_plan
from sim.report import markup as m
from sim.report.details import multiplier_words
from sim.report.figure_files import file_stem
from sim.report.numbers import byte_unit, seconds_interval, signed
from sim.report.sections import step_cards
from sim.report.text import answer
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.arguments import checked
from sim.tuner.effects import MEMORY_SIZE, PRICE
from sim.tuner.fixes import fixes
from sim.tuner.nearest import nearest
from sim.tuner.tune import Tuned
from sim.widgets.background import events_job, tune_job
from sim.widgets.background_bar import BackgroundBar
from sim.widgets.canvas import pale
from sim.widgets.code import code_of
from sim.widgets.controls import PlanControls, counted_title
from sim.widgets.hardware import FACTORS, ClusterControls, HardwareControls, ModelControls, multiplied
from sim.widgets.knob import STYLE
from sim.widgets.names import KnobNames, named
from sim.widgets.panes import COMPUTING, NAMED, Panes
from sim.widgets.views import VIEWS, Scene
from sim.widgets.width import WidthSensor

PAUSE_S = 0.15
"""What takes longer than that waits until the sliders rest."""

LEFT, RIGHT = 280, 538
"""Pixels of the columns, of the right one at least: in cells below 900, 82 of which are beside the output, it goes
below the left one."""

TOLD = ((700, "148px"), (1_000, "120px"), (10**6, "88px"))
"""Columns of less than so many pixels, and there the height of the answer and of the buttons that mend it: three lines
and two of buttons, two and two, two and one, so that nothing below jumps whatever they say."""

MULTIPLIER = {
    "matrix_flop_per_s": "clock", "attention_flop_per_s": "clock", "memory_bytes_per_s": "memory_rate",
    "intra_bytes_per_s": "intra", "inter_bytes_per_s_per_node": "inter", MEMORY_SIZE: "memory", PRICE: "price",
}  # fmt: skip
"""The multiplier that moves a parameter of the tornado."""

OPTIONS = frozenset(option.field for view in VIEWS for option in view.options)
FIXES = 3
Asked = tuple[Model, Cluster, Plan]


class WhatIf(w.HBox):
    """Controls on the left, answer and figures on the right.

    An impossible setting stays in its control: a card names the reason and the nearest plans that are possible, and
    the figures keep the last possible plan, pale. `step` is the step shown; `pinned` the one it is compared with, A.
    """

    def __init__(self, model: Model, cluster: Cluster, plan: Plan) -> None:
        self.first: Asked = (model, cluster, plan)
        self.step = simulate(*self.first)
        self._scene, self._refit = Scene(self.step), False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._made: dict[Cluster, tuple[Cluster, dict[str, float]]] = {}
        self.models = ModelControls(model, self._changed)
        self.clusters = ClusterControls(cluster, self._changed)
        self.plans = PlanControls(model, cluster, plan, self._changed)
        self.hardware = HardwareControls(self._changed)
        self._cards, self._answer, self._notice, self._beside = w.HTML(), w.HTML(), w.VBox(), w.HTML()
        self.panes = Panes(self._look, self._chosen, self._try)
        self.sensor = WidthSensor()
        self.tuning = BackgroundBar("Tune from here", self._tune, self._tuned)
        self.events = BackgroundBar("Run on the event engine", self._simulate, self._ran)
        file = w.Text(placeholder="plan file, for example out/plan.json", layout=w.Layout(width="260px"))
        self.file = named(file, "plan file")
        wrapping = w.Layout(flex_flow="row wrap", align_items="flex-start")
        super().__init__([self._left(), self._right()], layout=wrapping)
        self.add_class("trainsim")
        self.sensor.tell(self._fill, lambda: self._look(theme=self.sensor.look))
        self.panes.observe(lambda _: self._draw(), names="selected_index")
        self._show(self.step)

    def _left(self) -> w.VBox:
        groups = {
            "Plan": self.plans, "Hardware what-if": self.hardware, "Model": self.models, "Cluster": self.clusters,
        }  # fmt: skip
        folds = [w.Accordion([group], titles=[title], selected_index=None) for title, group in groups.items()]
        folds[0].selected_index = 0
        self._folds = dict(zip(groups, folds, strict=True))
        left = w.VBox(
            [w.HTML(STYLE, layout=w.Layout(display="none")), KnobNames(), *folds],
            layout=w.Layout(width=f"{LEFT}px", flex="0 0 auto", max_height="900px", overflow="hidden auto"),
        )
        left.add_class("trainsim-controls")
        return left

    def _right(self) -> w.VBox:
        actions = {
            "Pin as A": self.pin, "Swap A and B": self.swap, "Unpin": self.unpin, "Fit axes": self._fit,
            "Reset": lambda: self.show(*self.first), "Save": self._save, "Load": self._load,
        }  # fmt: skip
        buttons = [w.Button(description=name, layout=w.Layout(width="auto")) for name in actions]
        for button, action in zip(buttons, actions.values(), strict=True):
            button.on_click(lambda _, what=action: what())
        bar = w.HBox([*buttons, self.file], layout=w.Layout(flex_flow="row wrap"))
        work = w.VBox([self.tuning, w.HBox([self.events, self._beside], layout=w.Layout(flex_flow="row wrap"))])
        self._told = w.VBox([self._answer, self._notice], layout=w.Layout(min_height=TOLD[-1][1]))
        parts = [self.sensor, self._cards, self._told, bar, work, self.panes]
        return w.VBox(parts, layout=w.Layout(flex=f"1 1 {RIGHT}px", min_width="0"))

    def _fill(self, width: int) -> None:
        self._told.layout.min_height = next(height for narrower, height in TOLD if width < narrower)
        self.panes.fill(width)

    @property
    def message(self) -> str:
        """The answer, or the reason why the setting is impossible, as HTML."""
        return str(self._answer.value)

    @property
    def plan(self) -> Plan:
        """The plan shown."""
        return self.step.plan

    @property
    def pinned(self) -> Step | None:
        """A, with which the step shown is compared."""
        return self._scene.pinned

    @property
    def found(self) -> Tuned | None:
        """The last search."""
        return self._scene.found

    @property
    def code(self) -> str:
        """Python that simulates what is shown."""
        return code_of(self.step.model, self.step.cluster, self.step.plan)

    def show(self, model: Model, cluster: Cluster, plan: Plan) -> None:
        """Bring all controls to a plan on a model and a cluster, and simulate it.

        Multipliers are at 1, or where they were when they made this cluster: of A, or of the last search.
        """
        before, factors = self._made.get(cluster, (cluster, {}))
        self.models.show(model)
        self.clusters.show(before)
        self.hardware.show(factors)
        self.plans.show(plan)
        self._changed()

    def save(self, path: str | Path) -> Path:
        """Write what is shown as a plan file; raises InputError where that is not possible."""
        return save_plan(self.step, path)

    def load(self, path: str | Path) -> None:
        """Bring the panel to a plan file's (or job file's) model, cluster and plan; raises InputError for others."""
        job = load_plan(path).job
        if job.plan is None:
            raise InputError("plan", None, "a plan: this job only says what to search")
        self.show(job.model, priced(job.cluster, job.prices, job.training), job.plan)

    def pin(self) -> None:
        """Make what is shown A, with which everything else is compared."""
        self._look(pinned=self.step)

    def unpin(self) -> None:
        """Compare with nothing."""
        self._look(pinned=None, window=None)  # of the part shown there may be nothing without A

    def swap(self) -> None:
        """Show A, and compare it with what was shown."""
        other = self.pinned
        if other is not None:
            self._scene = replace(self._scene, pinned=self.step)
            self.show(other.model, other.cluster, other.plan)

    def _changed(self) -> None:
        """Simulate what the controls ask for, or say why that cannot be."""
        asked: Asked | None = None
        try:
            model = self.models.model()
            before, factors = self.clusters.cluster(), self.hardware.factors
            cluster = multiplied(before, factors)
            if cluster is not before:
                self._made[cluster] = before, factors
            asked = model, cluster, self.plans.plan()
            if model != self.step.model:  # the first look at a model takes seconds
                self._answer.value = COMPUTING
            step = simulate(*asked)
        except InputError as error:
            self._refuse(error, asked)
        else:
            self._refit |= (step.model, step.cluster) != (self.step.model, self.step.cluster)
            self._show(step)
        self._count()

    def _count(self) -> None:
        """Say of the groups that begin folded how many of their settings are not as they were given."""
        groups = {"Hardware what-if": self.hardware, "Model": self.models, "Cluster": self.clusters}
        for title, group in groups.items():
            self._folds[title].set_title(0, counted_title(title, group.changed))

    def _show(self, step: Step) -> None:
        """Show a possible plan: cards, sentence, the open figure; what would make it fit once the sliders rest."""
        self.step = step
        self._scene = replace(self._scene, step=step, window=None)
        self._stale(False)
        self._answer.value = m.paragraph(" ".join((answer(step), *_without_effect(step))), "say")
        self._draw()  # while the browser does that, which takes longest, the rest is written
        self._cards.value = step_cards(step)
        self._beside.value = ""
        self._offer()
        self.models.say(step.model)
        self.clusters.say(step.cluster)
        self.plans.suit(step.model, step.cluster, step.plan)
        if step.fits != "yes":
            self._later("fixes", self._offer_fixes)
        if any(factor != 1 for factor in self.hardware.factors.values()):
            self._later("multipliers", self._say_multipliers)
        else:
            self.hardware.say([])

    def _refuse(self, error: InputError, asked: Asked | None) -> None:
        """Say why the setting cannot be and what is near; the figures stay, pale."""
        name = error.path.removeprefix("plan.")
        self._answer.value = (
            f"<p class='say wrong'><b>Not possible:</b> {escape(name)} {escape(str(error.value))}; "
            f"allowed: {escape(error.condition)}. <i>What is pale is of the previous plan.</i></p>"
        )
        near = nearest(*asked) if asked else []
        words = "nearest possible:" if near else "nothing near is possible" if asked else ""
        self._offer(words, [(p.words, p.plan) for p in near])
        if asked:
            self.models.say(asked[0])
            self.clusters.say(asked[1])
            self.plans.suit(*asked)
        self._stale(True)

    def _stale(self, is_stale: bool) -> None:
        """Show cards and figures pale, as those of the previous plan, or as they are."""
        pale(self._cards, is_stale)
        self.panes.stale(is_stale)

    def _offer_fixes(self) -> None:
        """Say which single changes would make the plan fit, the cheapest first."""
        step, unit = self.step, byte_unit(self.step.cluster.memory_bytes)
        if step.fits == "yes" or self.panes.is_stale:
            return
        offers = [
            (
                f"{f.change}: −{unit.text(f.saved_bytes)}, {signed(100 * f.slower, 0)} % time"
                + ("" if f.step.fits == "yes" else f" (then fits: {f.step.fits})"),
                f.step.plan,
            )
            for f in fixes(step)[:FIXES]
        ]
        self._offer("to save memory:" if offers else "no single change saves memory: try Tune from here", offers)

    def _say_multipliers(self) -> None:
        """Say what each multiplier on the hardware changes, the others as they are."""
        step, factors, lines = self.step, self.hardware.factors, []
        if self.panes.is_stale:
            return
        for name, factor in factors.items():
            if factor != 1:
                cluster = multiplied(self.clusters.cluster(), factors | {name: 1.0})
                without = simulate(step.model, cluster, step.plan)
                lines.append(multiplier_words(step, without, FACTORS[name], factor))
        self.hardware.say(lines)

    def _offer(self, words: str = "", offers: Sequence[tuple[str, Plan]] = ()) -> None:
        """Show a line with buttons that apply plans."""
        if not words:
            if self._notice.children:
                self._notice.children = []
            return
        buttons = []
        for text, plan in offers:
            button = w.Button(description=text, tooltip=f"Apply: {text}", layout=w.Layout(width="auto"))
            button.on_click(partial(self._apply, plan))
            buttons.append(button)
        line = w.HBox([w.HTML(f"<b>{escape(words)}</b>"), *buttons], layout=w.Layout(flex_flow="row wrap"))
        self._notice.children = [line]

    def _apply(self, plan: Plan, button: Any = None) -> None:
        """Bring the plan's controls to a plan; model, cluster and multipliers stay as they are."""
        del button
        self.plans.show(plan)
        self._changed()

    def _look(self, **changes: Any) -> None:
        """Change what the reader looks at, and draw."""
        self._scene = replace(self._scene, **changes)
        self._refit |= not OPTIONS.isdisjoint(changes)
        self._draw()

    def _fit(self) -> None:
        self._refit = True
        for pane in self.panes.panes.values():
            pane.scene = None
        self._look(window=None)

    def _draw(self) -> None:
        heavy = self.panes.current == "Tornado" or (self.panes.current == "Breakdown" and self._scene.hidden)
        if heavy:
            self.panes.panes[self.panes.current].wait()
            self._later("draw", self._draw_now)
        else:
            self._draw_now()

    def _draw_now(self) -> None:
        keep, self._refit = not self._refit, False
        self.panes.show(self._scene, file_stem(self.step), self.code, keep)

    def _later(self, name: str, what: Callable[[], None]) -> None:
        """Do something once nothing has asked for it for `PAUSE_S`; at once where no event loop runs."""
        if name in self._timers:
            self._timers.pop(name).cancel()
        try:
            self._timers[name] = asyncio.get_running_loop().call_later(PAUSE_S, what)
        except RuntimeError:
            what()

    def _tune(self) -> Any:
        step = self.step
        even = step.plan.at(0).but(stage_layers=None, microbatch_group_size=None)  # what no search keeps
        return tune_job, (step.model, step.cluster, step.plan.global_batch, even)

    def _tuned(self, found: Tuned) -> None:
        self._scene = replace(self._scene, found=found)
        self.panes.selected_index = self.panes.titles.index("Front")
        self._draw()

    def _chosen(self, flat: int, pin: bool) -> None:
        """Show, or pin as A, the configuration of the last search that was clicked."""
        found = self.found
        if found is None:
            return
        if flat == NAMED["best"]:
            plan = found.best.plan
        elif flat == NAMED["baseline"] and found.baseline:
            plan = found.baseline.plan
        else:
            plan = found.space.plan(*(int(i) for i in np.unravel_index(flat, found.space.allowed.shape)))
        if pin:
            self._look(pinned=simulate(found.model, found.cluster, plan))
        else:
            self.show(found.model, found.cluster, plan)

    def _try(self, parameter: str, better: bool) -> None:
        """Set the multiplier that a bar of the tornado stands for; some (latencies, launching) have none."""
        knob = self.hardware.knobs.get(MULTIPLIER.get(parameter, ""))
        if knob:
            factor = 1 + self._scene.change
            rises = better != (parameter == PRICE)
            knob.value = round(factor if rises else 1 / factor, 4)

    def _simulate(self) -> Any:
        return events_job, (self.step.model, self.step.cluster, self.step.plan)

    def _ran(self, step: Step) -> None:
        shown = self.step
        if (step.plan, step.model, step.cluster) != (shown.plan, shown.model, shown.cluster):
            return  # of what is no longer shown
        change = 100 * (step.step_time_s / shown.step_time_s - 1)
        words = seconds_interval(step.step_time_s, step.step_time_interval_s)
        self._beside.value = f"event engine: {escape(words)}, {signed(change, 1)} % against the path"

    def _save(self) -> None:
        self.file.value = self.file.value.strip() or f"{file_stem(self.step)}.json"
        self._said(lambda: f"saved: {self.save(self.file.value)}")

    def _load(self) -> None:
        def load() -> str:
            self.load(self.file.value.strip())
            return "loaded"

        self._said(load)

    def _said(self, what: Callable[[], str]) -> None:
        """Do something with the file and say beside the answer how it went."""
        try:
            words = what()
        except InputError as error:
            words = str(error)
        self._beside.value = escape(words)


def _without_effect(step: Step) -> list[str]:
    """Return why ZeRO's slider moves nothing, where it does not: experts have groups of their own."""
    plan = step.plan
    alone = not plan.stages and step.placed.dp * plan.cp == 1 and not step.model.experts
    return [f"ZeRO-{plan.zero} changes nothing: with dp 1 there is nothing to shard."] if plan.zero and alone else []


@checked
def whatif(
    model: Model, cluster: Cluster, plan: Plan | HasStep, tab: str = "Timeline", compare: bool = False
) -> WhatIf:
    """Return the what-if panel for a plan (or a ranked plan of a search) on a cluster.

    tab: the one that is open first; compare: whether the plan is A from the start, with which others are compared.

    Raises:
        InputError: the plan to start from is not possible, or there is no such tab.
    """
    panel = WhatIf(model, cluster, plan if isinstance(plan, Plan) else plan.step.plan)
    if tab not in panel.panes.titles:
        raise InputError("tab", tab, f"one of {', '.join(panel.panes.titles)}")
    if compare:
        panel.pin()
    panel.panes.selected_index = panel.panes.titles.index(tab)
    settle()
    return panel
