"""A run that rents its devices: what its strategy makes of the prices that a job states."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from sim.checkpointing import Advice, Times
from sim.market.availability import read_availability
from sim.market.grid import Grid, Intervals, price_grid
from sim.market.job_prices import begin_of, stated
from sim.market.jobs import Moves, RentedJob
from sim.market.offers import Market, Offer
from sim.market.optimum import optimum
from sim.market.renting import rent
from sim.market.results import Rental
from sim.market.strategies import STRATEGIES, strategy
from sim.market.strategies.base import Strategy
from sim.market.strategies.study import Baseline
from sim.market.tables import is_json
from sim.market.tariffs import Tariff, tariffs
from sim.specs import Failures, InputError, Prices
from sim.units import DAY_S, HOUR_S

LONGER = (1.5, 6.0, 24.0)
"""How many times as long as uninterrupted training a run may take, tried one after the other."""

ASSUMPTIONS = (
    "prices: only offers with the cluster's device are rented, in instances that hold its nodes; each runs the plan as "
    "fast as the cluster does, and whole instances are paid by the second",
    "prices: failures of devices and preemptions are both counted, each as if there were no others",
)


@dataclass(frozen=True, eq=False)
class Rentable:
    """A training of `steps` steps on `gpus` devices, and the offers among which it rents them.

    `moves`: what starting, moving and being preempted takes.
    """

    prices: Prices
    market: Market
    moves: Moves
    steps: float
    gpus: int

    @property
    def begin_s(self) -> float:
        """When it begins, in seconds since 1970-01-01 UTC."""
        return begin_of(self.prices, self.market)

    def rental(self, wall_s: float) -> Rental:
        """Return what becomes of the training if it takes `wall_s` where nothing interrupts it, saving included.

        Raises:
            InputError: the strategy may rent nothing of what fits, or the run does not end.
        """
        job, chosen, prices = self._job(wall_s), self._strategy(), self.prices
        if not chosen.allowed(self.market.offers, job).any():
            fit = ", ".join(offer.name for offer in self.market.offers[:10])
            raise InputError("prices.strategy", chosen.name, f"one that may rent an offer that fits: {fit}")
        for times in LONGER:
            seconds = times * (wall_s + self.moves.again_s) + DAY_S
            grid = self._grid(seconds)
            with stated():
                found = rent(job, grid, chosen, self.moves, prices.every_hours * HOUR_S)
            if found.finished:
                return found
        done = 100 * sum(stay.steps for stay in found.path) / self.steps
        allowed = f"one by which the run ends: after {seconds / DAY_S:.3g} days {done:.3g} % is done"
        raise InputError("prices.strategy", chosen.name, allowed)

    def optimum_usd(self, rental: Rental) -> float:
        """Return a bound below what any strategy pays that ends when `rental` does, or by the deadline if that is
        later."""
        hours = max(rental.hours, self.prices.deadline_hours or 0.0)
        return optimum(rental.job, self._grid(hours * HOUR_S), self.moves).usd

    def _job(self, wall_s: float) -> RentedJob:
        prices, rate = self.prices, self.steps / wall_s
        return RentedJob(
            steps=self.steps,
            steps_per_s={offer.device: rate for offer in self.market.offers},
            gpus=self.gpus,
            usd_per_hour=prices.usd_per_hour,
            deadline_s=None if prices.deadline_hours is None else prices.deadline_hours * HOUR_S,
            home=prices.home,
        )

    def _grid(self, seconds: float) -> Grid:
        step_s, available = self.prices.step_hours * HOUR_S, self._available
        with stated():
            return price_grid(self.market, self.begin_s, seconds, step_s, available)

    @cached_property
    def _available(self) -> Mapping[Offer, Intervals] | None:
        """When spot offers can be held; None where no file says so."""
        path, market = self.prices.availability, self.market
        if path is None:
            return None
        spot = [offer.name for offer in market.offers if offer.billing == "spot"]
        traced = is_json(Path(path))
        if traced and len(spot) != 1:
            allowed = f"a table of periods or of instances: a JSON trace is of one spot offer, and {len(spot)} fit"
            raise InputError("prices.availability", path, allowed)
        begin_s = market.begin_s if np.isfinite(market.begin_s) else self.begin_s
        return read_availability(path, market, offer=spot[0] if traced else "", begin_s=begin_s)

    def _strategy(self) -> Strategy:
        """Return the strategy; those of the study start with the cluster's device, in the first cloud stated."""
        offers, prices = self.market.offers, self.prices
        if not issubclass(STRATEGIES[prices.strategy], Baseline):
            return strategy(prices.strategy)
        cloud = prices.clouds[0] if prices.clouds else offers[0].cloud
        return strategy(prices.strategy, device=offers[0].device, cloud=cloud)


def moves_of(times: Times, advice: Advice, failures: Failures, prices: Prices, market: Market) -> Moves:
    """Return what moving takes of a run whose state is saved as `advice` says, at the catalog's tariffs.

    What saving takes of training is not in it, but in the time that the training takes.
    """
    known, out = tariffs(), prices.egress_usd_per_gb
    clouds = {offer.cloud for offer in market.offers} - set(known)
    others = {name: Tariff(cloud=name, usd_per_gb_between_regions=out, usd_per_gb_out=out) for name in clouds}
    return Moves(
        boot_s=prices.boot_s,
        restart_s=failures.restart_s,
        write_s=times.persist_s,
        read_s=times.reload_s,
        state_bytes=times.state_bytes,
        data_bytes=prices.data_bytes,
        wan_bytes_per_s=prices.wan_bytes_per_s,
        lost_work_s=advice.lost_work_s,
        tariffs={**known, **others},
    )
