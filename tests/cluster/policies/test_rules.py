"""What each policy is for, on states that are solved by hand."""

from dataclasses import replace

import numpy as np
import pytest

from sim.cluster.policies import policy
from sim.cluster.state import Pairs
from sim.specs.fields import InputError
from tests.cluster.states import a_state

TWO = a_state([[4.0, 1.0], [1.0, 4.0]], [1, 1])
"""Each job is at home on another type."""


def shares(name, state, **options):
    return policy(name, **options).allocate(state)


def test_max_min_fairness_gives_types_to_whom_they_serve():
    aware, blind = policy("max_min_fairness_perf"), policy("max_min_fairness")
    assert aware.allocate(TWO) == pytest.approx(np.eye(2))
    assert aware.objective(TWO, np.eye(2)) == pytest.approx(4 / 2.5)
    assert blind.allocate(TWO).sum(axis=1) == pytest.approx([1, 1])


def test_weights_and_scale_divide_time():
    state = a_state([[1.0], [1.0]], [1], weights=[1, 3])
    assert shares("max_min_fairness", state).ravel() == pytest.approx([0.25, 0.75])
    state = a_state([[1.0], [1.0]], [2], scale=[1, 2])
    assert shares("max_min_fairness", state).ravel() == pytest.approx([1.0, 0.5])


def test_packing_helps_whom_sharing_serves():
    state = a_state([[4.0], [4.0]], [1], pairs=Pairs(np.array([[0, 1]]), np.array([[[3.0, 3.0]]])))
    assert shares("max_min_fairness_packed", state) == pytest.approx(np.array([[0.0], [0.0], [1.0]]), abs=1e-7)
    assert shares("max_min_fairness_perf", state) == pytest.approx(np.array([[0.5], [0.5], [0.0]]), abs=1e-7)


def test_water_filling_goes_on_where_max_min_stops():
    """Jobs 0 and 1 run on the one device of the first type only, job 2 has the two of the second for itself."""
    state = a_state([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [1, 2])
    assert shares("max_min_fairness_water_filling_perf", state) == pytest.approx(
        np.array([[0.5, 0], [0.5, 0], [0, 1.0]])
    )


def test_entities_share_by_weight_and_jobs_inside_as_they_say():
    state = a_state(
        [[1.0]] * 4, [1], weights=[1, 3, 1, 1], entity=np.array([0, 0, 1, 1]), entity_weights=np.array([1.0, 3.0])
    )
    fair = shares("hierarchical", state).ravel()
    assert fair == pytest.approx([1 / 16, 3 / 16, 3 / 8, 3 / 8])
    assert shares("hierarchical", state, inside="fifo").ravel() == pytest.approx([1 / 4, 0, 3 / 4, 0])
    for inside, worth in (("fairness", 1 / 4), ("fifo", 1 / 4)):
        kind = policy("hierarchical", inside=inside)
        assert kind.objective(state, kind.allocate(state)) == pytest.approx(worth)
    mixed = shares("hierarchical", state, inside=("fifo", "fairness")).ravel()
    assert mixed == pytest.approx([1 / 4, 0, 3 / 8, 3 / 8])
    with pytest.raises(InputError, match="one for each of 2 entities"):
        shares("hierarchical", state, inside=("fifo",))
    alone = replace(state, entity=np.zeros(4, dtype=np.int64), entity_weights=np.ones(1))  # before the others come
    assert shares("hierarchical", alone, inside=("fifo", "fairness")).ravel() == pytest.approx([1, 0, 0, 0])


def test_by_fifo_the_next_job_has_what_the_first_cannot_use():
    state = a_state([[1.0]] * 3, [2])
    assert shares("hierarchical", state, inside="fifo").ravel() == pytest.approx([1, 1, 0])


def test_makespan_ends_all_together():
    state = a_state([[1.0], [1.0]], [1], left=[300.0, 100.0])
    duration = policy("min_total_duration_perf")
    assert duration.allocate(state).ravel() == pytest.approx([0.75, 0.25])
    assert duration.objective(state, duration.allocate(state)) == pytest.approx(400)
    near = policy("min_total_duration_perf", gavel_parity=True)
    assert 400 <= near.objective(state, near.allocate(state)) <= 400 * 1.05


def test_finish_time_fairness_makes_up_for_what_was_lost():
    """Job 0 has waited 100 s of which it would have had half alone: 1 / (1 - x) by hand below."""
    state = a_state([[1.0], [1.0]], [1], left=100.0, waited=[100.0, 0.0])
    fair = policy("finish_time_fairness_perf")
    first, second = fair.allocate(state).ravel()
    assert first + second == pytest.approx(1)
    assert 100 + 100 / first == pytest.approx(100 / second, rel=1e-6)
    assert fair.objective(state, fair.allocate(state)) == pytest.approx(100 / second / 200, rel=1e-6)


def test_the_sum_of_throughputs_may_leave_a_job_nothing():
    state = replace(a_state([[4.0], [3.0]], [1]), slack_s=np.array([np.inf, 1000.0]), steps_left=np.array([1.0, 600.0]))
    assert shares("max_sum_throughput_perf", state).ravel() == pytest.approx([1, 0])
    due = shares("max_sum_throughput_normalized_by_cost_perf_SLOs", state)
    assert due.ravel() == pytest.approx([0.8, 0.2])  # 600 steps in 1,000 s at 3 steps/s
    late = replace(state, slack_s=np.array([np.inf, 100.0]))
    assert shares("max_sum_throughput_normalized_by_cost_perf_SLOs", late).ravel() == pytest.approx([1, 0])
    gone = replace(state, slack_s=np.array([np.inf, -5.0]))
    assert shares("max_sum_throughput_normalized_by_cost_perf_SLOs", gone).ravel() == pytest.approx([1, 0])


def test_what_counts_dollars_asks_for_prices():
    for prices in (None, np.array([1.0, 0.0])):
        with pytest.raises(InputError, match="usd_per_hour"):
            shares("max_sum_throughput_normalized_by_cost_perf", a_state([[4.0, 2.0]], [1, 1], usd_per_hour=prices))


def test_a_dollar_goes_where_it_buys_most_steps():
    state = a_state([[4.0, 2.0]], [1, 1], usd_per_hour=np.array([3.0, 1.0]))
    assert shares("max_sum_throughput_perf", state) == pytest.approx(np.array([[1.0, 0.0]]))
    assert shares("max_sum_throughput_normalized_by_cost_perf", state) == pytest.approx(np.array([[0.0, 1.0]]))


def test_fifo_keeps_its_order_and_its_devices():
    state = a_state([[1.0]] * 4, [3], scale=[1, 2, 2, 1])
    queue = policy("fifo")
    assert queue.allocate(state).ravel().tolist() == [1, 1, 0, 0]
    rows = [1, 2, 3]
    later = a_state([[1.0]] * 3, [3], scale=[2, 2, 1], ids=np.array(rows))
    assert queue.allocate(later).ravel().tolist() == [1, 0, 0]


def test_fifo_draws_types_and_fifo_perf_takes_the_fastest():
    state = a_state([[5.0, 4.0]] * 2, [8, 8])
    drawn = {tuple(policy("fifo", seed).allocate(state).argmax(axis=1)) for seed in range(20)}
    assert len(drawn) == 4
    assert shares("fifo_perf", a_state([[5.0, 4.0]] * 2, [1, 8])).tolist() == [[1, 0], [0, 1]]


def test_a_job_in_the_queue_joins_the_one_it_gains_most_with():
    pairs = Pairs(np.array([[0, 1], [0, 2], [1, 2]]), np.array([[[3.5, 3.5]], [[1.0, 1.0]], [[3.9, 3.9]]]))
    state = a_state([[4.0]] * 3, [2], pairs=pairs)
    assert shares("fifo_packed", state).ravel().tolist() == [1, 0, 0, 0, 0, 1]
    poor = replace(state, pairs=Pairs(pairs.jobs, pairs.steps_per_s / 2))
    assert shares("fifo_packed", poor).ravel().tolist() == [1, 1, 0, 0, 0, 0]


def test_gandiva_parts_pairs_that_lose():
    jobs = np.array([[0, 1]])
    bad = a_state([[4.0], [4.0]], [1], pairs=Pairs(jobs, np.array([[[1.0, 1.0]]])))
    trial = policy("gandiva")
    assert trial.allocate(bad).ravel().tolist() == [0, 0, 1]
    assert trial._keeps(bad).tolist() == [False]
    good = replace(bad, pairs=Pairs(jobs, np.array([[[3.0, 3.0]]])))
    assert trial._keeps(good).tolist() == [True]
    roomy = replace(good, devices=np.array([2]))
    assert trial.allocate(roomy).ravel().tolist() == [1, 1, 0]


def test_allox_starts_the_shortest_first_and_leaves_it_there():
    state = a_state([[2.0, 1.0]] * 3, [1, 0], left=[300.0, 100.0, 200.0])
    jobs = policy("allox")
    assert jobs.allocate(state)[:, 0].tolist() == [0, 1, 0]
    assert jobs.allocate(replace(state, steps_left=np.array([1.0, 100.0, 200.0])))[:, 0].tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="one device"):
        jobs.allocate(replace(state, scale=np.array([1, 2, 1])))


def test_allox_sets_no_place_aside_for_who_waits_for_a_busy_type():
    """Jobs 3 and 4 end after 10 s and 17 s on a device each, after 10 s and 20 s one after the other on the first."""
    rates = [[0.0, 1.0, 0.0]] * 3 + [[1.0, 0.0, 1 / 2], [1.0, 0.0, 1 / 1.7]]
    jobs = policy("allox")
    jobs.allocate(a_state(rates[:1], [1, 1, 1], left=1e6))
    assert jobs.allocate(a_state(rates, [1, 1, 1], left=[1e6, 1e5, 1e5, 10.0, 10.0])).tolist() == [
        [0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1],
    ]  # fmt: skip


def test_isolated_jobs_have_their_part_of_every_type():
    state = a_state([[1.0, 1.0]] * 4, [2, 4], scale=[1, 2, 1, 1])
    assert shares("isolated", state)[:2] == pytest.approx(np.array([[1 / 3, 2 / 3], [0.25, 0.5]]))
