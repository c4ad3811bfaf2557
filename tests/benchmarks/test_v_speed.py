"""Speed of building V-shaped orders, run by `make bench`."""

import pytest

from sim.schedules import Shape, Work
from sim.schedules.v_half import VHalf
from sim.schedules.v_min import VMin
from sim.schedules.zbv_search import search_zbv


@pytest.mark.parametrize(
    "build",
    [VHalf().build, VMin().build, lambda shape, work: search_zbv(shape, work, 2 * shape.ranks)],
    ids=["v-half", "v-min", "zbv"],
)
def test_49152_operations(benchmark, build):
    shape, work = Shape(32, 256, 2), Work.uniform(64, 185, 180, 93, 6)
    benchmark.pedantic(lambda: build(shape, work), rounds=3)
    assert benchmark.stats["min"] < 2
