import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.market.grid import price_grid
from sim.market.offers import History, Market
from sim.specs.fields import InputError
from tests.market.toys import HOUR, hours, offer, priced


def test_who_stays_pays_the_mean_of_a_step():
    market = Market((History(offer(devices=2), np.array([0.0, 900.0]), np.array([2.0, 6.0])),))
    grid = hours(market, 2)
    assert grid.seen[:, 0].tolist() == [1.0, 3.0]  # of one of two devices
    assert grid.kept[:, 0].tolist() == [(0.25 * 2 + 0.75 * 6) / 2, 3.0]


def test_nothing_is_offered_before_the_first_price():
    market = Market((priced(1, 1), History(offer("us-east-1b"), np.array([1.5 * HOUR]), np.array([2.0]))))
    assert hours(market, 3).seen[:, 1].tolist() == [np.inf, np.inf, 2.0]
    with pytest.raises(InputError, match="something is offered"):
        price_grid(market, -10 * HOUR, HOUR)


def test_an_offer_can_be_held_until_it_is_taken_away():
    one = offer()
    grid = hours(Market((priced(1, of=one),)), 4, {one: HOUR * np.array([[0.0, 1.5], [1.7, 2.25], [3.0, 9.0]])})
    assert grid.up_s[:, 0].tolist() == [HOUR, HOUR / 2, HOUR / 4, HOUR]
    none = hours(Market((priced(1, of=one), priced(1, of=offer("us-east-1b")))), 2, {one: np.zeros((0, 2))})
    assert np.isinf(none.seen[:, 0]).all()
    assert (none.up_s[:, 1] == HOUR).all()
    with pytest.raises(InputError, match="available: got 'nothing'; allowed: an offer that can be held"):
        hours(Market((priced(1, of=one),)), 4, {one: np.zeros((0, 2))})


@pytest.mark.parametrize("step_hours", [0.07, 0.28, 0.3333])
def test_what_lasts_is_not_taken_away_by_the_rounding_of_dates(step_hours):
    one, begin_s = offer(), 1_583_020_800.0
    always = {one: np.array([[begin_s, begin_s + 10 * HOUR]])}
    grid = price_grid(Market((priced(1, of=one),)), begin_s, 8 * HOUR, step_hours * HOUR, always)
    assert (grid.up_s == step_hours * HOUR).all()


def test_size_is_bounded():
    with pytest.raises(InputError, match="step_s"):
        price_grid(Market((priced(1),)), 0.0, 1e9, 1.0)


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=30), st.floats(600.0, 20_000.0))
def test_the_whole_price_does_not_depend_on_the_steps(prices, step_s):
    market = Market((priced(*prices),))
    grid = price_grid(market, 0.0, len(prices) * HOUR, step_s)
    ends = grid.steps * step_s
    known = sum(p * HOUR for p in prices) + prices[-1] * (ends - len(prices) * HOUR)
    assert grid.kept.sum() * step_s == pytest.approx(known)
