"""How often to choose, what an hour is worth, several begins."""

import pytest

from sim.market.begins import rent_from
from sim.market.frequency import move_frequency
from sim.market.front import market_front
from sim.market.jobs import Moves
from sim.market.offers import Market
from sim.market.renting import rent
from sim.market.strategies import strategy
from sim.specs.fields import InputError
from tests.market.toys import HOUR, a_job, hours, offer, priced

FREE = Moves.free()
TWO = (offer(), offer("us-east-1b"))
CROSSING = hours(Market((priced(1, 2, 1, 2, 1, 2, of=TWO[0]), priced(2, 1, 2, 1, 2, 1, of=TWO[1]))), 6)


def test_who_chooses_often_follows_the_prices():
    found = move_frequency(a_job(), CROSSING, strategy("preemption"), FREE, [HOUR, 2 * HOUR, 4 * HOUR])
    assert [rental.cost_usd for rental in found] == pytest.approx([4.0, 6.0, 6.0])
    assert [rental.migrations for rental in found] == [3, 0, 0]


def test_a_time_that_is_no_whole_number_of_steps_is_refused():
    with pytest.raises(InputError, match="every_s"):
        move_frequency(a_job(), CROSSING, strategy("preemption"), FREE, [1.5 * HOUR])
    with pytest.raises(InputError, match="one time between two choices or more"):
        move_frequency(a_job(), CROSSING, strategy("preemption"), FREE, [])


def test_an_hour_that_is_worth_more_takes_the_faster_device():
    prices = Market((priced(1, of=offer()), priced(0.1, of=offer("us-east-1b", "k80"))))
    found = market_front(a_job(), hours(prices, 20), strategy("dynamic"), FREE, [0.0, 0.1, 0.15, 5.0])
    assert [row.rental.path[0].offer.device for row in found] == ["k80", "k80", "k80", "v100"]
    assert [row.rental.hours for row in found] == pytest.approx([16, 16, 16, 4])
    assert [row.dominated for row in found] == [False, True, True, False]
    assert [row.rental.job.usd_per_hour for row in found] == [0.0, 0.1, 0.15, 5.0]
    with pytest.raises(InputError, match="one worth of an hour or more"):
        market_front(a_job(), hours(prices, 20), strategy("dynamic"), FREE, [])


def test_a_rental_that_is_dearer_and_slower_is_dominated():
    class Wrong(type(strategy("preemption"))):
        """Takes the slow device when an hour is worth much."""

        def choose(self, seen):
            return 1 if seen.job.usd_per_hour > 1 else 0

    prices = Market((priced(1, of=offer()), priced(1, of=offer("us-east-1b", "k80"))))
    found = market_front(a_job(), hours(prices, 20), Wrong(), FREE, [0.0, 2.0])
    assert [row.dominated for row in found] == [False, True]


def test_begins_are_rentals_from_each_step():
    found = rent_from(a_job(steps=HOUR), CROSSING, strategy("baseline_worst"), FREE, None, (0, 1, 3))
    assert found == tuple(
        rent(a_job(steps=HOUR), CROSSING, strategy("baseline_worst"), FREE, None, n) for n in (0, 1, 3)
    )
    assert [rental.cost_usd for rental in found] == [2.0, 2.0, 2.0]
