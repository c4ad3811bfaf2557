"""Notebooks in a real browser: they run from top to bottom, and what a reader moves moves what he sees."""

import json

import pytest
from playwright.sync_api import Browser

from tests.browser.lab import CHROMIUM, OPENED, Lab, Notebook
from tests.full import fully

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)"),
]


@pytest.fixture
def opened(lab: Lab, browser: Browser):
    """Return a function that opens a notebook and runs all of it; at the end nothing has left the machine."""
    held: list[Notebook] = []

    def run(name: str) -> Notebook:
        notebook = Notebook(browser, lab, f"{name}.ipynb")
        held.append(notebook)
        notebook.run_all()
        outputs = notebook.outputs()
        assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
        assert sum("application/vnd.plotly.v1+json" in o.get("data", {}) for o in outputs) >= 4
        return notebook

    yield run
    for notebook in held:
        assert notebook.outside() == []
        assert not notebook.console_errors(), notebook.console_errors()
        notebook.close()


def to_panel(notebook: Notebook) -> int:
    """Bring the first cell with a panel into view, and return its number."""
    cells = json.loads((notebook.lab.folder / notebook.name).read_text())["cells"]
    calls = ("sim.whatif(", "sim.watch_sweep(")
    index = next(i for i, cell in enumerate(cells) if any(call in "".join(cell["source"]) for call in calls))
    notebook.scroll_to_cell(index)
    return index


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPENED if name != "sweep"])
def test_a_slider_moves_sentence_and_figure(opened, name: str) -> None:
    notebook = opened(name)
    to_panel(notebook)
    panel = notebook.panel()
    assert "a step" in panel.state().sentence
    drawn = next(one for one in panel.box.query_selector_all(".js-plotly-plot") if one.is_visible())
    slider, figure = panel.sliders[0].bounding_box(), drawn.bounding_box()
    assert figure["x"] > slider["x"] + slider["width"]  # beside each other, the file browser open
    assert len(panel.moves(2)) == 2
    notebook.page.set_viewport_size({"width": 1240, "height": 900})  # the cell has less than 900
    notebook.page.wait_for_timeout(1_000)
    assert drawn.bounding_box()["x"] < slider["x"] + slider["width"]  # below each other


@fully
def test_a_sweep_runs_beside_its_notebook(opened) -> None:
    notebook = opened("sweep")
    to_panel(notebook)
    page = notebook.page
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_text("864 of 864 configurations done").wait_for(timeout=180_000)
    page.get_by_text("0 left. Best: ").wait_for()
