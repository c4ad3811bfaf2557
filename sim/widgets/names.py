"""Names and values of sliders for those who do not see the text above them: ipywidgets gives its handles none."""

from typing import TypeVar

import anywidget
import ipywidgets as w

Control = TypeVar("Control", bound=w.Widget)


def named(control: Control, name: str) -> Control:
    """Return a control that has nothing beside it that says what it is, with that as the label that only is read."""
    control.description = name
    control.add_class("trainsim-read-label")
    return control


class KnobNames(anywidget.AnyWidget):
    """Nothing to see: gives every handle and box of the panel around it the name of its knob, and every handle its
    value, which would be the place in the list of values. Again whenever a slider moves or is made anew.
    """

    _esm = """
    function render({ el }) {
      let frame, panel; /* of a panel with figures beside the controls, the controls */
      const unnamed = ["[role=slider]", "input"].map((part) => `.trainsim-knob ${part}:not([aria-label])`).join();
      const name = () => {
        for (const part of panel.querySelectorAll(unnamed)) {
          const words = part.closest(".trainsim-knob").querySelector("[data-name]")?.dataset.name;
          if (words) part.setAttribute("aria-label", words);
        }
        for (const handle of panel.querySelectorAll(".trainsim-knob [role=slider]")) {
          const value = handle.closest(".widget-hslider").querySelector(".widget-readout")?.textContent;
          if (value && handle.getAttribute("aria-valuetext") !== value) handle.setAttribute("aria-valuetext", value);
        }
      };
      /* Once a frame: a figure that is drawn changes many elements. */
      const soon = () => { frame ??= requestAnimationFrame(() => { frame = undefined; name(); }); };
      const seen = new MutationObserver(soon);
      const begin = () => {
        panel = el.closest(".trainsim-controls") ?? el.closest(".trainsim");
        frame = panel ? undefined : requestAnimationFrame(begin);
        if (!panel) return;
        seen.observe(panel, { childList: true, subtree: true, attributeFilter: ["aria-valuetext"] });
        name();
      };
      begin();
      return () => { cancelAnimationFrame(frame); seen.disconnect(); };
    }
    export default { render };
    """
