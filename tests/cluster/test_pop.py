"""Splitting a problem over parts."""

from time import process_time

import numpy as np
import pytest

from sim.cluster.policies import policy
from sim.cluster.pop import Pop
from sim.specs.fields import InputError
from tests.cluster.states import a_state, assert_within, random_state


def many(jobs: int, seed: int = 0):
    """Return jobs that each ask for little of the cluster."""
    draw = np.random.default_rng(seed)
    rates = np.sort(draw.uniform(0.1, 10, (jobs, 3)))[:, ::-1] * draw.uniform(1, 100, (jobs, 1))
    scale = draw.choice([1, 2, 4], jobs)
    return a_state(rates, np.full(3, jobs // 5), scale, left=draw.uniform(1e3, 1e6, jobs))


@pytest.mark.parametrize("kind", ["max_min_fairness_packed", "min_total_duration_perf", "max_sum_throughput_perf"])
def test_parts_together_are_within_every_limit(kind):
    for seed in range(6):
        for parts in (2, 5, 20):
            state = random_state(seed)
            assert_within(state, Pop(kind, parts, seed).allocate(state))


def test_one_part_is_the_whole():
    state = many(60)
    split = Pop("max_min_fairness_perf", 1)
    assert (split.allocate(state) == policy("max_min_fairness_perf").allocate(state)).all()
    assert split.loss(state, split.allocate(state)).fraction == pytest.approx(0, abs=1e-9)


def test_parts_are_equal_in_jobs_of_every_scale_and_jobs_stay():
    state, split = many(90), Pop("max_min_fairness_perf", 4, seed=3)
    part = split._assigned(state)
    for scale in (1, 2, 4):
        counts = np.bincount(part[state.scale == scale], minlength=4)
        assert np.ptp(counts) <= 1
    rows = np.arange(10, 90)
    rest = a_state(state.steps_per_s[rows], state.devices, state.scale[rows], ids=state.ids[rows])
    assert (split._assigned(rest) == part[rows]).all()


def test_the_loss_is_small_with_many_jobs_and_grows_with_parts():
    state = many(400)
    fractions = []
    for parts in (2, 20):
        split = Pop("max_min_fairness_perf", parts)
        loss = split.loss(state, split.allocate(state))
        assert loss.split <= loss.whole * (1 + 1e-9)
        fractions.append(loss.fraction)
    assert 0 <= fractions[0] < fractions[1] < 0.3
    split = Pop("min_total_duration_perf", 20)
    assert -1e-9 <= split.loss(state, split.allocate(state)).fraction < 0.3


def test_parts_are_solved_faster():
    state = many(2500)
    took = []
    for parts in (1, 8):
        begin = process_time()
        Pop("max_min_fairness_perf", parts).allocate(state)
        took.append(process_time() - begin)
    assert took[0] > 1.5 * took[1]


@pytest.mark.parametrize("parts", [0, 10**20])
def test_parts_are_a_number_that_can_be_solved(parts):
    with pytest.raises(InputError, match=f"parts: got {parts}; allowed: a whole number from 1 to 10000"):
        Pop("max_min_fairness_perf", parts)


def test_a_queue_cannot_be_split():
    with pytest.raises(InputError, match="kind: got 'fifo'"):
        Pop("fifo", 2)
    with pytest.raises(InputError, match="parts"):
        Pop("max_min_fairness", 0)
