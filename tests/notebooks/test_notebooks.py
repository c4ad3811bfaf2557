"""Every notebook runs from top to bottom, and reads well unrun."""

import asyncio
from collections.abc import Iterator

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from sim.tuner.tune import RESCORED
from tests.browser.lab import CHROMIUM, OPENED
from tests.full import FULL
from tests.notebooks.outputs import differences
from tests.oracle import ROOT

SHORTER = {
    "checkpointing": """
from functools import partial
from calibration.checkpointing import measure
measure.ROUNDS = measure.CRASHES = 1
measure.quick = partial(measure.quick, megabytes=5)
""",
    "loading": """
from functools import partial
from calibration.loading import measure
measure.quick = partial(measure.quick, seconds=10)
""",
}
"""What they measure here and now need not be exact, but for readers."""

SEARCHES = """
import sys
from functools import partial
import sim
import sim.cluster.predicted as predicted
from sim.tuner import ranking
from sim.tuner.tune import tune
ranking.robustness = partial(ranking.robustness, samples=20)
sys.modules["sim.tuner.tune"].RESCORED = {1}
sim.tune = predicted.tune = {0}
"""
FEW = 'partial(tune, top=2, knobs={"micro_batch": [1, 2], "virtual_stages": [1], "unequal_stages": False})'
"""A search of thousands of plans in place of millions is as good for what comes after it."""

MEASURED = ("0901307c", "fe2b8906", "kernels-09", "c4")
"""Cells that measure, which no two runs do alike."""
SEARCHED = (
    "tour-18",
    "tour-20",
    "tour-20a",
    "tour-22a",
    "c19",
    "c20",
    "network-13",
    "plans-03",
    "plans-03a",
    "plans-10",
    "plans-16",
)
"""Cells that tell of a search, which are stored as users' searches find them."""

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LONG = ("checkpointing", "cluster", "decentralized", "loading", "ptdp", "story", "sweep")


@pytest.fixture(scope="function" if FULL else "module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncKernelManager]:
    """A kernel in an empty folder: by default one for all notebooks, which saves its start and what is imported."""
    place = tmp_path_factory.mktemp("kernel") / "notebooks"
    place.mkdir()
    manager = AsyncKernelManager(kernel_name="python3")
    manager.client_class = "jupyter_client.asynchronous.AsyncKernelClient"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        asyncio.run(manager.start_kernel(cwd=str(place)))
    yield manager
    asyncio.run(manager.shutdown_kernel(now=True))


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.slow if p.stem in LONG else ()) for p in NOTEBOOKS],
    ids=lambda p: p.stem,
)
def test_runs(path, kernel):
    if CHROMIUM and path.stem in OPENED:
        pytest.skip("run in the browser by tests/browser/test_notebooks.py")
    stored, notebook = (nbformat.read(path, as_version=4) for _ in range(2))
    notebook.cells.insert(0, new_code_cell("%reset -f"))  # no name of the notebook before
    searched = FEW if path.stem in ("00-tour", "cluster") and not FULL else "tune"
    searches = SEARCHES.format(searched, RESCORED if FULL else 2)
    notebook.cells.insert(0, new_code_cell(SHORTER.get(path.stem, "") + searches))
    NotebookClient(notebook, km=kernel, timeout=300).execute()
    printed = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert not [o for o in printed if o.output_type == "error" or o.get("name") == "stderr"]
    figures = [o for o in printed if "application/vnd.plotly.v1+json" in o.get("data", {})]
    assert len(figures) >= 4
    ignored = MEASURED if FULL else MEASURED + SEARCHED
    cells = [(a, b) for a, b in zip(stored.cells, notebook.cells[2:], strict=True) if a.id not in ignored]
    assert differences([a for a, _ in cells], [b for _, b in cells]) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_figures_are_stored(path):
    """A reader who never runs it sees the answers; no output drags in a copy of plotly.js."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert any("application/vnd.plotly.v1+json" in o.get("data", {}) for cell in cells for o in cell.outputs)
    assert path.stat().st_size < 1_500_000
    assert "/tmp/" not in path.read_text()
