"""From the press of a slider's key to the changed figure on the screen, in JupyterLab itself; run by `make bench`.

The panel is measured beside its reference, in the same notebook: a callback that redraws the same figure and sentence
from arrays computed before. What the panel takes longer is the model's evaluation and its own overhead; the rest is the
browser's drawing, which no panel can save. Times are asserted on an idle machine only.
"""

import json
from collections.abc import Iterator
from itertools import cycle, islice
from time import sleep

import numpy as np
import psutil
import pytest
from playwright.sync_api import ElementHandle, sync_playwright
from pytest_benchmark.fixture import BenchmarkFixture

from tests.benchmarks.table import Speed
from tests.browser.lab import ARGUMENTS, CHROMIUM, Lab, Notebook, Panel, running_lab

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
plan = sim.Plan(tp=8, pp=4, virtual_stages=2, global_batch=1024, micro_batch=1, zero=1)
sim.whatif(model, cluster, plan)
"""
REFERENCE = """
import json
from pathlib import Path

import numpy as np


def arrays(value):
    if isinstance(value, dict):
        return {key: arrays(part) for key, part in value.items() if key != "uid" and key[0] != "_"}
    if isinstance(value, list) and len(value) > 8 and isinstance(value[0], int | float):
        return np.array(value)
    return [arrays(part) for part in value] if isinstance(value, list) else value


states = [
    ([go.Figure(arrays(figure)) for figure in state["figures"]], state["sentence"])
    for state in json.loads(Path("states.json").read_text())
]
from sim.widgets.canvas import Canvas

canvases, said = [Canvas(figure.layout.width) for figure in states[0][0]], w.HTML(states[0][1])


def draw(state):
    figures, sentence = states[state]
    said.value = f"<p>{sentence}</p>"
    for canvas, figure in zip(canvases, figures):
        canvas.draw(lambda theme, figure=figure: go.Figure(figure), "light", "reference", keep_ranges=False)


def show(change):
    draw(change["new"])


draw(0)
slider = w.SelectionSlider(options=range(len(states)))
slider.observe(show, names="value")
w.VBox([slider, said, *canvases])
"""
BUSY = """
from sim.widgets.background import Job, tune_job

job = Job(lambda found: job.start(tune_job, model, cluster, 1024), print)
job.start(tune_job, model, cluster, 1024);
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab."""
    with running_lab(tmp_path_factory.mktemp("lab")) as one:
        yield one


@pytest.fixture(scope="module")
def notebook(lab: Lab) -> Iterator[Notebook]:
    """A notebook with the panel, the reference, a search in the background and what says whether it still runs."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        cells = (PANEL, REFERENCE, BUSY, "print(job.running)", "job.cancel()")
        one = Notebook(browser, lab, lab.write("latency.ipynb", *cells), height=1600)
        one.run_cell(0)
        yield one
        browser.close()


Move = tuple[ElementHandle, str]


@pytest.fixture(scope="module")
def panel(notebook: Notebook) -> Panel:
    """The panel."""
    return notebook.panel(0)


@pytest.fixture(scope="module")
def path(panel: Panel) -> list[Move]:
    """Keys on several sliders that change figure and sentence, each followed by the one that takes it back."""
    moves = panel.moves()
    assert moves
    return [(slider, key) for slider, *both in moves for key in both]


@pytest.fixture(scope="module")
def reference(lab: Lab, notebook: Notebook, panel: Panel, path: list[Move]) -> tuple[Panel, list[Move]]:
    """A slider that shows what the panel shows along the path, as data, and the keys that walk along it."""
    shown = []
    for slider, key in path:
        shown.append({"figures": panel.figures(), "sentence": panel.state().sentence})
        panel.press(slider, key)
    (lab.folder / "states.json").write_text(json.dumps(shown))
    notebook.run_cell(1)
    one = notebook.panel(1)
    (slider,) = one.sliders
    steps = len(shown) - 1
    return one, [(slider, key) for key in ["ArrowRight"] * steps + ["ArrowLeft"] * steps]


def idle() -> float:
    """Return the share of all cores that is used before a measurement."""
    sleep(1)
    return psutil.cpu_percent(interval=3) / 100


def timed(panel: Panel, move: Move) -> float:
    """Press a key, check that figure and sentence have changed, and return the ms to the screen."""
    before = panel.state()
    spent = panel.press(*move)
    after = panel.state()
    assert after.figure != before.figure
    assert after.sentence != before.sentence
    assert spent is not None
    return spent


def percentiles(ms: list[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile."""
    return float(np.percentile(ms, 50)), float(np.percentile(ms, 95))


def test_slider_to_screen(
    benchmark: BenchmarkFixture,
    panel: Panel,
    path: list[Move],
    reference: tuple[Panel, list[Move]],
    speeds: dict[str, Speed],
) -> None:
    """At most 1.5 times the reference, and 250 ms in 95 of 100 cases."""
    other, keys = reference
    used = idle()

    def run() -> tuple[list[float], list[float]]:
        pairs = islice(zip(cycle(path), cycle(keys), strict=False), PRESSES)  # in turn: others' load is on both
        both = [(timed(panel, mine), timed(other, its)) for mine, its in pairs]
        return [mine for mine, _ in both], [its for _, its in both]

    own, least = (percentiles(ms) for ms in benchmark.pedantic(run, rounds=1))
    benchmark.extra_info.update(panel_ms=own, reference_ms=least, used=used)
    speeds |= {
        "panel: key to screen, median": Speed(own[0], "ms"),
        "panel: key to screen, 95 of 100": Speed(own[1], "ms", f"< {MOST_P95_MS} ms"),
        "panel: over the same figures from arrays, median": Speed(own[0] / least[0], "times", f"< {MOST_RATIO}"),
    }
    if used > IDLE_SHARE:
        pytest.skip(f"the machine is not idle ({used:.0%} used); ratio of medians {own[0] / least[0]:.2f}")
    assert own[0] <= MOST_RATIO * least[0]
    assert own[1] <= MOST_P95_MS


def test_slider_to_screen_beside_a_search(
    benchmark: BenchmarkFixture, notebook: Notebook, panel: Panel, path: list[Move], speeds: dict[str, Speed]
) -> None:
    """A search in its process takes a core or more; at most 350 ms in 95 of 100 cases."""
    used = idle()
    notebook.run_cell(2)

    def run() -> list[float]:
        return [timed(panel, move) for move in islice(cycle(path), PRESSES)]

    own = percentiles(benchmark.pedantic(run, rounds=1))
    notebook.run_cell(3)
    assert notebook.printed(3) == "True\n"
    notebook.run_cell(4)
    benchmark.extra_info.update(panel_ms=own, used=used)
    speeds["panel: beside a search, 95 of 100"] = Speed(own[1], "ms", f"< {MOST_P95_BUSY_MS} ms")
    assert notebook.outside() == []
    if used > IDLE_SHARE:
        pytest.skip(f"the machine is not idle ({used:.0%} used)")
    assert own[1] <= MOST_P95_BUSY_MS
