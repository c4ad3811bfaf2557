"""Steps and a search that the report's tests share, small enough for a second."""

import pytest

from sim.engine.step import Step, simulate
from sim.specs import Cluster, Model, Plan
from sim.tuner.tune import Tuned, tune

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)"> a name of more than 40 characters'


def model(name: str = "small") -> Model:
    """Return a small model."""
    return Model(name=name, layers=8, hidden=2048, heads=16, seq=1024)


CLUSTER = Cluster.of("h100-sxm-80gb", nodes=1)


@pytest.fixture(scope="session")
def step() -> Step:
    """An interleaved pipeline whose operations fit in bars."""
    return simulate(model(), CLUSTER, Plan(tp=2, pp=4, virtual_stages=2, global_batch=16))


@pytest.fixture(scope="session")
def long_step() -> Step:
    """A pipeline with more operations than bars can show."""
    return simulate(model(), CLUSTER, Plan(tp=2, pp=4, global_batch=256))


@pytest.fixture(scope="session")
def overfull() -> Step:
    """A plan that does not fit its device."""
    return simulate(
        model(), Cluster.of("h100-sxm-80gb", memory_bytes=2e9), Plan(tp=2, pp=4, global_batch=64, micro_batch=4)
    )


@pytest.fixture(scope="session")
def tuned() -> Tuned:
    """A search over a model with a hostile name."""
    return tune(model(HOSTILE), CLUSTER, 16, top=3)
