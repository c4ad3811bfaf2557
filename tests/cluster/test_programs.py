"""The constraints of any division, by hand."""

import numpy as np
import pytest
from scipy.sparse import block_array, csr_array

from sim.cluster.programs import Linear, blind, entries, matrix_of, pairs_runnable, program
from sim.cluster.state import Pairs
from tests.cluster.states import a_state, assert_within, random_state

STATE = a_state([[4.0, 2.0], [0.0, 3.0], [5.0, 1.0]], [2, 3], scale=[1, 2, 4])


def test_unknowns_are_where_a_job_runs_on_types_with_so_many_devices():
    found = program(STATE)
    assert found.cells.tolist() == [0, 1, 3]
    assert found.able.tolist() == [True, True, False]
    assert (found.rates @ np.array([0.5, 0.25, 1.0])).tolist() == [2.5, 3.0, 0.0]
    assert (found.rows @ np.array([0.5, 0.25, 1.0])).tolist() == [0.75, 1.0, 0.0, 0.5, 2.25]
    assert found.most.tolist() == [1, 1, 1, 2, 3]
    assert program(STATE, everywhere=True).cells.tolist() == list(range(6))


def test_a_pair_takes_time_of_both_and_the_devices_of_one():
    state = a_state([[4.0], [3.0]], [2], scale=2, pairs=Pairs(np.array([[0, 1]]), np.array([[[2.0, 1.5]]])))
    found = program(state, packs=True)
    assert found.rates.toarray().tolist() == [[4, 0, 2], [0, 3, 1.5]]
    assert found.rows.toarray().tolist() == [[1, 0, 1], [0, 1, 1], [2, 2, 2]]
    assert program(state).cells.tolist() == [0, 1]


def test_pairs_of_unequal_scale_do_not_run():
    state = a_state([[4.0], [3.0]], [4], scale=[1, 2], pairs=Pairs(np.array([[0, 1]]), np.array([[[2.0, 1.5]]])))
    assert not pairs_runnable(state).any()
    assert not pairs_runnable(state, everywhere=True).any()


def test_shares_outside_of_the_constraints_are_brought_back():
    found = program(STATE)
    shares = found.shares(np.array([0.9, 0.3, 1.5]))
    assert_within(STATE, shares, 1e-15)
    assert shares[0] / shares[0, 0] == pytest.approx([1, 1 / 3])


def test_who_does_not_know_types_sees_the_fastest_that_runs_the_job():
    assert blind(STATE).tolist() == [[4, 4], [3, 3], [5, 5]]


def test_a_matrix_of_entries_is_that_of_blocks():
    draw = np.random.default_rng(0)
    a, b, c = (csr_array(draw.integers(0, 3, shape)) for shape in ((2, 3), (4, 3), (4, 2)))
    made = matrix_of((6, 5), entries(a), entries(b, 2), entries(c, 2, 3))
    assert (made.toarray() == block_array([[a, None], [b, c]]).toarray()).all()


def test_both_solvers_find_the_best_and_say_where_there_is_none():
    for seed in range(5):
        limits = program(random_state(seed), packs=True)
        linear = limits.least(np.ones(9))
        one, other = (linear.solved(published)[-1] for published in (False, True))
        assert one == pytest.approx(other, rel=1e-6, abs=1e-7)
    rows = csr_array(np.ones((1, len(limits.cells))))
    none = Linear(linear.worth[:-1], limits.rows, limits.most).with_rows(-rows, np.array([-1e6]))
    assert none.solved() is None
    assert none.solved(published=True) is None
