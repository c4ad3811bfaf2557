"""In JupyterLab itself: work runs beside a notebook, and figures come down as files."""

import struct
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.lab import CHROMIUM, Lab, Notebook

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)"),
]

WORK_AND_FILES = """
import ipywidgets as w
import plotly.graph_objects as go
import sim
from sim.report.figure_files import file_stem
from sim.widgets.background import events_job
from sim.widgets.background_bar import BackgroundBar
from sim.widgets.copying import CopyButton
from sim.widgets.export import ExportBar

model = sim.Model(name="small", layers=8, hidden=2048, heads=16, seq=1024)
cluster, plan = sim.Cluster.of("h100-sxm-80gb"), sim.Plan(tp=2, pp=4, virtual_stages=2, global_batch=16)
step = sim.simulate(model, cluster, plan)
said = w.HTML("nothing yet")
bar = BackgroundBar(
    "Simulate events",
    lambda: (events_job, (model, cluster, plan)),
    lambda found: setattr(said, "value", f"events say {found.step_time_s:.6f} s"),
)
export = ExportBar(lambda theme: sim.plot.breakdown(step, theme=theme), file_stem(step), sim.report.answer(step))
copy = CopyButton(label="Copy code", text="import sim")
w.VBox([bar, said, go.FigureWidget(sim.plot.breakdown(step)), export, copy])
"""


@pytest.fixture(scope="module")
def page(lab: Lab, browser: Browser) -> Iterator[Page]:
    """A notebook with background work, a figure and its export buttons."""
    notebook = Notebook(browser, lab, lab.write("work.ipynb", WORK_AND_FILES))
    notebook.run_all()
    notebook.page.locator(".js-plotly-plot .main-svg").first.wait_for()
    yield notebook.page
    assert notebook.outside() == []
    assert notebook.console_errors() == []
    notebook.close()


@pytest.mark.slow
def test_background_work_reaches_the_notebook(page: Page) -> None:
    page.get_by_role("button", name="Simulate events").click()
    page.get_by_text("events say 0.").wait_for(timeout=60_000)
    page.get_by_text("done in").wait_for(timeout=5_000)
    assert page.get_by_role("button", name="Cancel").is_disabled()


def test_code_is_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy code").click()
    page.get_by_role("status").get_by_text("copied").wait_for()
    assert page.evaluate("() => navigator.clipboard.readText()") == "import sim"


def saved(page: Page, file_format: str, folder: Path) -> Path:
    """Press an export button and return the file that comes down."""
    with page.expect_download() as download:
        page.get_by_role("group", name="Export the figure").get_by_role("button", name=file_format).click()
    name = download.value.suggested_filename
    assert name.startswith("small-8xh100-sxm-80gb-")
    download.value.save_as(folder / name)
    return folder / name


def test_svg_and_png_come_from_the_browser(page: Page, tmp_path: Path) -> None:
    shown = page.evaluate("() => document.querySelector('.js-plotly-plot')._fullLayout.width")
    svg = saved(page, "SVG", tmp_path)
    root = ElementTree.parse(svg).getroot()
    assert svg.suffix == ".svg"
    assert root.tag.endswith("svg")
    assert float(root.attrib["width"]) == shown
    assert "compute" in "".join(root.itertext())
    png = saved(page, "PNG", tmp_path)
    assert png.suffix == ".png"
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", png.read_bytes()[16:20]) == (2 * shown,)


@pytest.mark.slow
def test_csv_and_html_come_from_the_kernel(page: Page, browser: Browser, tmp_path: Path) -> None:
    assert saved(page, "CSV", tmp_path).read_text().startswith("trace,x: exposed time (ms)")
    html = saved(page, "HTML", tmp_path)
    alone = browser.new_page()
    requests: list[str] = []
    alone.on("request", lambda request: requests.append(request.url))
    alone.goto(html.as_uri())
    alone.locator(".js-plotly-plot .main-svg").first.wait_for()
    assert alone.locator(".js-plotly-plot").count() == 1
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    alone.close()
