"""The search on traced networks."""

import pytest

from sim.run import whole_run
from sim.specs import Cluster, InputError, Model, Training
from sim.tuner.space import build_space
from sim.tuner.tune import tune
from tests.full import full
from tests.traced import table
from tests.tuner.test_tune import every_plan

NODE = Cluster.of("a100-sxm-80gb", nodes=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", full("resnet-50")])
def test_the_space_is_every_legal_plan(name):
    model = Model.from_table(table(name))
    space = build_space(model, NODE, 64)
    assert int(space.allowed.sum()) == sum(1 for _ in every_plan(model, NODE, 64))
    listed = build_space(model, NODE, 64, {"recompute": ["none", "selective", "full"], "tp": [1, 2]})
    assert int(listed.allowed.sum()) == int(space.allowed.sum())
    assert int(listed.allowed.sum()) + sum(listed.excluded.values()) == listed.asked
    assert {"selective recompute of a traced network", "tp would split the layers of a traced network"} <= {
        *listed.excluded
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [full("bert"), "resnet-50"])
def test_a_small_cluster_is_searched(name):
    found = tune(Model.from_table(table(name)), NODE, 256, top=3)
    assert found.best.plan.tp == 1
    assert found.best.step.fits == "yes"
    assert found.speedup is not None
    assert found.speedup >= 1
    run = whole_run(found.best.step, Training(steps=1000))
    assert run.days > 0


@pytest.mark.slow
def test_knobs_that_split_layers_leave_nothing():
    with pytest.raises(InputError, match="traced network"):
        tune(Model.from_table(table("bert")), NODE, 64, {"tp": [2]})
