"""The bound with hindsight: below everything, and close to the best that trying all plans finds."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sim.market.jobs import Moves
from sim.market.offers import Market
from sim.market.optimum import optimum
from sim.market.renting import rent
from sim.market.strategies import STRATEGIES, strategy
from sim.market.strategies.planned import Planned
from sim.specs.fields import InputError
from tests.market.toys import HOUR, a_job, by_chance, hours, offer, priced

ROUNDING = 1 + 1e-9


def unlike(grid, seed):
    """Return prices that are seen otherwise than they are paid, as the study's are, some not at all."""
    rng = np.random.default_rng(seed)
    seen, taken = (table * rng.uniform(0.5, 1.5, table.shape) for table in (grid.seen, grid.taken))
    return replace(grid, seen=np.where(rng.random(seen.shape) < 0.2, np.inf, seen), taken=taken)


@given(st.integers(0, 10**9), st.booleans())
@example(393_862, False)  # it ends in the step in which its offer goes away, and waits for no hour that is left of it
def test_no_strategy_costs_less(seed, paid_as_seen):
    job, grid, moves = by_chance(seed)
    grid = grid if paid_as_seen else unlike(grid, seed)
    for name in STRATEGIES:
        try:
            found = rent(job, grid, strategy(name), moves)
        except InputError:
            continue  # it may rent nothing here
        if found.finished:
            whole = optimum(job, grid, moves)
            assert whole.usd <= found.objective_usd * ROUNDING
            assert whole.usd <= whole.hindsight.objective_usd * ROUNDING if whole.hindsight else True
            assert optimum(job, grid, moves, hours=found.hours).usd <= found.objective_usd * ROUNDING


@pytest.mark.slow
@given(st.integers(0, 10**9))
def test_no_plan_at_all_costs_less(seed):
    job, grid, moves = by_chance(seed, longest=6)
    plans = product(range(-1, min(3, len(grid.offers))), repeat=grid.steps)
    ended = [
        found.objective_usd for plan in plans if (found := rent(job, grid, Planned(0, plan), moves)).finished
    ]  # fmt: skip
    if ended:
        assert optimum(job, grid, moves).usd <= min(ended) * ROUNDING


def test_it_waits_for_the_cheapest_hours():
    grid = hours(Market((priced(5, 4, 3, 2, 1, 6, of=offer()),)), 6)
    found = optimum(a_job(steps=2 * HOUR), grid, Moves.free())
    assert found.usd == pytest.approx(3.0, rel=1e-4)
    assert found.hindsight.cost_usd == pytest.approx(3.0)
    assert found.gap < 1e-4
    soon = optimum(a_job(steps=2 * HOUR), grid, Moves.free(), hours=2)
    assert soon.usd == pytest.approx(9.0, rel=1e-4)


def test_a_move_has_to_pay():
    here, there = offer("us-east-1a"), offer("us-west-2a")
    grid = hours(Market((priced(1, 1, 2, 2, of=here), priced(3, 3, 1, 1, of=there))), 4)
    free = optimum(a_job(), grid, Moves.free())
    dear = optimum(a_job(steps=3.5 * HOUR), grid, Moves(boot_s=0.0, restart_s=1_500.0))
    assert free.hindsight.migrations == 1
    assert free.usd == pytest.approx(4.0, rel=1e-4)
    assert dear.hindsight is None or dear.hindsight.migrations == 0


def test_it_goes_before_an_offer_does():
    a, b = offer("us-east-1a"), offer("us-east-1b")
    market = Market((priced(1, of=a), priced(2, of=b)))
    grid = hours(market, 6, {a: HOUR * np.array([[0.0, 2.0]])})
    found = optimum(a_job(), grid, Moves(boot_s=0.0, restart_s=0.0, lost_work_s=3_000.0))
    assert found.usd == pytest.approx(2 * 1 + 2 * 2, rel=1e-4)
    assert found.hindsight.preemptions == 0


def test_time_that_is_not_enough():
    grid = hours(Market((priced(1, of=offer()),)), 6)
    with pytest.raises(InputError, match="hours"):
        optimum(a_job(), grid, Moves.free(), hours=3)
    assert optimum(a_job(), grid, Moves.free(), hours=4).usd == pytest.approx(4.0)


def test_in_a_hurry_seconds_are_dear():
    """Only an offer a hundred times as dear ends in time: the last hour of work costs many times all others."""
    spot, sure = offer(), offer("us-east-1b", billing="on-demand")
    market = Market((priced(1, of=spot), priced(100, of=sure)))
    grid = hours(market, 10, {spot: np.array([[0.0, 5 * HOUR], [5 * HOUR + 40, 10 * HOUR]])})
    late, soon = (optimum(a_job(steps=10 * HOUR - s), grid, Moves(boot_s=0.0, restart_s=60.0)) for s in (4_000.0, 90.0))
    assert late.usd < 10
    assert soon.usd > 600 and soon.hindsight.cost_usd == pytest.approx(1_000, rel=0.01)
