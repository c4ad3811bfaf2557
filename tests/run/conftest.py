"""One small step that the tests share."""

import pytest

from sim.engine.step import Step, simulate
from sim.specs import Cluster, Plan
from sim.specs.catalog import models


@pytest.fixture(scope="session")
def step() -> Step:
    """Llama 3 8B on 16 H100s with a pipeline: compute, communication and a bubble."""
    cluster = Cluster.of("h100-sxm-80gb", nodes=2)
    return simulate(models["llama3-8b"], cluster, Plan(tp=4, pp=2, global_batch=64, recompute="full", zero=1))
