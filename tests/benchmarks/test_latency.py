"""From the press of a slider's key to the changed figure on the screen, in JupyterLab itself; run by `make bench`.

The panel is measured beside its reference, in the same notebook: a callback that redraws the same figure and sentence
from arrays computed before. What the panel takes longer is the model's evaluation and its own overhead; the rest is the
browser's drawing, which no panel can save. Times are asserted on an idle machine only.
"""

from collections.abc import Iterator
from time import sleep

import numpy as np
import psutil
import pytest
from playwright.sync_api import sync_playwright

from tests.browser.lab import Notebook, Panel, running_lab
from tests.browser.test_report import ARGUMENTS, CHROMIUM

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)"),
]

PRESSES = 30
MOST_RATIO = 1.5
MOST_P95_MS = 250
MOST_P95_BUSY_MS = 350
IDLE_SHARE = 0.25
"""Of all cores: what others may use while times are asserted."""

PANEL = """
import ipywidgets as w
import plotly.graph_objects as go
import sim

model, cluster = sim.models["gpt3-175b"], sim.Cluster.of("h100-sxm-80gb", nodes=16)
plan = sim.Plan(tp=8, pp=4, virtual_stages=2, global_batch=1024, micro_batch=1, zero=1, recompute="selective")
sim.whatif(model, cluster, plan)
"""
REFERENCE = """
steps = [sim.simulate(model, cluster, plan.but(micro_batch=m)) for m in (1, 2, 4)]
drawn = [(sim.plot.timeline(step), sim.report.answer(step)) for step in steps]
canvas, said = go.FigureWidget(drawn[0][0]), w.HTML(drawn[0][1])
canvas.layout.width = WIDTH


def show(change):
    figure, sentence = drawn[change["new"]]
    said.value = sentence
    with canvas.batch_update():
        canvas.data = []
        canvas.layout = figure.layout
        canvas.layout.width = WIDTH
        canvas.add_traces(figure.data)


slider = w.SelectionSlider(options=[0, 1, 2])
slider.observe(show, names="value")
w.VBox([slider, said, canvas])
"""
BUSY = """
from sim.widgets.background import Job, tune_job

job = Job(lambda found: job.start(tune_job, model, cluster, 1024), print)
job.start(tune_job, model, cluster, 1024);
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with the panel, the reference, a search in the background and what says whether it still runs."""
    with running_lab(tmp_path_factory.mktemp("lab")) as lab, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        cells = (PANEL, REFERENCE.replace("WIDTH", "520"), BUSY, "print(job.running)", "job.cancel()")
        one = Notebook(browser, lab, lab.write("latency.ipynb", *cells), height=1600)
        one.run_cell(0)
        one.run_cell(1)
        yield one
        browser.close()


def idle() -> float:
    """Return the share of all cores that is used before a measurement."""
    sleep(1)
    return psutil.cpu_percent(interval=3) / 100


def times(panel: Panel, presses: int = PRESSES) -> list[float]:
    """Press keys that change figure and sentence, there and back on several sliders; ms to the screen of each."""
    moves, found = panel.moves(), []
    assert moves
    while len(found) < presses:
        for slider, *keys in moves:
            for key in keys:
                before = panel.state()
                spent = panel.press(slider, key)
                after = panel.state()
                assert after.figure != before.figure
                assert after.sentence != before.sentence
                assert spent is not None
                found.append(spent)
    return found


def percentiles(ms: list[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile."""
    return float(np.percentile(ms, 50)), float(np.percentile(ms, 95))


def test_slider_to_screen(benchmark, notebook: Notebook, speeds: dict[str, float]) -> None:
    """At most 1.5 times the reference, and 250 ms in 95 of 100 cases."""
    used = idle()

    def run() -> tuple[list[float], list[float]]:
        return times(notebook.panel(1)), times(notebook.panel(0))

    reference, own = (percentiles(ms) for ms in benchmark.pedantic(run, rounds=1))
    benchmark.extra_info.update(panel_ms=own, reference_ms=reference, used=used)
    for name, (p50, p95) in {"panel": own, "reference": reference}.items():
        speeds |= {f"slider to screen, {name}, ms, p50": p50, f"slider to screen, {name}, ms, p95": p95}
    if used > IDLE_SHARE:
        pytest.skip(f"the machine is not idle ({used:.0%} used); panel {own} ms, reference {reference} ms")
    assert own[0] <= MOST_RATIO * reference[0]
    assert own[1] <= MOST_P95_MS


def test_slider_to_screen_beside_a_search(benchmark, notebook: Notebook, speeds: dict[str, float]) -> None:
    """A search in its process takes a core or more; at most 350 ms in 95 of 100 cases."""
    used = idle()
    panel = notebook.panel(0)
    notebook.run_cell(2)
    own = percentiles(benchmark.pedantic(times, (panel,), rounds=1))
    notebook.run_cell(3)
    assert notebook.printed(3) == "True\n"
    notebook.run_cell(4)
    benchmark.extra_info.update(panel_ms=own, used=used)
    speeds |= {"slider to screen beside a search, ms, p50": own[0], "slider to screen beside a search, ms, p95": own[1]}
    assert notebook.outside() == []
    if used > IDLE_SHARE:
        pytest.skip(f"the machine is not idle ({used:.0%} used); panel {own} ms")
    assert own[1] <= MOST_P95_BUSY_MS
