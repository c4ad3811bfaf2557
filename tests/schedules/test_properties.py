"""Every kind, thousands of legal shapes: whole, balanced, and never a deadlock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.schedules import SCHEDULES, build
from tests.contracts.schedule import check_order
from tests.schedules.shapes import shapes


@pytest.mark.parametrize("name", SCHEDULES)
@given(data=st.data())
def test_orders_of_any_shape_are_whole_balanced_and_run(name, data):
    """1,000 shapes of each kind under the full profile."""
    check_order(build(name, data.draw(shapes(name))))
