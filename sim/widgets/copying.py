"""A button that copies text to the reader's clipboard."""

import anywidget
import traitlets


class CopyButton(anywidget.AnyWidget):
    """A button that copies `text`, which the caller keeps up to date, and says so."""

    _esm = """
    const copied = async (text) => {
      try { await navigator.clipboard.writeText(text); return true; } catch { }
      // Pages that came over plain HTTP have no clipboard.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    };
    function render({ model, el }) {
      const button = document.createElement("button");
      button.className = "jupyter-widgets jupyter-button widget-button";
      button.style.width = "auto";
      button.textContent = model.get("label");
      const says = document.createElement("span");
      says.setAttribute("role", "status");
      button.addEventListener("click", async () => {
        says.textContent = await copied(model.get("text")) ? " copied" : " the browser forbids it";
      });
      model.on("change:text", () => { says.textContent = ""; });
      el.append(button, says);
    }
    export default { render };
    """
    label = traitlets.Unicode("Copy").tag(sync=True)
    text = traitlets.Unicode("").tag(sync=True)
