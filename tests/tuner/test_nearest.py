"""Plans near an impossible one: legal, smallest change first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs import Cluster, InputError, Plan, StagePlan
from sim.specs.catalog import models
from sim.tuner.nearest import changed, nearest

MODEL = models["gpt3-175b"]
CLUSTER = Cluster.of("h100-sxm-80gb", nodes=16)


def test_a_depth_between_two_divisors():
    found = nearest(MODEL, CLUSTER, Plan(tp=8, pp=3, global_batch=1024))
    assert [p.words for p in found] == ["pp 4", "pp 2", "pp 8"]


def test_a_degree_of_context_parallelism_between_two_divisors():
    found = nearest(MODEL, CLUSTER, Plan(tp=8, pp=4, cp=3, global_batch=1024))
    assert [p.words for p in found] == ["cp 4", "cp 2", "cp 1"]


def test_a_batch_that_does_not_divide():
    found = nearest(MODEL, CLUSTER, Plan(tp=8, pp=4, global_batch=1023))
    assert found[0].changes == {"global_batch": 1024}


def test_two_knobs_where_one_is_not_enough():
    plan = Plan(tp=5, pp=3, global_batch=1024)
    found = nearest(MODEL, CLUSTER, plan)
    assert all(len(p.changes) == 2 for p in found)
    assert found


@pytest.mark.parametrize(
    ("asked", "offered"),
    [
        ({"precision": "nvfp4"}, ["precision bf16", "precision fp16", "precision fp8"]),
        ({"precision": "mxfp8", "pp": 3}, ["pp 4, precision bf16", "pp 4, precision fp16", "pp 4, precision fp8"]),
        ({"schedule": "dualpipe", "pp": 1}, ["pp 2", "pp 4", "pp 8"]),
    ],
)
def test_what_the_devices_or_the_order_cannot_serve_is_not_offered(asked, offered):
    plan = Plan(**{"tp": 8, "pp": 4, "global_batch": 1024} | asked)
    assert [p.words for p in nearest(MODEL, CLUSTER, plan)] == offered


@pytest.mark.parametrize(
    ("asked", "offered"),
    [
        ({"tp": 8, "pp": 4, "virtual_stages": 2}, ["chunks of 7 or 8 layers", "pp 2, chunks of 15 or 16 layers"]),
        ({"tp": 8, "pp": 5}, ["pp 4, chunks of 15 or 16 layers", "pp 8, chunks of 7 or 8 layers"]),
        ({"tp": 5, "pp": 4}, ["tp 4, chunks of 15 or 16 layers", "tp 8, chunks of 15 or 16 layers"]),
        (
            {"tp": 8, "pp": 2, "stage_layers": (30, 30)},
            ["chunks of 30 or 31 layers", "pp 1, as many layers in every chunk"],
        ),
    ],
)
def test_a_prime_number_of_layers_is_split_unevenly(asked, offered):
    """61 layers: no depth but 1 divides them."""
    model, plan = models["deepseek-v3"], Plan(global_batch=1024, **asked)
    found = nearest(model, CLUSTER, plan, 2)
    assert [p.words for p in found] == offered
    for p in found:
        split = p.plan.split(model)
        assert sum(split) == 61 and max(split) - min(split) <= 1 and min(split) in (split[0], split[-1])


def test_layers_given_for_another_model_are_left_out_again():
    found = nearest(MODEL, CLUSTER, Plan(tp=8, pp=2, global_batch=1024, stage_layers=(30, 31)))
    assert found[0].words == "as many layers in every chunk"
    assert found[0].plan == Plan(tp=8, pp=2, global_batch=1024)


def test_unequal_stages_have_no_neighbour(gpt3, h100s):
    plan = Plan(global_batch=8, stages=(StagePlan(layers=48, tp=8, dp=8),) * 2)
    assert nearest(gpt3, h100s, plan) == []


@given(
    tp=st.integers(1, 64), pp=st.integers(1, 100), v=st.integers(1, 9), b=st.integers(1, 70), batch=st.integers(1, 5000)
)
def test_what_is_offered_is_possible_and_sorted(tp, pp, v, b, batch):
    plan = Plan(tp=tp, pp=pp, virtual_stages=v, micro_batch=b, global_batch=batch)
    found = nearest(MODEL, CLUSTER, plan)
    assert [p.distance for p in found] == sorted(p.distance for p in found)
    for p in found:
        p.plan.on(MODEL, CLUSTER)
        assert p.plan == plan.but(**p.changes)


def test_changed_says_none_for_a_broken_rule(gpt3, h100s):
    plan = Plan(tp=8, pp=4, global_batch=1024)
    assert changed(gpt3, h100s, plan, {"pp": 3}) is None
    assert changed(gpt3, h100s, plan, {"pp": 8}).pp == 8
    with pytest.raises(InputError):
        plan.but(pp=3).on(gpt3, h100s)
