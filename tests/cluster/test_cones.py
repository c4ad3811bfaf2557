"""Second-order cones by their laws."""

import numpy as np
import pytest

from sim.cluster.cones import Cones

CONES = Cones(2, 3)


def inside(seed: int) -> np.ndarray:
    """Return a point (11,) inside all cones."""
    draw = np.random.default_rng(seed)
    values = draw.normal(size=11)
    return values + (0.1 - CONES.heights(values).min()) * CONES.axes


def test_a_quotient_undoes_a_product():
    one, other = inside(1), inside(2)
    assert CONES.quotient(CONES.product(one, other), other) == pytest.approx(one)
    assert CONES.product(CONES.axes, one) == pytest.approx(one)
    assert CONES.degree == 5


def test_the_scaling_leads_from_multipliers_to_slacks():
    for seed in range(5):
        s, z = inside(seed), inside(seed + 9)
        w = CONES.scaling(s, z)
        assert w.times(w.times(z)) == pytest.approx(s)
        matrix = np.zeros((11, 11))
        matrix[w.places()] = w.squared()
        assert matrix @ z == pytest.approx(s)
        assert np.allclose(matrix, matrix.T)
    assert CONES.unit.times(s) == pytest.approx(s)


def test_room_is_what_leads_to_the_border():
    for seed in range(20):
        at, by = inside(seed), np.random.default_rng(seed + 100).normal(size=11)
        room = CONES.room(at, by)
        if np.isfinite(room):
            assert CONES.heights(at + room * by).min() == pytest.approx(0, abs=1e-9)
            assert CONES.heights(at + 0.99 * room * by).min() > 0
        else:
            assert CONES.heights(at + 1e6 * by).min() > 0
    assert CONES.room(inside(0), CONES.axes) == np.inf
