"""Cost against time: what a strategy rents as an hour is worth more to the job's owner."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.market.grid import Grid
from sim.market.jobs import Moves, RentedJob
from sim.market.renting import rent
from sim.market.results import Rental
from sim.market.strategies.base import Strategy
from sim.specs.fields import InputError
from sim.tuner.front import pareto


@dataclass(frozen=True)
class Traded:
    """A rental where an hour is worth `usd_per_hour`; `dominated`: another one is no dearer and no slower."""

    usd_per_hour: float
    rental: Rental
    dominated: bool


def market_front(
    job: RentedJob,
    grid: Grid,
    strategy: Strategy,
    moves: Moves | None = None,
    usd_per_hour: Sequence[float] = (),
    every_s: float | None = None,
    begin_step: int = 0,
) -> tuple[Traded, ...]:
    """Return what becomes of a job for each worth of an hour that it lasts (instead of the job's own), in their order.

    Of equal rentals the first is not dominated.

    Raises:
        InputError: there are none, or one is out of range.
    """
    if not usd_per_hour:
        raise InputError("usd_per_hour", list(usd_per_hour), "one worth of an hour or more")
    rentals = [rent(replace(job, usd_per_hour=usd), grid, strategy, moves, every_s, begin_step) for usd in usd_per_hour]
    best = set(pareto(np.array([r.hours for r in rentals]), np.array([r.cost_usd for r in rentals])).tolist())
    pairs = enumerate(zip(usd_per_hour, rentals, strict=True))
    return tuple(Traded(usd, rental, n not in best) for n, (usd, rental) in pairs)
