"""What runs beside the rest of a step: with what is exposed it is all that is communicated."""

import pytest

import sim
from sim.engine.hidden import hidden
from sim.specs import Cluster, Model, Plan

MODEL = Model(name="m", layers=8, hidden=2048, heads=16, seq=1024)
NODES = Cluster.of("h100-sxm-80gb", nodes=4)


@pytest.mark.parametrize(("zero", "least"), [(1, 0.999), (3, 0.85)])  # ZeRO-3 gathers ahead only where it overlaps
def test_hiding_less_exposes_as_much_more(zero: int, least: float) -> None:
    plan = Plan(tp=2, pp=1, global_batch=256, zero=zero)
    beside = sim.simulate(MODEL, NODES, plan)
    alone = sim.simulate(MODEL, NODES, plan.but(overlap_dp=False))
    assert hidden(beside)["dp"] > 0
    assert hidden(alone)["dp"] == pytest.approx(0.0, abs=1e-3 * alone.breakdown_s["dp"])
    whole = beside.breakdown_s["dp"] + hidden(beside)["dp"]
    # What runs beside compute is slowed by it, which counts as exposed.
    assert least <= whole / alone.breakdown_s["dp"] <= 1.3


def test_what_adds_up_a_shared_table_is_not_hidden() -> None:
    step = sim.simulate(MODEL, NODES, Plan(pp=2, global_batch=64, overlap_dp=False))
    assert step.breakdown_s["other"] > 0.1 * step.breakdown_s["dp"]  # where it counts
    assert hidden(step)["dp"] == pytest.approx(0.0, abs=1e-3 * step.breakdown_s["dp"])


def test_copies_hide_behind_passes() -> None:
    plan = Plan(tp=2, pp=2, global_batch=64, offload=sim.Offload(activations=0.5))
    found = hidden(sim.simulate(MODEL, Cluster.of("h100-sxm-80gb"), plan))
    assert found["offload"] > 0


def test_one_device_hides_nothing() -> None:
    cluster = Cluster.of("h100-sxm-80gb", nodes=1, gpus_per_node=1)
    assert set(hidden(sim.simulate(MODEL, cluster, Plan(global_batch=8))).values()) == {0.0}
