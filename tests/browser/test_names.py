"""Inputs of every panel have names that a screen reader says, also where they were made anew."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

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
EXPLORER = """
import plotly.graph_objects as go
sim.explore(lambda theme, count, kind: go.Figure(go.Bar(y=[count])), free=["count"], count=[1, 2], kind=["a", "b"])
"""
SWEEP = 'sim.watch_sweep(sim.notebook_file("jobs/sweeps/llama3-70b.yaml"), "names.db")'

INPUTS = ".trainsim :is(input, select, textarea, button, [role=slider])"
FOLDED = ".trainsim .jupyter-widget-Collapse:not(.jupyter-widget-Collapse-open) > .jupyter-widget-Collapse-header"
UNNAMED = "[role=slider]:not([aria-label]), .trainsim-knob input:not([aria-label])"


def read(page: Page) -> Iterator[tuple[str, str]]:
    """Yield the role and name, as the browser tells them to a screen reader, of the panels' inputs that are shown."""
    devtools = page.context.new_cdp_session(page)
    for domain in ("DOM", "Accessibility"):
        devtools.send(f"{domain}.enable")
    root = devtools.send("DOM.getDocument")["root"]["nodeId"]
    for node in devtools.send("DOM.querySelectorAll", {"nodeId": root, "selector": INPUTS})["nodeIds"]:
        asked = {"nodeId": node, "fetchRelatives": False}
        (told,) = devtools.send("Accessibility.getPartialAXTree", asked)["nodes"]
        if not told["ignored"]:
            yield told["role"]["value"], told["name"]["value"].strip()


@pytest.mark.slow
def test_every_input_of_every_panel_has_a_name(lab: Lab, browser: Browser) -> None:
    notebook = Notebook(browser, lab, lab.write("names.ipynb", PANEL, EXPLORER, SWEEP), height=3_000)
    notebook.run_all()
    notebook.panel()
    page, found = notebook.page, set[tuple[str, str]]()
    page.evaluate(f"() => document.querySelectorAll('{FOLDED}').forEach((fold) => fold.click())")
    for tab in page.locator(".trainsim .lm-TabBar-tab").all():
        tab.click()
        page.wait_for_timeout(500)
        found |= set(read(page))
    assert {role for role, name in found if not name} == set()
    lists = ("model", "device", "profile that times it", "curve over time of", "ranks shown", "filter by")
    assert {("combobox", name) for name in lists} <= found
    assert {("listbox", "values to filter by"), ("listbox", "columns"), ("textbox", "plan file")} <= found
    assert {
        ("slider", "count"),
        ("slider", "kind"),
        ("spinbutton", "count"),
        ("slider", "sequence length, tokens"),
    } <= found
    notebook.close()


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
