"""What every strategy of renting must satisfy. A newcomer subclasses this and names itself."""

from dataclasses import replace

import numpy as np
import pytest

from sim.market.renting import Renting, rent
from sim.market.strategies import strategy
from sim.market.strategies.base import WAIT
from sim.specs.fields import InputError
from tests.market.toys import by_chance

SEEDS = range(25)


class StrategyContract:
    """Laws of any strategy."""

    name: str

    def make(self):
        return strategy(self.name)

    def cases(self):
        """Yield markets by chance in which it may rent something."""
        for seed in SEEDS:
            job, grid, moves = by_chance(seed)
            if (self.make().allowed(grid.offers, job) & (job.rates(grid.offers) > 0)).any():
                yield job, grid, moves

    def test_it_chooses_what_can_be_held_and_what_it_may_rent(self):
        for job, grid, moves in self.cases():
            run = Renting(job, grid, self.make(), moves, 0)
            for step in range(min(6, grid.steps)):
                chosen = self.make().choose(run.seen(step))
                assert chosen == WAIT or run.seen(step).allowed[chosen]

    def test_the_same_market_gives_the_same_rental(self):
        for job, grid, moves in self.cases():
            assert rent(job, grid, self.make(), moves) == rent(job, grid, self.make(), moves)

    def test_the_hours_are_accounted_for(self):
        for job, grid, moves in self.cases():
            found = rent(job, grid, self.make(), moves)
            assert sum(found.parts_s.values()) == pytest.approx(found.hours * 3_600)
            assert min(found.parts_s.values()) >= 0
            assert found.cost_usd == pytest.approx(sum(s.usd for s in found.path) + found.transfer_usd)
            assert sum(s.steps for s in found.path) == pytest.approx(job.steps) or not found.finished

    def test_twice_the_prices_are_twice_the_cost(self):
        for job, grid, moves in self.cases():
            dear = replace(grid, seen=2 * grid.seen, taken=2 * grid.taken, kept=2 * grid.kept)
            plain, local = replace(job, usd_per_hour=0.0), replace(moves, state_bytes=0.0, data_bytes=0.0)
            one, two = (rent(plain, at, self.make(), local) for at in (grid, dear))
            assert two.cost_usd == pytest.approx(2 * one.cost_usd)
            assert [s.offer for s in one.path] == [s.offer for s in two.path]

    def test_offers_that_cannot_run_the_job_are_left_alone(self):
        job, grid, moves = next(self.cases())
        with pytest.raises(InputError, match="may rent"):
            rent(replace(job, steps_per_s={"tpu": 1.0}), grid, self.make(), moves)

    def test_nothing_is_rented_where_nothing_is_offered(self):
        job, grid, moves = next(self.cases())
        found = rent(job, replace(grid, seen=np.full_like(grid.seen, np.inf)), self.make(), moves)
        assert (found.cost_usd, found.finished, found.path) == (0.0, False, ())
