"""One question to a market: what a job costs there, from when on, by which strategy, and what it could have cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sim.market.availability import drawn
from sim.market.grid import Grid, Intervals, price_grid
from sim.market.jobs import Moves, RentedJob
from sim.market.offers import Market, Offer
from sim.market.optimum import Optimum, optimum
from sim.market.renting import rent
from sim.market.results import Rental
from sim.market.strategies.base import Strategy
from sim.specs.fields import InputError
from sim.specs.prices import iso_utc
from sim.units import DAY_S, HOUR_S, digits3, many

LONGER = (1.5, 6.0, 24.0)
"""How many times as long as uninterrupted training a run may take, tried one after the other."""
MOST_STATES = 40_000_000
"""Steps x offers up to which the optimum is computed: some 2 GB."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A job and the market in which it rents from `begin_s` on (left out: from the first price), by steps of `step_s`.

    `every_s`: how often a strategy chooses again. `available`: when spot offers can be held, always where none says.
    """

    job: RentedJob
    market: Market
    moves: Moves = field(default_factory=Moves)
    begin_s: float | None = None
    step_s: float = HOUR_S
    every_s: float | None = None
    available: Mapping[Offer, Intervals] | None = None

    @property
    def starts_s(self) -> float:
        """When it begins, in seconds since 1970-01-01 UTC: 0 where no time is stated and no price changes."""
        return self.market.first_s if self.begin_s is None else self.begin_s

    @property
    def notes(self) -> tuple[str, ...]:
        """What it rests on."""
        spot = [offer for offer in self.market.offers if offer.billing == "spot"]
        without = [offer for offer in spot if offer not in (self.available or {})]
        told = f"{len(without)} of {many(len(spot), 'spot offer')} {'is' if len(spot) == 1 else 'are'} never taken away"
        return (told,) if without else ()

    def beyond(self, found: Rental) -> tuple[str, ...]:
        """Return how long a rental pays prices that nobody knows: those after the last change of one."""
        unknown_s = found.path[-1].end_s - max(self.market.end_s, self.starts_s) if found.path else 0.0
        if not self.market.end_s > -np.inf or unknown_s <= 0:
            return ()
        last, hours = iso_utc(self.market.end_s), digits3(unknown_s / HOUR_S)
        return (f"prices are known until {last}; in the last {hours} hours they stay as they were",)

    def grid(self, seconds: float) -> Grid:
        """Return the prices for so long."""
        return price_grid(self.market, self.starts_s, seconds, self.step_s, self.available)

    def lasts_s(self, times: float) -> float:
        """Return the seconds of prices, or if longer so many times what the job takes where it is slowest."""
        rates = self.job.rates(self.market.offers)
        slowest = float(rates[rates > 0].min(initial=np.inf))  # inf: nothing runs it, as the strategy will say
        lasting_s = self.job.steps / slowest * (1 + self.moves.overhead) + self.moves.again_s
        known_s = max(self.market.end_s - self.starts_s, 0.0)
        return max(known_s, times * lasting_s + DAY_S, self.job.deadline_s or 0.0)

    def at_speeds(self, steps_per_s: Mapping[str, float]) -> "Asked":
        """Return the same where devices are as fast as that, and strategies believe what they did."""
        return replace(self, job=replace(self.job, steps_per_s=dict(steps_per_s), believed=self.job.steps_per_s))

    def taken_away(self, mean_up_s: float, mean_down_s: float, seed: int, more_s: float = 0.0) -> "Asked":
        """Return the same where spot offers come and go by chance, up to `more_s` after the latest end."""
        until_s = self.starts_s + self.lasts_s(LONGER[-1]) + more_s
        return replace(self, available=drawn(self.market.offers, mean_up_s, mean_down_s, self.starts_s, until_s, seed))

    def rented(self, strategy: Strategy) -> tuple[Rental, Grid]:
        """Return what becomes of the job, and the prices up to the last one, or to its end if that is later.

        Raises:
            InputError: the strategy may rent nothing, or by it the job does not end.
        """
        for times in LONGER:
            grid = self.grid(self.lasts_s(times))
            found = rent(self.job, grid, strategy, self.moves, self.every_s)
            if found.finished:
                return found, grid
        done = sum(stay.steps for stay in found.path) / self.job.steps
        told = f"one by which the job ends: after {found.hours / 24:.3g} days {100 * done:.3g} % is done"
        raise InputError("strategy", strategy.name, told)

    def bounded(self, grid: Grid, by_hours: float | None = None) -> Optimum | None:
        """Return the least rent by a time, or while prices are known; None where that is too large to be found.

        What an hour is worth is left out of it: no strategy that ends by then pays less.
        """
        if grid.steps * len(grid.offers) > MOST_STATES:
            return None
        return optimum(replace(self.job, usd_per_hour=0.0), grid, self.moves, hours=by_hours)

    def from_times(self, strategy: Strategy, begins_s: Sequence[float]) -> tuple[Rental, ...]:
        """Return the same begun at several times."""
        return tuple(replace(self, begin_s=begin).rented(strategy)[0] for begin in begins_s)
