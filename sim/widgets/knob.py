"""One setting as a control: name and hint above, the slider below, and a box for any other value."""

from collections.abc import Callable, Sequence
from html import escape
from math import isfinite
from typing import Any

import ipywidgets as w
import traitlets

from sim.specs import InputError

BOX = "76px"
STYLE = """<style>
.trainsim .trainsim-knob .widget-html-content {
  line-height: 18px; overflow: hidden; white-space: nowrap; text-overflow: ellipsis}
.trainsim .trainsim-controls .widget-html-content {line-height: 18px}
.trainsim .trainsim-stale {opacity: 0.35}
.trainsim .trainsim-read-label > label {position: absolute; width: 1px; overflow: hidden; clip-path: inset(50%)}
.trainsim .cards {display: flex; flex-wrap: wrap; gap: 8px}
.trainsim .card {flex: 1 1 104px; display: flex; flex-direction: column; line-height: 16px;
  border: 1px solid var(--jp-border-color2); border-radius: 6px; padding: 6px 10px}
.trainsim .card .label, .trainsim .card .note {font-size: 12px; color: var(--jp-ui-font-color2)}
.trainsim .badge {border: 1px solid var(--jp-border-color2); border-radius: 8px; padding: 0 5px; font-size: 11px}
.trainsim .card .value {font-size: 20px; font-weight: 600; line-height: 28px; white-space: nowrap}
.trainsim .trainsim-knob .widget-hslider {margin-left: 8px}
.trainsim .trainsim-knob .widget-readout {max-width: none}
.trainsim .say {font-size: 14px; line-height: 20px; margin: 6px 0; white-space: normal}
.trainsim .wrong {border-left: 4px solid #B00020; padding-left: 8px}
.trainsim .widget-html, .trainsim .widget-html-content {min-width: 0}
.trainsim .data {overflow-x: auto; line-height: 18px; font-size: 12px; white-space: normal}
.trainsim .wide {overflow-x: auto} .trainsim .wide td {white-space: nowrap}
.trainsim .data h2 {font-size: 14px; margin: 10px 0 4px} .trainsim .data h3 {font-size: 13px; margin: 8px 0 4px}
.trainsim .data td, .trainsim .data th {text-align: left; padding: 1px 12px 1px 0; vertical-align: top}
.trainsim .numbers {container-type: inline-size}
@container (max-width: 820px) {  /* headings side by side would hide the last columns */
  .trainsim .numbers td {padding-right: 8px}
  .trainsim .numbers th {
    padding: 4px 0 0 8px; writing-mode: vertical-rl; transform: rotate(180deg); vertical-align: top}
}
.trainsim .data pre {overflow-x: auto; font-size: 12px; user-select: all}
.trainsim .widget-tab > .lm-TabBar .lm-TabBar-tab {flex: 0 0 auto; padding: 0 7px}
.trainsim button:focus-visible, .trainsim [role=slider]:focus-visible {outline: 2px solid var(--jp-brand-color1)}
</style>"""
"""Of all panels; colours of text and borders are those of the notebook's theme."""


class Knob(w.VBox):
    """A setting with `value`: a slider over `options`, and for numbers, unless `boxed` is False, a box for any other.

    Numbers without options, or with only one, have the box alone. What is set stays, whether it is possible or not;
    `hint` says beside the name what is.

    Raises:
        InputError: a value that no slider or box could show: of a setting of numbers no finite number, of another none
            that is text, True or False.
    """

    value: Any = traitlets.TraitType()  # not traitlets.Any, of which None is not validated

    def __init__(
        self, name: str, options: Sequence[Any], value: Any, words: str = "", unit: str = "", boxed: bool = True
    ) -> None:
        self.name, self.words, self.unit, self._quiet = name, words or name.replace("_", " "), unit, False
        self.is_number, self._slides = is_number(value), len(options) > 0
        boxed = boxed and self.is_number
        if boxed and unit.strip():  # the slider's read-out, which the box stands for, would say it
            self.words += f", {unit.strip()}"
        self._label = w.HTML(layout=w.Layout(height="18px", margin="0"))
        self._slider = w.SelectionSlider(
            options=self._listed(options, value), value=value, readout=not boxed,
            layout=w.Layout(flex="1 1 auto", width="auto", min_width="0"),
        )  # fmt: skip
        number = w.FloatText if isinstance(value, float) else w.IntText
        self._box = number(value, continuous_update=False, layout=w.Layout(width=BOX)) if boxed else None
        row = w.HBox([self._slider, *([self._box] if self._box else [])], layout=w.Layout(height="30px"))
        super().__init__([self._label, row], layout=w.Layout(margin="0 0 4px 0"))
        self.add_class("trainsim-knob")
        self.value = value
        self._hide()
        self.hint("")
        self._slider.observe(self._moved, names="value")
        if self._box:
            self._box.observe(self._moved, names="value")
        self.observe(self._show, names="value")

    def hint(self, text: str, near: str = "") -> None:
        """Write beside the name which values are possible, of them only those `near` where the present one is not."""
        beside = f"<b>(x) try {escape(near)}</b>" if near else escape(text)  # the column has no room for all
        told = f"impossible, try {text}" if near else f"possible beside the other settings: {text}" if text else ""
        name = f"<span data-name='{escape(self.words)}' title='{escape(told)}'>{escape(self.words)}"
        self._label.value = f"{name} <span style='color:var(--jp-ui-font-color2)'>{beside}</span></span>"

    def offer(self, options: Sequence[Any]) -> None:
        """Let the slider go over other values; the present one stays."""
        listed = self._listed(options, self.value)
        if list(self._slider.options) != listed:
            self._quiet = True
            self._slider.options, self._slider.value = listed, self.value
            self._hide()
            self._quiet = False

    @property
    def options(self) -> tuple[Any, ...]:
        """The values that the slider goes over."""
        return tuple(value for _, value in self._slider.options)

    @traitlets.validate("value")
    def _possible(self, proposal: Any) -> Any:
        value = proposal["value"]
        if self.is_number and not (is_number(value) and isfinite(value)):
            few, most = min(self.options), max(self.options)
            span = f"; the slider goes from {few} to {most}" if few < most else ""
            raise InputError(self.name, value, f"a finite number{span}")
        if not self.is_number and not isinstance(value, str | bool):
            raise InputError(self.name, value, f"one of {', '.join(map(str, self.options))}")
        return value

    def _listed(self, options: Sequence[Any], value: Any) -> list[tuple[str, Any]]:
        every = list(options) if value in options else [*options, value]
        return [(f"{v}{self.unit}", v) for v in (sorted(every) if self.is_number else every)]

    def _hide(self) -> None:
        """Hide a slider that has nowhere to go; without a box it is all that shows the value."""
        moves = not self._box or (self._slides and len(self.options) > 1)
        self._slider.layout.display = None if moves else "none"

    def _moved(self, change: Any) -> None:
        if not self._quiet:
            self.value = change["new"]

    def _show(self, change: Any) -> None:
        """Bring slider and box to the value, which may come from any side."""
        del change
        self._quiet = True
        if self.value not in self.options:
            self._slider.options = self._listed(self.options, self.value)
            self._hide()
        self._slider.value = self.value
        if self._box:
            self._box.value = self.value
        self._quiet = False


def is_number(value: Any) -> bool:
    """Return whether a value can be typed into a box of numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def on_change(knobs: Sequence[w.Widget], what: Callable[[], None]) -> None:
    """Call `what` after every change of a knob's value."""
    for knob in knobs:
        knob.observe(lambda _: what(), names="value")
