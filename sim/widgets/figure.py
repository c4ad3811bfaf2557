"""plotly's figure widget, for a busy browser: plotly.js once a page, data with the figure, no change lost."""

import asyncio
from collections.abc import Callable
from typing import Any

import anywidget
import ipywidgets as w
import plotly
import plotly.graph_objects as go
import traitlets
from plotly.serializers import custom_serializers

DEAF_S, RENEWALS = 10.0, 3
"""Seconds in which a browser answers, and how often in a row a figure is given to one that does not."""


class Library(anywidget.AnyWidget):
    """plotly.js for the figures of a page, which find it by reference."""

    _esm = "export default {};"
    source = traitlets.Unicode().tag(sync=True)
    version = traitlets.Unicode(plotly.__version__).tag(sync=True)

    def __init__(self) -> None:
        super().__init__(source=str(go.FigureWidget._esm))


_held: list[Library] = []


def library() -> Library:
    """Return this process's library, another where it was closed."""
    if not _held or _held[0].comm is None:
        _held[:] = [Library()]
    return _held[0]


class Figure(go.FigureWidget):
    """A figure in a notebook.

    plotly's own widget sends its data after itself, and 5 MB of plotly.js with each. Messages to a widget whose script
    is not loaded after 2 s are lost, without a word: its figure stays blank. This one's script is short, its data comes
    with it, and changes that come before plotly.js are told to it then. Where they are lost all the same, it is sent
    again; then `renewed` is called, so that what holds it is sent too.
    """

    _esm = """
    const CHANGES = [
      "addTraces", "deleteTraces", "moveTraces", "restyle", "relayout", "update", "animate", "removeLayoutProps",
      "removeTraceProps",
    ].map((name) => "_py2js_" + name);
    const loaded = async (model) => {
      const library = await model.widget_manager.get_model(model.get("_library").slice("IPY_MODEL_".length));
      const kept = (globalThis.trainsimPlotly ??= {});
      kept[library.get("version")] ??= (async () => {
        const url = URL.createObjectURL(new Blob([library.get("source")], { type: "text/javascript" }));
        try { return await import(url); } finally { URL.revokeObjectURL(url); }
      })();
      return (await kept[library.get("version")]).default();
    };
    export default () => {
      const early = [], notes = new Map();
      let model, figure, asked = false;
      const begin = async () => {
        const plotly = await loaded(model);
        const heard = {};
        let said = [];
        notes.forEach((note, event) => model.off(event, note));
        plotly.initialize({ model: {
          get: (name) => (name === said[0] ? said[1] : model.get(name)),
          set: (name, value) => model.set(name, value),
          on: (event, hear) => { heard[event] = hear; model.on(event, hear); },
          save_changes: () => model.save_changes(),
        } });
        for (said of early) heard["change:" + said[0]]();
        said = [];
        return plotly;
      };
      return {
        initialize(own) {
          model = own.model;
          for (const name of CHANGES) {
            notes.set("change:" + name, () => early.push([name, model.get(name)]));
            model.on("change:" + name, notes.get("change:" + name));
          }
        },
        // Not before it is shown: by then the short scripts of the figures beside it are there, and lose nothing while
        // the browser is busy with the long one.
        async render(view) {
          const done = (await (figure ??= begin())).render(view);
          if (!asked) {
            asked = true;
            model.on("msg:custom", () => model.send("hears"));
            model.send("shown");
          }
          return done;
        },
      };
    };
    """
    _library = traitlets.Instance(Library).tag(sync=True, **w.widget_serialization)
    comm: Any
    _whole, _renewals = False, 0
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, figure: go.Figure, config: dict[str, Any], renewed: Callable[[], None]) -> None:
        self._renewed = renewed
        super().__init__(figure)
        self._library, self._config, self._whole = library(), config, True
        self.on_msg(self._told)
        self.open()

    def open(self) -> None:
        """Tell the browser of it, once it is whole."""
        if self._whole:
            super().open()

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Return what a browser is told: of the figure what it is now, not as it began. A page may be loaded again."""
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        if not self._whole:
            return state
        now = {"_widget_data": self._data, "_widget_layout": self._layout_obj._props}
        return state | {name: custom_serializers["to_json"](now[name], self) for name in now.keys() & state.keys()}

    def _told(self, _: object, said: Any, __: object) -> None:
        """Ask a browser that shows the figure whether it hears of changes, and take its answer."""
        if self._timer:
            self._timer.cancel()
        if said == "shown" and self._renewals < RENEWALS:
            self._timer = asyncio.get_running_loop().call_later(DEAF_S, self._renew)
            self.send("does it hear?")
        elif said == "hears":
            self._renewals = 0

    def _renew(self) -> None:
        """Be another widget to the browser, which does not hear of changes of this one."""
        if self.comm is None:  # closed meanwhile
            return
        self._renewals += 1
        self.comm.close()
        self.comm = self._model_id = None
        self.open()
        self._renewed()
