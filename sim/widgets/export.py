"""Buttons that save the figure shown: SVG and PNG are made by plotly in the browser, CSV and HTML here.

Nothing is fetched, and no program beside the browser is needed.
"""

import gzip
from collections.abc import Callable
from typing import Any

import anywidget
import plotly.graph_objects as go
import traitlets

from sim.report.figure_files import figure_csv, figure_html
from sim.report.theme import Theme

MIME = {"csv": "text/csv", "html": "text/html"}
LEVEL = 6
"""Level of compression: a page of 4.8 MB in 0.2 s. Whole, it would be more than Jupyter passes on in a second."""


class ExportBar(anywidget.AnyWidget):
    """Four buttons. SVG and PNG are those of the visible figure in the nearest box around the buttons.

    draw: returns the figure in a theme, for CSV and HTML (None: no figure is shown); `name`: of the files, without
    their ending; `sentence`: what the figure says, for the HTML page. The caller keeps both up to date.
    """

    _esm = """
    function render({ model, el }) {
      const says = document.createElement("span");
      const shown = () => {
        for (let box = el.parentElement; box; box = box.parentElement) {
          const plot = [...box.querySelectorAll(".js-plotly-plot")].find((p) => p.offsetParent !== null);
          if (plot) return plot;
        }
      };
      const image = (format) => {
        const plot = shown();
        const button = plot?.querySelector('.modebar-btn[data-title^="Download plot"]');
        if (!button) { says.textContent = "no figure is shown"; return; }
        const kept = plot._context.toImageButtonOptions;
        plot._context.toImageButtonOptions = { format, filename: model.get("name"), scale: format === "png" ? 2 : 1 };
        button.click();
        plot._context.toImageButtonOptions = kept;
      };
      const save = (blob, name) => {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(blob);
        link.download = name;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60000);
      };
      const arrived = async (content, buffers) => {
        says.textContent = content.error ?? "";
        if (content.error) return;
        const whole = new Blob([buffers[0]]).stream().pipeThrough(new DecompressionStream("gzip"));
        save(new Blob([await new Response(whole).arrayBuffer()], { type: content.type }), content.name);
      };
      const group = document.createElement("div");
      group.setAttribute("role", "group");
      group.setAttribute("aria-label", "Export the figure");
      for (const format of ["svg", "png", "csv", "html"]) {
        const button = document.createElement("button");
        button.className = "jupyter-widgets jupyter-button widget-button";
        button.style.width = "auto";
        button.textContent = format.toUpperCase();
        button.title = "Save the figure as " + format.toUpperCase();
        button.addEventListener("click", () => {
          says.textContent = "";
          if (format === "svg" || format === "png") image(format); else model.send({ format });
        });
        group.append(button);
      }
      group.append(says);
      el.append(group);
      model.on("msg:custom", arrived);
      return () => model.off("msg:custom", arrived);
    }
    export default { render };
    """
    name = traitlets.Unicode("figure").tag(sync=True)
    sentence = traitlets.Unicode("")

    def __init__(self, draw: Callable[[Theme], go.Figure | None], name: str = "figure", sentence: str = "") -> None:
        self._draw = draw
        super().__init__(name=name, sentence=sentence)
        self.on_msg(self._asked)

    def text(self, file_format: str) -> str | None:
        """Return the figure as "csv" or "html", or None where none is shown."""
        light = self._draw("light")
        if light is None:
            return None
        if file_format == "csv":
            return figure_csv(light)
        return figure_html(self._draw, self.name, self.sentence)

    def _asked(self, _: object, content: Any, __: object) -> None:
        file_format = content.get("format") if isinstance(content, dict) else None
        if file_format not in MIME:
            return
        text = self.text(file_format)
        if text is None:
            self.send({"error": "no figure is shown"})
            return
        answer = {"name": f"{self.name}.{file_format}", "type": MIME[file_format]}
        self.send(answer, buffers=[gzip.compress(text.encode(), LEVEL)])
