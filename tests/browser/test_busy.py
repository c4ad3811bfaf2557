"""A panel in a browser too busy to load scripts in the time that it gives them: no figure is blank or frozen."""

import pytest
from playwright.sync_api import Browser

from tests.browser.lab import CHROMIUM, Lab, Notebook

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)"),
]

SLOW = """
const made = URL.createObjectURL;
URL.createObjectURL = (blob) => {
  const until = performance.now() + (blob.size > 1e6 ? 3000 : 0);
  while (performance.now() < until);
  return made.call(URL, blob);
};
"""
"""Whatever holds plotly.js takes 3 s to load, and nothing else runs meanwhile; anywidget waits 2 s."""

DEAF = """
const given = AbortSignal.timeout;
let widgets = 0;
AbortSignal.timeout = (ms) => given.call(AbortSignal, ms === 2000 && ++widgets <= 5 ? 0 : ms);
"""
"""The first widgets, the figure and one that replaces it among them, get no time: what they are told is lost."""

PANEL = """
import plotly.graph_objects as go
import sim
from sim.widgets import figure
figure.DEAF_S = 1.0
panel = sim.explore(lambda n, theme: go.Figure(go.Bar(y=[n] * n)), n=[1, 2, 3], say=lambda n: f"{n} a step")
panel
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [SLOW, DEAF], ids=["slow", "deaf"])
def test_a_figure_is_drawn_and_follows_in_a_busy_browser(lab: Lab, browser: Browser, script: str) -> None:
    notebook = Notebook(browser, lab, lab.write("busy.ipynb", PANEL), script=script)
    notebook.run_all()
    panel = notebook.panel()
    notebook.page.wait_for_timeout(4_000)  # a figure that does not hear is replaced
    for n in (2, 3):
        panel.press(panel.sliders[0], "ArrowRight")
        (shown,) = panel.figures()
        assert shown["data"][0]["y"] == [n] * n
    assert shown["layout"]["width"] > 800  # as its column, not the 700 of a figure that was never told
    notebook.close()


@pytest.mark.slow
def test_a_page_that_is_loaded_again_shows_the_figure_as_it_is(lab: Lab, browser: Browser) -> None:
    notebook = Notebook(browser, lab, lab.write("again.ipynb", PANEL))
    notebook.run_all()
    panel = notebook.panel()
    panel.press(panel.sliders[0], "End")
    notebook.page.evaluate("() => jupyterapp.commands.execute('docmanager:save').then(() => null)")
    notebook.page.reload()
    (shown,) = notebook.panel().figures()
    assert shown["data"][0]["y"] == [3] * 3
    notebook.close()
