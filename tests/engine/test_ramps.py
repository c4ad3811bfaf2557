"""What the first and the last rank of an order do while the pipeline fills and drains."""

import pytest

from sim.engine.ramps import Ramp
from sim.schedules import Shape, build
from sim.schedules.base import torch_group


def test_actions_of_a_small_order_are_counted():
    order = build("zbv", Shape(2, 2, 2))
    assert [" ".join(map(str, rank)) for rank in order.actions] == [
        "0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 0I1 0W1", "1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1",
    ]  # fmt: skip
    # Ahead of 3I0; from 3I1 to 0I1; after 1I1.
    assert Ramp.of(order) == Ramp(
        forwards_first=2, forwards_other=1, inputs_first=1, weights_first=1, weights_other=1, late_other=1
    )


def test_a_whole_backward_is_an_input_and_a_weight():
    order = build("dualpipev", Shape(2, 4, 2))
    assert " ".join(map(str, order.actions[0])).endswith("3B3 0I2 0W2 0I3 0W3")
    assert " ".join(map(str, order.actions[1])).endswith("2I3 1I3 2W3 1W3")
    ramp = Ramp.of(order)
    assert (ramp.inputs_first, ramp.weights_first, ramp.late_other) == (1, 1, 2)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("schedule", ["zbv", "v-half", "v-min", "dualpipev"])
def test_more_microbatches_than_four_a_rank_change_none_of_them(schedule, ranks):
    """So that scores look at no longer orders."""
    found = {Ramp.of(build(schedule, Shape(ranks, m, 2))) for m in (4 * ranks, 4 * ranks + 1, 5 * ranks, 9 * ranks)}
    assert len(found) == 1


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("chunks", [2, 3, 5])
def test_nor_do_more_groups_than_four_of_an_interleaved_order(ranks, chunks):
    for microbatches in range(4 * ranks, 12 * ranks):
        group = torch_group(ranks, microbatches)
        if microbatches % group == 0:
            long, short = (build("interleaved-zb", Shape(ranks, m, chunks)) for m in (microbatches, 4 * group))
            assert Ramp.of(long) == Ramp.of(short)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 6), (4, 4), (4, 12), (8, 36)])
def test_an_interleaved_order_runs_a_groups_forwards_ahead(ranks, microbatches):
    """(v - 1) groups, one forward for each rank below, and that of the first backward's own pair."""
    group = torch_group(ranks, microbatches)
    ramp = Ramp.of(build("interleaved-zb", Shape(ranks, microbatches, 3)))
    assert ramp.forwards_first + ramp.forwards_other == ranks - 1 + 2 * group + 1
