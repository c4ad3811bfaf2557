"""Backwards split and merged again."""

from hypothesis import given
from hypothesis import strategies as st

from sim.schedules import SCHEDULES, Action, Kind, Schedule, Shape, build
from tests.contracts.longest_path import run
from tests.contracts.schedule import check_order
from tests.schedules.shapes import shapes
from tests.schedules.split import merge_backward, split_backward

TIME = st.integers(1, 50)


@st.composite
def orders(draw):
    name = draw(st.sampled_from([name for name, kind in SCHEDULES.items() if not kind.asynchronous]))
    return build(name, draw(shapes(name)))


def test_as_text():
    order = Schedule("x", 1, (0,), ((Action(0, Kind.F, 0), Action(0, Kind.B, 0)),))
    assert split_backward(order).texts() == ["0F0 0I0 0W0"]
    assert merge_backward(split_backward(order)).texts() == ["0F0 0B0"]


def test_only_an_i_and_its_own_w_make_a_b():
    order = build("zb-h1", Shape(2, 3))
    assert merge_backward(order).texts() == ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"]


@given(orders())
def test_round_trip(order):
    whole = merge_backward(order)
    split = split_backward(whole)
    assert merge_backward(split).texts() == whole.texts()
    assert split_backward(merge_backward(split)).texts() == split.texts() == split_backward(order).texts()
    paired = {rank[i + 1] for rank, pairs in zip(split.actions, split.fused, strict=True) for i in pairs}
    assert all(a.kind is not Kind.B or a in paired for rank in split.actions for a in rank)
    for each in (whole, split):
        check_order(each)
        assert each.peak_in_flight() == order.peak_in_flight()


@given(orders(), TIME, TIME, TIME)
def test_lengths(order, forward, by_input, weight):
    """The same where all of B is its I; else never longer, since other ranks wait for I alone."""
    whole = merge_backward(order)
    split = split_backward(whole)
    alike = {Kind.F: forward, Kind.I: by_input, Kind.W: 0, Kind.B: by_input}
    assert run(split, alike).makespan == run(whole, alike).makespan
    times = alike | {Kind.W: weight, Kind.B: by_input + weight}
    assert run(split, times).makespan <= run(whole, times).makespan
