"""What the browser knows and Python does not: the width of a column, and whether the notebook is light or dark."""

from collections.abc import Callable

import anywidget
import traitlets

from sim.report.theme import Theme


class WidthSensor(anywidget.AnyWidget):
    """An empty line that reports the width of its box in pixels (0 until the browser has drawn it) and the theme.

    plotly's widget keeps 700 px wherever it is put, and knows nothing of JupyterLab's theme.
    """

    _esm = """
    function render({ model, el }) {
      const report = () => {
        const width = Math.round(el.getBoundingClientRect().width);
        const theme = document.body.dataset.jpThemeLight === "false" ? "dark" : "light";
        let changed = false;
        if (width > 0 && width !== model.get("width")) { model.set("width", width); changed = true; }
        if (theme !== model.get("theme")) { model.set("theme", theme); changed = true; }
        if (changed) { model.save_changes(); }
      };
      const size = new ResizeObserver(report), look = new MutationObserver(report);
      size.observe(el);
      look.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
      report();
      return () => { size.disconnect(); look.disconnect(); };
    }
    export default { render };
    """
    width = traitlets.Int(0).tag(sync=True)
    theme = traitlets.Enum(["light", "dark"], "light").tag(sync=True)

    @property
    def look(self) -> Theme:
        """The theme in which to draw."""
        return "dark" if self.theme == "dark" else "light"

    def tell(self, fill: Callable[[int], None], redraw: Callable[[], None]) -> None:
        """Call `fill` with a new width, and `redraw` after a change of theme."""
        self.observe(lambda _: fill(self.width), names="width")
        self.observe(lambda _: redraw(), names="theme")
