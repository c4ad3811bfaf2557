"""Where ranks stand along the axes of a plan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.execute.place import coordinates, lines
from calibration.execute.predict import pipeline_ranks
from sim.specs import PlacedPlan, Plan

ORDERS = (["tp", "dp", "pp"], ["tp", "pp", "dp"], ["dp", "tp", "pp"], ["pp", "tp", "dp"])
SIZES = st.tuples(*(st.integers(1, 4) for _ in range(3)))


@given(SIZES, st.sampled_from(ORDERS))
def test_every_rank_is_in_one_group_of_an_axis_at_its_coordinate(sizes, axes):
    size = dict(zip(("tp", "dp", "pp"), sizes, strict=True))
    ranks = size["tp"] * size["dp"] * size["pp"]
    for axis in axes:
        groups = list(lines(size, axes, axis))
        assert sorted(rank for group in groups for rank in group) == list(range(ranks))
        for group in groups:
            assert [coordinates(size, axes, rank)[axis] for rank in group] == list(range(size[axis]))


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-cp-pp-dp", "pp-tp-cp-dp"])
def test_the_pipeline_rank_is_the_coordinate(order):
    plan = Plan(tp=2, pp=4, dp=3, global_batch=12, rank_order=order)
    axes = [axis for axis in order.split("-") if axis != "cp"]
    wanted = [coordinates({"tp": 2, "pp": 4, "dp": 3}, axes, rank)["pp"] for rank in range(24)]
    assert pipeline_ranks(PlacedPlan(plan, 3, 4)) == wanted
