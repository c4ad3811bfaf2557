"""JupyterLab as `trainsim lab` starts it, and a notebook in it as a user has it: run, sliders, figures, downloads."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, ElementHandle, Page

from sim.cli.lab import lab_arguments
from tests.full import FULL
from tests.oracle import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]

OPENED = ("memory", *(("00-tour", "sweep", "network", "plans") if FULL else ()))
"""Notebooks that are run and used in a browser, where there is one: by default the quickest. The others run without."""

START_S = 60.0
RUN_MS = 240_000

STATE = """(box) => {
  const plot = [...box.querySelectorAll(".js-plotly-plot")].find((p) => p.offsetParent !== null);
  const plain = (v) => v?.length !== undefined && typeof v !== "string" ? Array.from(v, plain) : v;
  const drawn = plot?.data.map((trace) => ["x", "y", "z", "base", "text"].map((key) => plain(trace[key])));
  return { figure: JSON.stringify(drawn), sentence: (box.innerText.match(/.*\\ba step\\b.*/) ?? [""])[0] };
}"""
"""What the open figure draws and the sentence that says how long a step takes, to compare two states of a panel by."""

CONTENT = """(box) => {
  const plain = (v) => ArrayBuffer.isView(v) ? Array.from(v) : Array.isArray(v) ? v.map(plain)
    : v && typeof v === "object" ? Object.fromEntries(Object.entries(v).map(([k, e]) => [k, plain(e)])) : v;
  const plots = [...box.querySelectorAll(".js-plotly-plot")].filter((p) => p.offsetParent !== null);
  return plots.map((p) => ({ data: plain(p.data), layout: plain(p.layout) }));
}"""
"""The figures that are shown, as plain data."""

KERNEL = "jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel"

ARM = """(box) => {
  const state = (globalThis.lag = { done: false, ms: null });
  const plots = [...box.querySelectorAll(".js-plotly-plot")].filter((p) => p.offsetParent !== null);
  const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  let pressed = null, last = null, idle = 0, asked = false;
  const now = () => performance.now();
  const seen = () => requestAnimationFrame(() => requestAnimationFrame(() => { last = now(); }));
  const told = () => { asked ||= pressed !== null; idle = now(); };
  const observer = new MutationObserver(seen);
  const sentence = [...box.querySelectorAll("p")].find((p) => p.innerText.includes("a step"))?.parentElement;
  for (const part of [...plots, sentence ?? box]) {
    observer.observe(part, { childList: true, characterData: true, subtree: true });
  }
  plots.forEach((p) => p.on("plotly_afterplot", seen));
  kernel.statusChanged.connect(told);
  addEventListener("keydown", () => { pressed = now(); }, { capture: true, once: true });
  const timer = setInterval(() => {
    if (pressed === null || kernel.status !== "idle") return;
    if (now() - Math.max(pressed, idle, last ?? 0) < (asked ? 600 : 3000)) return;
    clearInterval(timer);
    observer.disconnect();
    kernel.statusChanged.disconnect(told);
    plots.forEach((p) => p.removeListener("plotly_afterplot", seen));
    Object.assign(state, { done: true, ms: last === null ? null : last - pressed });
  }, 50);
}"""
"""Start a clock at the next key; it stops with the last change of sentence or figure, two frames later, when that is on
the screen. The last is the one after which the kernel is idle and 0.6 s quiet, 3 s where the kernel was not asked."""

HARMLESS = ("ResizeObserver loop", "favicon", "WebGL", "GPU stall")
"""Console messages that say nothing about ours: of headless browsers, and of JupyterLab without its icons."""


class Lab:
    """A running server: where, its token and its folder of notebooks."""

    def __init__(self, folder: Path, port: int, token: str) -> None:
        self.folder, self.port, self.token = folder, port, token
        self.address = f"http://127.0.0.1:{port}"

    def write(self, name: str, *cells: str) -> str:
        """Write a notebook of code cells and return its name."""
        notebook = new_notebook(cells=[new_code_cell(text) for text in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.folder / name)
        return name

    def url(self, notebook: str) -> str:
        """Return the address of a notebook, in a workspace of its own."""
        return f"{self.address}/lab/workspaces/{secrets.token_hex(4)}/tree/{notebook}?token={self.token}"


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_lab(place: Path) -> Iterator[Lab]:
    """Start JupyterLab on a copy of the notebooks below `place`; what it keeps stays there too."""
    folder = shutil.copytree(ROOT / "notebooks", place / "notebooks")
    lab = Lab(folder, free_port(), secrets.token_hex(16))
    own = {
        "JUPYTER_TOKEN": lab.token,
        "JUPYTER_CONFIG_DIR": str(place / "config"),
        "JUPYTER_DATA_DIR": str(place / "data"),
        "JUPYTER_RUNTIME_DIR": str(place / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(place / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(place / "workspaces"),
        "IPYTHONDIR": str(place / "ipython"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    log = (place / "lab.log").open("w")
    command = [sys.executable, *lab_arguments(folder, lab.port, False), "--LabApp.expose_app_in_browser=True"]
    server = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(f"{lab.address}/api?token={lab.token}", server, place / "lab.log")
        yield lab
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


def wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers at `address`."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and server.poll() is None:
        try:
            urlopen(address, timeout=2).close()
        except (URLError, OSError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"JupyterLab did not start: {log.read_text()[-2_000:]}")


class Notebook:
    """A notebook open in a browser, with every request it made and every error it wrote to the console.

    script: JavaScript that runs before the page's own.
    """

    def __init__(self, browser: Browser, lab: Lab, name: str, height: int = 900, script: str = "") -> None:
        self.page: Page = browser.new_page(viewport={"width": 1280, "height": height}, accept_downloads=True)
        self.page.add_init_script(script)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("websocket", lambda socket: self.requests.append(socket.url))
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.lab, self.name = lab, name
        self._home = f"127.0.0.1:{lab.port}/"
        self.page.goto(lab.url(name))
        # Before the kernel is connected and idle "run all" would open a dialog that asks for one.
        ready = f"{KERNEL}?.connectionStatus === 'connected' && {KERNEL}?.status === 'idle'"
        self.page.wait_for_function(f"() => globalThis.jupyterapp && {ready}", timeout=RUN_MS)

    def run_all(self) -> None:
        """Run all cells and wait until the last is done."""
        self.page.set_default_timeout(RUN_MS)
        self.page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells').then(() => null)")
        self.page.wait_for_function(f"() => {KERNEL}.status === 'idle'")

    def run_cell(self, index: int) -> None:
        """Run one cell, wait for it and check that it has not failed."""
        self.page.evaluate(
            "(i) => { jupyterapp.shell.currentWidget.content.activeCellIndex = i;"
            " return jupyterapp.commands.execute('notebook:run-cell').then(() => null); }",
            index,
        )
        self.page.wait_for_function(f"() => {KERNEL}.status === 'idle'")
        assert "Error" not in self.printed(index)

    def printed(self, index: int) -> str:
        """Return what a cell has printed, its error included."""
        find = (
            "(i) => jupyterapp.shell.currentWidget.content.widgets[i].model.outputs.toJSON()"
            ".map((o) => o.text ?? (o.ename ? o.ename + ': ' + o.evalue : '')).join('')"
        )
        return str(self.page.evaluate(find, index))

    def outputs(self) -> list[dict[str, Any]]:
        """Return the outputs of all cells."""
        every: list[dict[str, Any]] = self.page.evaluate(
            "() => jupyterapp.shell.currentWidget.content.widgets.flatMap((c) => c.model.outputs?.toJSON() ?? [])"
        )
        return every

    def panel(self, index: int = 0) -> "Panel":
        """Return the n-th output with sliders, once a figure is drawn in it."""
        boxes = self.page.locator(".jp-OutputArea-output:has([role=slider])")
        boxes.nth(index).wait_for(timeout=RUN_MS)
        box = boxes.nth(index)
        box.locator(".js-plotly-plot .main-svg").locator("visible=true").first.wait_for(timeout=RUN_MS)
        self.page.wait_for_timeout(1_000)  # the figure learns its width when it is drawn, and is drawn again
        return Panel(self.page, box.element_handle())

    def scroll_to_cell(self, index: int) -> None:
        """Bring a cell (negative: from the end) into view: the notebook draws only what is near."""
        self.page.evaluate(
            "(i) => { const all = jupyterapp.shell.currentWidget.content;"
            " return all.scrollToItem(i < 0 ? all.widgets.length + i : i, 'start').then(() => null); }",
            index,
        )

    def close(self) -> None:
        """Shut the kernel down and close the page."""
        self.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown().then(() => null)")
        self.page.close()

    def outside(self) -> list[str]:
        """Return the requests that left this machine's server."""
        own = tuple(f"{scheme}://{self._home}" for scheme in ("http", "ws"))
        return [url for url in self.requests if not url.startswith((*own, "data:", "blob:"))]

    def console_errors(self) -> list[str]:
        """Return the console's errors that are not known to be harmless."""
        return [text for text in self.errors if not any(known in text for known in HARMLESS)]


@dataclass(frozen=True)
class State:
    """What a panel shows: the open figure's data as text, and its sentence."""

    figure: str
    sentence: str


class Panel:
    """Sliders and figures in one output, found by what a reader finds them by: their roles and the drawing."""

    def __init__(self, page: Page, box: ElementHandle) -> None:
        self.page, self.box = page, box

    @property
    def sliders(self) -> list[ElementHandle]:
        """The sliders' handles that can be seen, from the top."""
        return [handle for handle in self.box.query_selector_all("[role=slider]") if handle.is_visible()]

    def state(self) -> State:
        """Return what is shown."""
        return State(**self.box.evaluate(STATE))

    def figures(self) -> list[dict[str, Any]]:
        """Return the figures that are shown, as plotly has them: data and layout."""
        return list(self.box.evaluate(CONTENT))

    def press(self, slider: ElementHandle, key: str) -> float | None:
        """Press a key on a slider and return the ms to the last change on the screen, None where there was none."""
        slider.focus()
        self.box.evaluate(ARM)
        self.page.keyboard.press(key)
        self.page.wait_for_function("() => lag.done", timeout=60_000)
        found = self.page.evaluate("() => lag.ms")
        return None if found is None else float(found)

    def moves(self, most: int = 3) -> list[tuple[ElementHandle, str, str]]:
        """Return sliders with the keys that change figure and sentence there and back, `most` of them."""
        found = []
        for slider in self.sliders:
            for there, back in (("ArrowRight", "ArrowLeft"), ("ArrowLeft", "ArrowRight")):
                before = self.state()
                self.press(slider, there)
                after = self.state()
                self.press(slider, back)
                if after.figure != before.figure and after.sentence != before.sentence and self.state() == before:
                    found.append((slider, there, back))
                    break
            if len(found) == most:
                break
        return found
