"""The width of the column that a figure stands in: plotly's widget keeps 700 px wherever it is put."""

import anywidget
import traitlets


class WidthSensor(anywidget.AnyWidget):
    """An empty line that reports the width of its box in pixels; 0 until the browser has drawn it."""

    _esm = """
    function render({ model, el }) {
      const report = () => {
        const width = Math.round(el.getBoundingClientRect().width);
        if (width > 0 && width !== model.get("width")) { model.set("width", width); model.save_changes(); }
      };
      const observer = new ResizeObserver(report);
      observer.observe(el);
      return () => observer.disconnect();
    }
    export default { render };
    """
    width = traitlets.Int(0).tag(sync=True)
