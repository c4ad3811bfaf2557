"""Jumping over uneventful steps is stepping through them, to the tick."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.checkpointing import Times
from sim.checkpointing.stretch import Jumped, Stepped, interval
from sim.engine.clock import to_ticks
from sim.specs import InputError

SECONDS = st.floats(0.0, 3.0).map(lambda s: round(s, 3))


@st.composite
def saving(draw):
    iteration = draw(st.floats(0.05, 1.0).map(lambda s: round(s, 4)))
    return Times(
        iteration_s=iteration,
        update_s=round(iteration * draw(st.floats(0.0, 1.0)), 5),
        host_snapshot_s=draw(SECONDS),
        device_snapshot_s=draw(st.none() | SECONDS),
        persist_s=draw(SECONDS),
        contention=draw(st.sampled_from([0.0, 0.1, 0.37, 2.0])),
        snapshot=draw(st.sampled_from(["auto", "host", "none"])),
    )


@settings(max_examples=60, deadline=None)
@given(times=saving(), k=st.integers(1, 12), budget=st.sampled_from([None, 0.05, 0.5]), seed=st.integers(0, 99))
def test_a_jump_is_every_step(times, k, budget, seed):
    jumped, stepped = Jumped(times, k, budget), Stepped(times, k, budget)
    far = jumped.end_of(8 * k + 40)
    some = np.sort(np.random.default_rng(seed).integers(0, far, 12)).tolist()
    at_ends = [jumped.end_of(n) + d for n in (1, k, k + 1, 2 * k, 3 * k) for d in (0, 1)]
    for ticks in sorted({*some, *at_ends}):
        assert jumped.at(ticks) == stepped.at(ticks), ticks
    assert jumped.end_of(8 * k + 40) == stepped.end_of(8 * k + 40)


def test_a_long_interval_costs_no_more_than_what_is_beside_the_writing():
    times = Times(iteration_s=0.1, host_snapshot_s=0.2, persist_s=3.0, contention=0.2)
    held = Jumped(times, 10**9).intervals[-1]
    assert len(held.ends) < 50
    assert held.length == pytest.approx(1e17, rel=1e-6)


def test_a_snapshot_that_is_written_for_ages_is_refused():
    """1 PB at 100 MB/s beside steps of 30 ms, all of them run, took more than 100 s, and memory without end."""
    times = Times(iteration_s=0.03, host_snapshot_s=0.0, persist_s=1e7)
    with pytest.raises(InputError, match=r"got '10\u2009000\u2009000 s in .*most 1000000 steps of 30.0 ms"):
        interval(times, 10**9)
    assert interval(times, 2).length == pytest.approx(to_ticks(1e7))  # training waits after two steps


def test_adaptation_is_followed_no_further_than_asked():
    times = Times(iteration_s=0.1, host_snapshot_s=2.0, persist_s=20.0, contention=1.0)
    jumped = Jumped(times, 221, 0.035)  # thousands of intervals from keeping to the budget
    assert jumped.at(3_600 * 10**9).changes[-1][1] < 400
    assert len(jumped.intervals) < 100


def test_intervals_of_all_lengths_share_what_is_run():
    times = Times(iteration_s=0.1, host_snapshot_s=0.2, persist_s=3.0, contention=0.2)
    assert interval(times, 1_000).ends is interval(times, 1_002).ends
