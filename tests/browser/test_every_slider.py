"""Every panel of every notebook in a real browser: each slider moves what is drawn or said, and nothing fails."""

import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.lab import CHROMIUM, CONTENT, RUN_MS, Lab, Notebook, Panel
from tests.full import fully
from tests.oracle import ROOT

pytestmark = [
    fully,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)"),
]

PANELS = ("sim.explore(", "sim.whatif(")
MOST_STEPS = 4
"""So far a slider goes one way until something changes: beside the first values of a knob there may be slack."""

SHOTS = os.environ.get("TRAINSIM_SCREENSHOTS")
"""A folder for a picture of every panel after every slider, to be looked at."""

SAID = "(box) => [...box.querySelectorAll('.say')].map((p) => p.innerText).join(' ')"


def panels(name: str) -> list[int]:
    """Return the numbers of the cells with a panel."""
    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())["cells"]
    return [
        n for n, cell in enumerate(cells)
        if cell["cell_type"] == "code" and any(call in "".join(cell["source"]) for call in PANELS)
    ]  # fmt: skip


NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if panels(name)])
def test_every_slider_moves_something(lab: Lab, browser: Browser, name: str) -> None:
    notebook = Notebook(browser, lab, f"{name}.ipynb", height=1400)
    notebook.run_all()
    assert not [o for o in notebook.outputs() if o["output_type"] == "error" or o.get("name") == "stderr"]
    still: list[str] = []
    for cell in panels(name):
        notebook.scroll_to_cell(cell)
        box = notebook.page.locator(f".jp-Cell[data-windowed-list-index='{cell}'] .jp-OutputArea-output").last
        box.locator("[role=slider]").first.wait_for(timeout=RUN_MS)
        box.locator(".js-plotly-plot .main-svg").locator("visible=true").first.wait_for(timeout=RUN_MS)
        notebook.page.wait_for_timeout(1_000)
        still += unmoved(notebook, Panel(notebook.page, box.element_handle()), f"{name}-{cell}")
    assert not notebook.console_errors(), notebook.console_errors()
    assert notebook.outside() == []
    notebook.close()
    assert not still


def unmoved(notebook: Notebook, panel: Panel, name: str) -> list[str]:
    """Return the sliders that change neither figures nor words of a panel, whichever way they go; all end as before."""
    found = []
    for number in range(len(panel.sliders)):
        moved = [
            changed(notebook, panel, number, keys, f"{name}-{number}")
            for keys in (("ArrowRight", "ArrowLeft"), ("ArrowLeft", "ArrowRight"))
        ]
        if not any(moved):
            found.append(f"{name}: slider {number}")
    return found


def changed(notebook: Notebook, panel: Panel, number: int, keys: tuple[str, str], name: str) -> bool:
    """Return whether some steps with the first key change what is seen; as many with the second take it back."""
    before, steps, seen = state(panel), 0, False
    while steps < MOST_STEPS and not seen:
        at = panel.sliders[number].get_attribute("aria-valuenow")
        panel.press(panel.sliders[number], keys[0])
        if panel.sliders[number].get_attribute("aria-valuenow") == at:
            break  # its end
        steps, seen = steps + 1, state(panel) != before
    if SHOTS and steps:
        notebook.page.screenshot(path=Path(SHOTS) / f"{name}-{keys[0]}.png")
    for _ in range(steps):
        panel.press(panel.sliders[number], keys[1])
    return seen


def state(panel: Panel) -> str:
    """Return what is drawn and said."""
    return json.dumps(panel.box.evaluate(CONTENT), default=str) + str(panel.box.evaluate(SAID))
