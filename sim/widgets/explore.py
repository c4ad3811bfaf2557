"""A question with sliders: one control for each named choice, a sentence, and one figure that follows them."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any, Protocol

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go

from sim.report import markup as m
from sim.report.theme import Theme
from sim.specs import InputError
from sim.widgets.canvas import Canvas
from sim.widgets.knob import STYLE, Knob, is_number, on_change
from sim.widgets.names import KnobNames
from sim.widgets.width import WidthSensor

EXAMPLE = "values to choose from, all of them numbers or all texts, for example stages=[2, 4, 8]"

READ_OUT = 10
"""Letters of a chosen value that have room beside a slider of the usual width."""


class Draw(Protocol):
    """Draws a figure of the values chosen, by name."""

    def __call__(self, *, theme: Theme, **values: Any) -> go.Figure:
        """Return the figure in a theme."""


class Explore(w.VBox):
    """Controls above a sentence and a figure; `knobs` are the controls by name, `values` what they are set to.

    What the values do not allow, or what fails, is said in place of the sentence; the figure stays as it was, pale.
    """

    def __init__(
        self, draw: Draw, choices: Mapping[str, Sequence[Any]], say: Callable[..., str] | None, free: Sequence[str] = ()
    ) -> None:
        self._draw, self._say, self._words = draw, say, w.HTML()
        self.knobs = {n: Knob(n, list(values), values[0], boxed=n in free) for n, values in choices.items()}
        self.canvas, self.sensor = Canvas(), WidthSensor()
        for knob in self.knobs.values():
            longer = 0 if knob.is_number else max(0, max(len(str(value)) for value in knob.options) - READ_OUT)
            knob.layout.width, knob.layout.flex = f"{300 + 8 * longer}px", "0 1 auto"
        row = w.HBox(list(self.knobs.values()), layout=w.Layout(flex_flow="row wrap", grid_gap="0 24px"))
        style = w.HTML(STYLE, layout=w.Layout(display="none"))
        super().__init__([style, KnobNames(), self.sensor, row, self._words, self.canvas])
        self.add_class("trainsim")
        self.sensor.tell(self.canvas.fill, self.refresh)
        on_change(list(self.knobs.values()), self.refresh)
        self.refresh()

    @property
    def values(self) -> dict[str, Any]:
        """What is chosen, by name."""
        return {name: knob.value for name, knob in self.knobs.items()}

    @property
    def message(self) -> str:
        """The sentence, or why the values are not possible, as HTML."""
        return str(self._words.value)

    def refresh(self) -> None:
        """Draw what is chosen, or say why that cannot be."""
        values = self.values
        name = re.sub(r"\W+", "-", "-".join(map(str, values.values()))).strip("-") or "figure"
        try:
            words = self._say(**values) if self._say else ""
            said = m.paragraph(words, "say") if words else ""
            self.canvas.draw(partial(_drawn, self._draw, values), self.sensor.look, name, keep_ranges=False)
        except Exception as error:  # whatever it is: what a callback raises is seen by nobody
            shown = " <i>The figure shows the previous values.</i>" if self.canvas.plot else ""
            why = f"Not possible:</b> {escape(str(error))}"
            if not isinstance(error, InputError):
                why = f"Failed:</b> {escape(f'{type(error).__name__}: {error}')}"
            self._words.value = f"<p class='say wrong'><b>{why}.{shown}</p>"
            self.canvas.stale(True)
        else:
            self._words.value = said
            self.canvas.stale(False)


def _drawn(draw: Draw, values: dict[str, Any], theme: Theme) -> go.Figure:
    return draw(theme=theme, **values)


def explore(
    draw: Draw, /, *, say: Callable[..., str] | None = None, free: Sequence[str] = (), **choices: Sequence[Any]
) -> Explore:
    """Return a panel with a control for every named choice above the figure that `draw(theme=..., **values)` returns.

    choices: the values a slider goes over (numbers or texts), the first is where it starts; free: the choices of
    numbers that may take any other number too, in a box beside the slider; say(**values): the sentence above the
    figure. Where draw or say raises an error its text is shown, and the figure stays, pale.

    Raises:
        InputError: no choice, one without values or of other ones, or free names what is no choice of numbers.
    """
    if not choices:
        raise InputError("choices", [], EXAMPLE)
    listed = {name: _values(name, options) for name, options in choices.items()}
    numbers = [name for name, options in listed.items() if is_number(options[0])]
    if isinstance(free, str) or not set(free) <= set(numbers):
        raise InputError("free", free, f"a list of choices of numbers: {', '.join(numbers) or 'here is none'}")
    return Explore(draw, listed, say, free)


def _values(name: str, options: Any) -> list[Any]:
    """Return the values of a choice as a list, numpy's as Python's."""
    values = options.tolist() if isinstance(options, np.ndarray) else options
    listed = list(values) if isinstance(values, Sequence) and not isinstance(values, str) else []
    if not listed or not (all(map(is_number, listed)) or all(isinstance(v, str | bool) for v in listed)):
        raise InputError(name, options, EXAMPLE)
    return listed
