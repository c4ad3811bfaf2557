"""A larger product takes no less time than a smaller one, on every shipped profile."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.fit import predict
from sim.catalog import names
from sim.costs.kernels import SMALLEST_TILE
from sim.costs.profile import load_profile

SIDE = st.floats(0, 1).map(lambda x: round(65536**x))
"""As many short sides as long ones."""


@pytest.mark.parametrize("name", names("profiles"))
@given(sides=st.lists(st.tuples(SIDE, SIDE), min_size=3, max_size=3), tile=st.booleans())
def test_no_side_of_a_product_makes_it_faster(name, sides, tile):
    """All corners between two products, with the profile's tiles and with smaller ones."""
    corners = np.array(list(product(*(sorted(pair) for pair in sides))), dtype=float)
    inputs = dict(zip("mnk", corners.T, strict=True)) | {"batch": np.ones(8)}
    if tile:
        inputs["smallest_tile"] = np.full(8, float(SMALLEST_TILE))
    for model in load_profile(name).models:
        if model.op == "gemm":
            seconds = predict(model.form, inputs, model.parameters).reshape(2, 2, 2)
            assert all((np.diff(seconds, axis=axis) >= -1e-9 * seconds.max()).all() for axis in range(3))
