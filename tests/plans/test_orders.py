"""What other frameworks' schedules run: against the orders that Megatron-LM itself generated, and against ours."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.plans.named_order import named
from sim.plans.orders import check_order, deepspeed_order, megatron_order, same_order
from sim.schedules import Action, IllegalScheduleError, Kind, Schedule, Shape, build
from sim.specs import InputError
from tests.schedules.corpus import rows, texts


def as_text(order):
    return [" ".join(map(str, rank)) for rank in order]


def corpus(name):
    found = [row for row in rows() if row["schedule"] == name]
    assert found
    return found


def test_interleaved_is_megatrons_own():
    for row in corpus("megatron/interleaved"):
        group = row["params"].get("microbatch_group_size_per_vp_stage", 0)
        made = megatron_order(row["ranks"], row["microbatches"], row["stages_per_rank"], group)
        assert as_text(made) == texts(row), row["params"]


@pytest.mark.parametrize("maker", [megatron_order, deepspeed_order])
def test_1f1b_is_the_one_of_the_corpus(maker):
    for row in corpus("zb/1F1B"):
        assert as_text(maker(row["ranks"], row["microbatches"])) == texts(row)


@given(st.integers(1, 9), st.integers(1, 20))
def test_both_run_the_same_1f1b(ranks, microbatches):
    ours = build("1f1b", Shape(ranks, microbatches))
    for maker in (megatron_order, deepspeed_order):
        check_order(ours, maker(ranks, microbatches), "them")


@given(st.integers(2, 5), st.integers(2, 4), st.integers(0, 3), st.integers(1, 4))
def test_interleaved_is_ours(ranks, chunks, more, turns):
    shape = Shape(ranks, (ranks + more) * turns, chunks, ranks + more)
    check_order(build("interleaved", shape), megatron_order(ranks, shape.microbatches, chunks, shape.group), "Megatron")


@given(st.integers(2, 5), st.integers(2, 3), st.integers(1, 9), st.integers(1, 20))
def test_interleaved_is_found_by_its_order(ranks, chunks, microbatches, group):
    shape = Shape(ranks, microbatches, chunks, group)
    try:
        order = build("interleaved", shape)
    except IllegalScheduleError:
        assume(False)
    found = named(order, "order.csv")
    assert (found["schedule"], found["virtual_stages"]) == ("interleaved", chunks)
    assert same_order(build("interleaved", replace(shape, group=found["microbatch_group_size"])), order)


def test_the_first_difference_is_named():
    ours = build("gpipe", Shape(2, 3))
    with pytest.raises(InputError) as caught:
        check_order(ours, deepspeed_order(2, 3), "DeepSpeed's TrainSchedule")
    assert caught.value.path == "plan.schedule (action 2 of pipeline rank 0)"
    assert (caught.value.value, caught.value.allowed) == ("0F2", "0B0: the order of DeepSpeed's TrainSchedule")


def test_a_missing_action_is_a_difference():
    short = Schedule("1f1b", 1, (0,), ((Action(0, Kind.F, 0),),))
    with pytest.raises(InputError, match="nothing more"):
        check_order(short, megatron_order(1, 1), "Megatron")
