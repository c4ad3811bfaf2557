"""What the tabs of a panel show: figures of a step, of the plan it is compared with, and of the last search."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import plotly.graph_objects as go

from sim.engine.step import Step, simulate
from sim.report import figures
from sim.report.figures.front import Degree
from sim.report.figures.roofline import Level, roofline_words
from sim.report.figures.timeline import Shading
from sim.report.numbers import time_unit
from sim.report.text import answer, critical_words, effect_words, memory_words, next_words, plan_words
from sim.report.theme import HEIGHT, TERMS, Theme, frame
from sim.specs import InputError
from sim.specs.catalog import precisions
from sim.tuner.effects import Target, effects
from sim.tuner.objectives import Measured
from sim.tuner.tune import Tuned
from sim.units import counted, grouped, percent, seconds


@dataclass(frozen=True)
class Scene:
    """All that a figure may depend on: the step shown, the one pinned as A, the last search, what the reader looks at.

    stage: a pipeline rank, None for the fullest; window: the part of the time axis, in seconds; what follows are the
    options of `VIEWS`.
    """

    step: Step
    pinned: Step | None = None
    found: Tuned | None = None
    theme: Theme = "light"
    stage: int | None = None
    window: tuple[float, float] | None = None
    ranks: int = 16
    shade: Shading = "chunk"
    critical: bool = True
    share: bool = False
    hidden: bool = False
    change: float = 0.25
    target: Target = "step_time"
    across: Measured = "memory_headroom"
    up: Measured = "step_time"
    misfits: bool = False
    by: Degree = "pp"
    points: int = 5_000
    dtype: str = ""
    level: Level = "device"

    @property
    def steps(self) -> tuple[Step, ...]:
        """A, where there is one, and the step shown."""
        return (self.pinned, self.step) if self.pinned else (self.step,)

    @property
    def searched(self) -> tuple[Step, ...]:
        """A and the step shown where both answer what the last search asked."""
        found, asked = self.found, {(s.model, s.cluster, s.plan.global_batch) for s in self.steps}
        alike = found and asked == {(found.model, found.cluster, found.global_batch)}
        return self.steps if self.pinned and alike else ()

    @property
    def end_s(self) -> float:
        """Where the time axis of the timelines ends when all of them is shown."""
        return max(step.timeline.makespan for step in self.steps) * 1e-9


Draw = Callable[[Scene], go.Figure]


class Option(NamedTuple):
    """A choice above the figures of a tab: the field of the scene that it sets, its label and (text, value) pairs."""

    field: str
    label: str
    choices: Sequence[tuple[str, Any]]


class View(NamedTuple):
    """A tab: its title, its figures, the parts of a scene that they depend on, whether their axes only grow, its
    options, and whether points can be selected with a box."""

    title: str
    draws: Sequence[Draw]
    needs: Sequence[str] = ("step",)
    grows: bool = True
    options: Sequence[Option] = ()
    selects: bool = False

    def key(self, scene: Scene) -> tuple[Any, ...]:
        """Return what tells whether figures of two scenes are the same."""
        held = (getattr(scene, name) for name in (*self.needs, *(o.field for o in self.options), "theme"))
        return tuple(x if x is None or isinstance(x, str | int | float | tuple) else id(x) for x in held)


def _timeline(scene: Scene) -> go.Figure:
    if scene.pinned:
        return figures.timeline_difference(
            scene.step, scene.pinned, max(1, scene.ranks // 2), scene.theme, scene.window, scene.critical, scene.shade
        )
    return figures.timeline(
        scene.step, scene.ranks, scene.theme, scene.window, critical=scene.critical, shade=scene.shade
    )


def _peaks(scene: Scene) -> go.Figure:
    return figures.memory_peaks(scene.step, scene.theme, scene.pinned)


def _memory(scene: Scene) -> go.Figure:
    ranks = len(scene.step.memory)
    stage = None if scene.stage is None or scene.stage >= ranks else scene.stage
    return figures.memory(scene.step, stage, scene.theme, scene.pinned)


def _breakdown(scene: Scene) -> go.Figure:
    return figures.breakdown(scene.steps, ["A", "B"] if scene.pinned else None, scene.theme, scene.share, scene.hidden)


def _tornado(scene: Scene) -> go.Figure:
    try:
        return figures.tornado(
            scene.step, scene.theme, change=scene.change, target=scene.target, reference=scene.pinned
        )
    except InputError as error:  # a price that nobody knows
        return _words(str(error), scene.theme)


def _roofline(scene: Scene) -> go.Figure:
    try:
        step, *before = (_at_precision(each, scene.dtype) for each in reversed(scene.steps))
        return figures.roofline(step, scene.theme, before[0] if before else None, scene.level)
    except InputError as error:  # units or a host link that the device does not have
        return _words(str(error), scene.theme)


def _at_precision(step: Step, precision: str) -> Step:
    """Return a step as it is, or of the same plan in another precision."""
    if not precision:
        return step
    return simulate(step.model, step.cluster, step.plan.but(precision=precision), level=step.level)


def _front(scene: Scene) -> go.Figure:
    if scene.found is None:
        return _words("no search yet: press Tune from here", scene.theme)
    try:
        return figures.front(
            scene.found, scene.theme, scene.points, x=scene.across, y=scene.up, misfits=scene.misfits, by=scene.by,
            compared=dict(zip("AB", scene.searched, strict=False)),
        )  # fmt: skip
    except InputError as error:  # a price that nobody knows
        return _words(str(error), scene.theme)


def _waterfall(scene: Scene) -> go.Figure:
    if scene.pinned is None:
        return _words("nothing to compare with: press Pin as A, then move a slider", scene.theme)
    return _difference(scene.step, scene.pinned, "A and B take", scene.theme)


def _beaten(scene: Scene) -> go.Figure:
    """Return why the best plan of a search beats the next: what each term adds to the time of the next."""
    if scene.found is None or len(scene.found.plans) < 2:
        return _words("no second plan was ranked", scene.theme) if scene.found else go.Figure()
    best, other = scene.found.plans[:2]
    return _difference(other.step, best.step, "the best plan and the next take", scene.theme)


def _difference(step: Step, reference: Step, both: str, theme: Theme) -> go.Figure:
    if step.step_time_s == reference.step_time_s:
        return _words(f"{both} equally long", theme)
    return figures.difference(step, reference, theme)


def _two_timelines(scene: Scene) -> go.Figure:
    if scene.pinned is None:
        return go.Figure()
    return _timeline(replace(scene, critical=True, shade="chunk"))


SWITCH = (("off", False), ("on", True))
RANKS = Option("ranks", "ranks shown", [(str(n), n) for n in (1, 4, 8, 16, 32, 64)])
AXES = (
    ("step time", "step_time"), ("peak memory", "memory_headroom"), ("USD per 1e9 tokens", "cost"),
    ("tokens per USD", "tokens_per_usd"),
)  # fmt: skip
VIEWS = (
    View("Timeline", (_timeline,), ("step", "pinned", "window"), options=(
        RANKS,
        Option("shade", "shade by", [("chunk of the model", "chunk"), ("microbatch", "microbatch"), ("-", "nothing")]),
        Option("critical", "critical path", SWITCH),
    )),
    View("Memory", (_peaks, _memory), ("step", "pinned", "stage")),
    View("Breakdown", (_breakdown,), ("step", "pinned"), options=(
        Option("share", "in", [("time", False), ("%", True)]),
        Option("hidden", "what is hidden", SWITCH),
    )),
    View("Tornado", (_tornado,), ("step", "pinned"), options=(
        Option("target", "of", [("step time", "step_time"), ("memory", "memory"), ("cost", "cost")]),
        Option("change", "change", [(f"±{c} %", c / 100) for c in (10, 25, 50)]),
    )),
    View("Roofline", (_roofline,), ("step", "pinned"), grows=False, options=(
        Option("dtype", "dtype", [("the plan's", ""), *((name, name) for name in precisions)]),
        Option("level", "memory level", [
            ("device, data sheet", "device"), ("device, profile", "profile"), ("host", "host"),
        ]),
    )),
    View("Front", (_front, _beaten), ("found", "searched"), grows=False, options=(
        Option("across", "across", AXES), Option("up", "up", AXES), Option("misfits", "what does not fit", SWITCH),
        Option("by", "colour by", [("pp", "pp"), ("tp", "tp"), ("dp", "dp"), ("micro-batch", "micro_batch")]),
        Option("points", "points at most", [(grouped(n), n) for n in (500, 2_000, 5_000)]),
    ), selects=True),
    View("Compare", (_waterfall, _two_timelines), ("step", "pinned", "window"), grows=False, options=(RANKS,)),
)  # fmt: skip


HINTS = {
    "Timeline": "Click an operation for its costs; drag to zoom.",
    "Memory": "Click a bar for its curve over time.",
    "Breakdown": "Click a term for what it counts and consists of.",
    "Tornado": "Click a bar to set that multiplier. In brackets the elasticity, % change of what is asked for over % "
    "change of the parameter.",
    "Front": "Click a point to show its plan, with shift to pin it as A; Box Select lists the plans inside.",
}


def words(title: str, scene: Scene) -> str:
    """Return a tab's figures in a sentence: what stands above them, and is read where they cannot be seen."""
    if title == "Front" and not scene.found:
        return ""
    facts = {
        "Timeline": _when, "Memory": _held, "Breakdown": _spent, "Tornado": _bought, "Roofline": _bounded,
        "Front": _searched, "Compare": _compared,
    }.get(title)  # fmt: skip
    return " ".join(part for part in (facts(scene) if facts else "", HINTS.get(title, "")) if part)


def _when(scene: Scene) -> str:
    return _span(scene) + critical_words(scene.step)


def _held(scene: Scene) -> str:
    return "; ".join(memory_words(scene.step, 2)) + "."


def _spent(scene: Scene) -> str:
    """Return the terms of the step that take most of it."""
    step = scene.step
    largest = sorted(step.breakdown_s.items(), key=lambda item: item[1], reverse=True)[:3]
    shares = ", ".join(
        f"{TERMS[term].label} {percent(value / step.step_time_s)}" for term, value in largest if value > 0
    )
    return f"Of {seconds(step.step_time_s)}: {shares}."


def _bought(scene: Scene) -> str:
    try:
        return effect_words(effects(scene.step, scene.change, scene.target), scene.change, scene.target)
    except InputError:  # a price that nobody knows, as the figure says
        return ""


def _bounded(scene: Scene) -> str:
    try:
        return roofline_words(_at_precision(scene.step, scene.dtype), scene.level)
    except InputError:  # as the figure says
        return ""


def _searched(scene: Scene) -> str:
    if scene.found is None:
        return ""
    found = scene.found
    looked = f"{counted(found.evaluated)} configurations in {seconds(found.seconds['total'])}, {found.proof}."
    beaten = ""
    if len(found.plans) > 1:
        other = found.plans[1].step
        which = plan_words(other.plan, other.placed.dp)
        beaten = f" The next plan, {which}, takes {next_words(found)}; below the front, by term."
    return f"Best: {answer(found.best.step)} {looked}{beaten}"


def _compared(scene: Scene) -> str:
    if scene.pinned is None:
        return ""
    change = scene.step.step_time_s - scene.pinned.step_time_s
    words = f"B − A: {'−' if change < 0 else '+'}{seconds(abs(change))} a step."
    return f"A: {answer(scene.pinned)} B: {answer(scene.step)} {words if change else 'Both take equally long.'}"


def _span(scene: Scene) -> str:
    """Return how long the part is that is shown."""
    if scene.window is None:
        return ""
    low, high = scene.window
    unit = time_unit(high)
    return f"From {unit.text(low)} to {unit.text(high)}: {seconds(high - low)}. "


def _words(text: str, theme: Theme) -> go.Figure:
    """Return an empty figure that says why it is empty."""
    figure = frame(theme, HEIGHT, "", "")
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure.add_annotation(text=text, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
