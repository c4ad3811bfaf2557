"""The interior point method that the published results come from."""

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array

from sim.cluster.interior import interior


def test_random_programs_have_the_value_of_another_solver():
    for seed in range(10):
        draw = np.random.default_rng(seed)
        rows = np.vstack([draw.uniform(0, 1, (4, 6)), -np.eye(6)])
        most, cost = np.append(draw.uniform(1, 2, 4), np.zeros(6)), -draw.uniform(0, 1, 6)
        found = interior(cost, csr_array(rows), most)
        best = linprog(cost, A_ub=rows, b_ub=most, bounds=(None, None))
        assert cost @ found == pytest.approx(best.fun, rel=1e-6)
        assert (rows @ found <= most + 1e-7).all()


def test_a_cone_is_as_another_solver_has_it():
    """Least x + 4 y with x y at least 1: 2 and 1/2."""
    rows = csr_array(np.array([[-1.0, -1.0], [1.0, -1.0], [0.0, 0.0]]))
    assert interior(np.array([1.0, 4.0]), rows, np.array([0.0, 0.0, 2.0]), cones=1) == pytest.approx(
        [2.0, 0.5], rel=1e-6
    )


def test_of_many_best_points_it_is_one_amidst_them():
    """x + y at most 1, both positive, x + y the worth: symmetric, so halves."""
    rows = csr_array(np.array([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))
    assert interior(np.array([-1.0, -1.0]), rows, np.array([1.0, 0.0, 0.0])) == pytest.approx([0.5, 0.5], abs=1e-6)


def test_constraints_that_contradict_each_other_have_no_point():
    rows = csr_array(np.array([[1.0], [-1.0]]))
    assert interior(np.zeros(1), rows, np.array([1.0, -2.0])) is None


def test_steps_that_do_not_lead_there_are_an_error(monkeypatch):
    monkeypatch.setattr("sim.cluster.interior.MOST_STEPS", 2)
    with pytest.raises(ArithmeticError, match="2 steps"):
        interior(np.array([-1.0]), csr_array(np.array([[1.0], [-1.0]])), np.array([1.0, 0.0]))
