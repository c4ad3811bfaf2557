"""Sliders and boxes of a panel have names that a screen reader says, also where they were made anew."""

import pytest
from playwright.sync_api import Browser

from tests.browser.lab import CHROMIUM, Lab, Notebook

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)"),
]

PANEL = """
import sim
model, cluster = sim.models["gpt3-175b"], sim.Cluster.of("h100-sxm-80gb", nodes=16)
panel = sim.whatif(model, cluster, sim.Plan(tp=8, pp=4, virtual_stages=2, global_batch=1024))
panel
"""
UNNAMED = "[role=slider]:not([aria-label]), .trainsim-knob input:not([aria-label])"


@pytest.mark.slow
def test_every_slider_and_box_has_a_name(lab: Lab, browser: Browser) -> None:
    notebook = Notebook(browser, lab, lab.write("names.ipynb", PANEL))
    notebook.run_all()
    notebook.panel()
    page = notebook.page
    assert len(page.query_selector_all("[role=slider]")) > 20  # folded ones too
    assert page.query_selector_all(UNNAMED) == []
    box = page.get_by_role("spinbutton", name="pipeline stages (pp)")
    box.fill("7")  # no value of the slider: it is made anew
    box.press("Enter")
    page.locator("[role=slider][aria-label='pipeline stages (pp)'][aria-valuetext='7']").wait_for()
    depth = page.get_by_role("slider", name="pipeline stages (pp)")
    depth.press("ArrowRight")
    page.locator("[role=slider][aria-label='pipeline stages (pp)'][aria-valuetext='8']").wait_for()
    page.wait_for_function("(box) => box.value === '8'", arg=box.element_handle())
    assert page.query_selector_all(UNNAMED) == []
    notebook.close()
