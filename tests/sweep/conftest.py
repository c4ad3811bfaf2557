"""Small grids."""

import pytest
from sympy.core.cache import clear_cache

from sim.costs import offload, stage
from sim.engine import closed_form
from sim.sweep.grid import Grid
from sim.sweep.runners import Ray
from tests.cli.conftest import trainsim  # noqa: F401 - a fixture

SMALL = {"name": "small", "layers": 12, "hidden": 1024, "heads": 16, "vocab": 32_000, "seq": 1024}
BASE = {"model": SMALL, "cluster": {"device": "h100-sxm-80gb", "nodes": 2}, "plan": {"global_batch": 64}}
AXES = {
    "plan.tp": [1, 2, 3, 4, 8],
    "plan.pp": [1, 2, 4],
    "plan.virtual_stages": [1, 2],
    "plan.micro_batch": [1, 2],
    "plan.zero": [0, 1, 3],
    "plan.recompute": ["none", "selective", "full"],
}
QUICK = {
    "plan.tp": [1, 2, 3, 4, 8],
    "plan.micro_batch": [1, 2, 4],
    "plan.zero": [0, 1, 2, 3],
    "plan.recompute": ["none", "selective", "full"],
    "plan.overlap_dp": [True, False],
}
"""360 configurations of one structure and schedule, which compile once."""


@pytest.fixture
def anew():
    """Forms are compiled anew, as in a new process: what was compiled before in one may decide the last bit."""
    for module in (closed_form, offload, stage):
        for each in vars(module).values():
            getattr(each, "cache_clear", int)()
    clear_cache()


@pytest.fixture
def small() -> Grid:
    """540 configurations of a small model on 16 devices."""
    return Grid(**BASE, axes=AXES)


@pytest.fixture(scope="session")
def cluster():
    """A real Ray cluster of this machine, started once: it takes some eight seconds."""
    with Ray(2) as made:
        yield made
