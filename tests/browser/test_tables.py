"""The panel's tables in a real browser, in the narrowest column that JupyterLab leaves them."""

import pytest
from playwright.sync_api import Browser

from sim.engine.step import simulate
from sim.specs import Cluster, Plan
from sim.specs.catalog import models
from sim.widgets.knob import STYLE
from sim.widgets.panes import Data
from sim.widgets.views import Scene
from tests.browser.lab import CHROMIUM

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)"),
]

PANEL, PADDING = 532, 36
"""Pixels of the panel, and of them the border and padding of a tab."""


@pytest.mark.parametrize("width", [PANEL - PADDING, 900])
def test_all_columns_of_all_tables_are_seen(browser: Browser, width: int) -> None:
    cluster, plan = Cluster.of("h100-sxm-80gb", nodes=16), Plan(tp=8, pp=8, global_batch=1024, zero=1)
    step, pinned = (simulate(models["gpt3-175b"], cluster, p) for p in (plan, Plan(tp=4, pp=8, global_batch=1024)))
    data = Data()
    data.draw(Scene(step, pinned=pinned), "")
    page = browser.new_page()
    page.set_content(f'{STYLE}<div class="trainsim" style="width: {width}px">{data.children[0].value}</div>')
    inside, tables = page.evaluate(
        "[document.querySelector('.data').scrollWidth,"
        " [...document.querySelectorAll('table')].map(t => t.getBoundingClientRect().width)]"
    )
    page.close()
    assert inside <= width
    assert len(tables) == 3 and max(tables) <= width
