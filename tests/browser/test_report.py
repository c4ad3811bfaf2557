"""The report in a real browser: every figure is drawn, nothing is fetched, nothing overflows."""

import pytest
from playwright.sync_api import Browser

import sim
from sim.tuner.tune import tune
from tests.browser.lab import CHROMIUM
from tests.report.conftest import CLUSTER, model

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, browser: Browser):
    """Return (page, requests, console errors) of a tuned report at 1280 px."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    sim.save_html(tune(model(), CLUSTER, 16, top=3), path)
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    requests: list[str] = []
    errors: list[str] = []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(path.as_uri())
    opened.wait_for_function("document.querySelectorAll('.main-svg').length > 0")
    opened.wait_for_timeout(1_500)
    yield opened, requests, errors
    opened.close()


@pytest.mark.slow
def test_every_figure_is_drawn(page):
    opened, _, errors = page
    drawn = opened.evaluate(
        "[...document.querySelectorAll('.js-plotly-plot')].map(e => e.querySelector('.main-svg') !== null)"
    )
    assert len(drawn) >= 5
    assert all(drawn)
    assert errors == []


def test_nothing_is_fetched(page):
    _, requests, _ = page
    assert [r for r in requests if not r.startswith(("file:", "data:", "blob:"))] == []


HIDDEN = """[...document.querySelectorAll('.js-plotly-plot')].filter(plot => plot.querySelector('.legend')
    && [...plot.querySelectorAll('.modebar-group')].some(buttons =>
    buttons.getBoundingClientRect().bottom > plot.querySelector('.legend').getBoundingClientRect().top))
    .map(plot => plot.id)"""


@pytest.mark.parametrize("width", [800, 1600])
def test_buttons_lie_on_no_legend(page, width):
    opened, _, _ = page
    hidden = []
    for each in (width, 1280):  # plotly redraws after a while
        opened.set_viewport_size({"width": each, "height": 900})
        opened.wait_for_timeout(500)
        hidden += opened.evaluate(HIDDEN)
    assert opened.evaluate("document.querySelectorAll('.legend').length") >= 4
    assert hidden == []


def test_no_horizontal_scroll_and_full_width(page):
    opened, _, _ = page
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    gaps = opened.evaluate(
        "[...document.querySelectorAll('.js-plotly-plot')].map(e => Math.abs("
        "e.querySelector('.main-svg').getBoundingClientRect().width - e.parentElement.getBoundingClientRect().width))"
    )
    assert max(gaps) <= 8


def test_on_a_phone_figures_and_tables_scroll_and_the_page_does_not(page):
    opened, _, _ = page
    opened.set_viewport_size({"width": 400, "height": 900})
    opened.wait_for_timeout(300)
    fits = opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    widths = opened.evaluate("[...document.querySelectorAll('.main-svg')].map(e => e.getBoundingClientRect().width)")
    opened.set_viewport_size({"width": 1280, "height": 900})
    assert fits and min(widths) >= 560


def test_dark_theme_redraws(page):
    opened, _, errors = page
    before = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    opened.emulate_media(color_scheme="dark")
    opened.wait_for_timeout(500)
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert errors == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [1100, 1280, 1920])
def test_a_long_table_of_errors_leaves_the_assumptions_alone(tmp_path, browser, width):
    """The shipped core's profile names several implementations of most kernels."""
    path = tmp_path / "report.html"
    sim.save_html(sim.simulate(model(), sim.Cluster.of("cpu", 1, gpus_per_node=1), sim.Plan(global_batch=4)), path)
    opened = browser.new_page(viewport={"width": width, "height": 900})
    opened.goto(path.as_uri())
    right, left = opened.evaluate(
        "['table', 'ul'].map(e => document.querySelector('.pair.text ' + e).getBoundingClientRect())"
        ".map((r, n) => n ? r.left : r.right)"
    )
    fits = opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    opened.close()
    assert right < left
    assert fits
