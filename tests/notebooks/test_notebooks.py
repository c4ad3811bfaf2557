"""Every notebook runs from top to bottom, and reads well unrun."""

import os

import nbformat
import pytest
from nbclient import NotebookClient

from tests.browser.lab import CHROMIUM, OPENED
from tests.oracle import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs(path, tmp_path):
    if CHROMIUM and path.stem in OPENED:
        pytest.skip("run in the browser by tests/browser/test_notebooks.py")
    notebook = nbformat.read(path, as_version=4)
    place = tmp_path / "notebooks"
    place.mkdir()
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(place)}}).execute()
    printed = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert not [o for o in printed if o.output_type == "error" or o.get("name") == "stderr"]
    figures = [o for o in printed if "application/vnd.plotly.v1+json" in o.get("data", {})]
    assert len(figures) >= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_figures_are_stored(path):
    """A reader who never runs it sees the answers; no output drags in a copy of plotly.js."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert any("application/vnd.plotly.v1+json" in o.get("data", {}) for cell in cells for o in cell.outputs)
    assert path.stat().st_size < 1_500_000
    assert "/tmp/" not in path.read_text()
