"""What the tabs of a panel show: figures of a step, of the plan it is compared with, and of the last search."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import plotly.graph_objects as go

from sim.engine.step import Step
from sim.report import figures
from sim.report.text import answer, critical_words, memory_words
from sim.report.theme import HEIGHT, Theme, frame
from sim.tuner.tune import Tuned
from sim.units import counted, seconds

RANKS = 16


@dataclass(frozen=True)
class Scene:
    """All that a figure may depend on: the step shown, the one pinned as A, the last search, what the reader looks at.

    stage: a pipeline rank, None for the fullest; window: the part of the time axis, in seconds.
    """

    step: Step
    pinned: Step | None = None
    found: Tuned | None = None
    theme: Theme = "light"
    stage: int | None = None
    window: tuple[float, float] | None = None


Draw = Callable[[Scene], go.Figure]


class View(NamedTuple):
    """A tab: its title, its figures, the parts of a scene that they depend on, and whether their axes only grow."""

    title: str
    draws: Sequence[Draw]
    needs: Sequence[str] = ("step",)
    grows: bool = True

    def key(self, scene: Scene) -> tuple[Any, ...]:
        """Return what tells whether figures of two scenes are the same."""
        held = (getattr(scene, name) for name in (*self.needs, "theme"))
        return tuple(x if x is None or isinstance(x, str | int | tuple) else id(x) for x in held)


def _timeline(scene: Scene) -> go.Figure:
    return figures.timeline(scene.step, RANKS, scene.theme, scene.window)


def _peaks(scene: Scene) -> go.Figure:
    return figures.memory_peaks(scene.step, scene.theme, scene.pinned)


def _memory(scene: Scene) -> go.Figure:
    ranks = len(scene.step.memory)
    stage = None if scene.stage is None or scene.stage >= ranks else scene.stage
    return figures.memory(scene.step, stage, scene.theme, scene.pinned)


def _breakdown(scene: Scene) -> go.Figure:
    if scene.pinned is None:
        return figures.breakdown(scene.step, None, scene.theme)
    return figures.breakdown([scene.pinned, scene.step], ["A", "B"], scene.theme)


def _tornado(scene: Scene) -> go.Figure:
    return figures.tornado(scene.step, scene.theme)


def _roofline(scene: Scene) -> go.Figure:
    return figures.roofline(scene.step, scene.theme)


def _front(scene: Scene) -> go.Figure:
    if scene.found is None:
        return _words("no search yet: press Tune from here", scene.theme)
    return figures.front(scene.found, scene.theme)


def _waterfall(scene: Scene) -> go.Figure:
    if scene.pinned is None:
        return _words("nothing to compare with: press Pin as A, then move a slider", scene.theme)
    if scene.pinned.step_time_s == scene.step.step_time_s:
        return _words("A and B take equally long", scene.theme)
    return figures.difference(scene.step, scene.pinned, scene.theme)


def _two_timelines(scene: Scene) -> go.Figure:
    if scene.pinned is None:
        return _words("", scene.theme)
    return figures.timeline_difference(scene.step, scene.pinned, RANKS // 2, scene.theme)


VIEWS = (
    View("Timeline", (_timeline,), ("step", "window")),
    View("Memory", (_peaks, _memory), ("step", "pinned", "stage")),
    View("Breakdown", (_breakdown,), ("step", "pinned")),
    View("Tornado", (_tornado,)),
    View("Roofline", (_roofline,), grows=False),
    View("Front", (_front,), ("found",), grows=False),
    View("Compare", (_waterfall, _two_timelines), ("step", "pinned"), grows=False),
)


def words(title: str, scene: Scene) -> str:
    """Return a tab's figures in a sentence: what stands above them, and is read where they cannot be seen."""
    step, pinned = scene.step, scene.pinned
    if title == "Timeline":
        return critical_words(step)
    if title == "Memory":
        return "; ".join(memory_words(step, 2))
    if title == "Compare" and pinned:
        change = step.step_time_s - pinned.step_time_s
        return f"A: {answer(pinned)} B: {answer(step)} B − A: {1e3 * change:+.4g} ms a step."
    if title == "Tornado":
        return "Click a bar to set that multiplier."
    if title == "Front" and scene.found:
        found = scene.found
        best = found.best.step
        looked = f"{counted(found.evaluated)} configurations in {seconds(found.seconds['total'])}, {found.proof}"
        return f"Best: {answer(best)} {looked}. Click a point to show its plan, with shift to pin it as A."
    return ""


def _words(text: str, theme: Theme) -> go.Figure:
    """Return an empty figure that says why it is empty."""
    figure = frame(theme, HEIGHT, "", "")
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure.add_annotation(text=text, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
