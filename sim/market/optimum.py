"""What renting would have cost at least, had all prices been known: a bound for every strategy.

Least cost for a given work is a shortest path with a resource. Its Lagrangian dual gives a step of work a worth; for
each worth a dynamic program over steps and offers (`sim.market.paths`) finds the cheapest way, and the worth that
bounds best follows in finitely many of them (Handler and Zang, A dual algorithm for the constrained shortest path
problem, Networks 10, 1980). What it says is never above the optimum; the ways that it finds are what hindsight can get.
"""

from dataclasses import dataclass
from math import ceil, inf, isfinite

import numpy as np

from sim.market.grid import Grid
from sim.market.jobs import Moves, RentedJob
from sim.market.offers import Floats
from sim.market.paths import Told, Ways, best_way
from sim.market.renting import Terms, rent
from sim.market.results import Rental
from sim.market.strategies.planned import Planned
from sim.specs.fields import InputError
from sim.units import HOUR_S

MOST_TRIES = 100
CLOSE = 1e-12
ENOUGH = 1e-5
"""The share of itself that the bound may stay below the best that the dual gives."""
GROWS = 2.0
TIGHT = 1e6
"""So many times what a step costs where it is dearest may the last one be worth: in a hurry it gains little."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The least that a job can cost, by the end of `hours`, each of which is worth `usd_per_hour` to the owner.

    No strategy costs less than `usd`. `hindsight` is a way that was found with all prices known, which costs `gap` (a
    share) more at most than the best one; None where none was found that ends.
    """

    usd: float
    hours: float
    hindsight: Rental | None
    usd_per_hour: float = 0.0

    @property
    def gap(self) -> float:
        """How far the bound may be from the optimum, as a share of what hindsight costs."""
        return inf if self.hindsight is None else 1 - self.usd / self.hindsight.objective_usd


def optimum(
    job: RentedJob, grid: Grid, moves: Moves | None = None, begin_step: int = 0, hours: float | None = None
) -> Optimum:
    """Return a bound of what `job` costs from step `begin_step` on, ended within `hours` (or while prices last).

    Raises:
        InputError: it cannot end by then.
    """
    terms_of = moves or Moves()
    most = grid.steps - begin_step
    steps = most if hours is None else min(most, max(1, ceil(hours * HOUR_S / grid.step_s - 1e-9)))
    ways = _ways(job, grid, terms_of, begin_step, steps)
    found, bound = _search(ways, job.steps)
    if not found:
        raise InputError("hours", steps * grid.step_s / HOUR_S, "time enough to do all steps")
    plans = [Planned(begin_step, way.held.tolist()) for way in found]
    rentals = [rent(job, grid, plan, terms_of, begin_step=begin_step) for plan in plans]
    ended = [rental for rental in rentals if rental.finished]
    best = min(ended, key=lambda rental: rental.objective_usd, default=None)
    return Optimum(bound + terms_of.usd, steps * grid.step_s / HOUR_S, best, job.usd_per_hour)


def _search(ways: Ways, work: float) -> tuple[list[Told], float]:
    """Return ways that do `work`, the last ones cheapest, and the bound; no way where none does it."""
    low, worth = Told(0.0, 0.0, np.zeros(0, dtype=np.int64)), _least(ways)
    dear = GROWS * (_dearest(ways) + worth)
    if not isfinite(worth):
        return [], 0.0  # nothing is ever offered
    high = best_way(ways, worth)
    while high.steps < work * (1 - CLOSE):
        if worth > TIGHT * dear:
            return [], 0.0
        low, worth = high, worth * (GROWS if worth < dear else GROWS**4)
        high = best_way(ways, worth)
    found, bound = [high], high.usd - worth * (high.steps - work)
    for _ in range(MOST_TRIES):
        worth = (high.usd - low.usd) / (high.steps - low.steps)
        above = high.usd - worth * (high.steps - work)  # the dual is concave: no worth bounds better than this
        if above - bound <= ENOUGH * above:
            break
        tried = best_way(ways, worth)
        bound = max(bound, tried.usd - worth * (tried.steps - work))
        if tried.steps >= work:
            high = tried
            found.append(high)
        else:
            low = tried
    return found, max(0.0, bound)


def _least(ways: Ways) -> float:
    """Return USD of a step where it costs least."""
    runs = ways.rate > 0
    price = (np.minimum(ways.taken, ways.kept) + ways.usd_per_s)[:, runs] / ways.rate[runs]
    return float(max(price[ways.up[:, runs] > 0].min(initial=np.inf), 1e-300))


def _dearest(ways: Ways) -> float:
    """Return USD of a step where it costs most."""
    dear = np.maximum(ways.taken, ways.kept).max() + ways.usd_per_s + ways.usd.max() / ways.length + 1.0
    return float(dear / ways.rate[ways.rate > 0].min())


def _ways(job: RentedJob, grid: Grid, moves: Moves, begin: int, steps: int) -> Ways:
    terms, span = Terms(job, grid, moves), slice(begin, begin + steps)
    places = len(grid.places)
    known = (grid.taken[span] > 0) | (grid.kept[span] > 0)
    up: Floats = np.where(known, grid.up_s[span], 0.0)
    nowhere = np.zeros((1, places))
    apart = np.concatenate([1.0 - np.eye(places), nowhere])
    longest = moves.again_s + moves.write_s + float(terms.transfer_s.max(initial=0.0))
    return Ways(
        length=grid.step_s,
        taken=np.ascontiguousarray(grid.taken[span] * terms.paid / HOUR_S),
        kept=np.ascontiguousarray(grid.kept[span] * terms.paid / HOUR_S),
        up=np.ascontiguousarray(up),
        begins=np.isfinite(grid.seen[span]) & (up > 0),
        rate=terms.rates,
        place=terms.place.astype(np.int64),
        usd=np.concatenate([terms.transfer_usd, nowhere]),
        apart=apart,
        lost=_lost(up, terms.place, places, grid.step_s, longest),
        home=terms.home,
        first_s=moves.start_s,
        again_s=moves.again_s,
        write_s=moves.write_s,
        transfer_s=float(terms.transfer_s.max(initial=0.0)),
        usd_per_s=job.usd_per_hour / HOUR_S,
    )


def _lost(up: Floats, place: np.ndarray, places: int, length: float, longest_s: float) -> np.ndarray:
    """Return (K, L) whether an offer that can be held goes away within `longest_s`."""
    window = int(longest_s // length) + 1
    gone = up < length
    soon = gone.copy()
    for ahead in range(1, min(window, len(up))):
        soon[:-ahead] |= gone[ahead:]
    found = np.zeros((len(up), places), dtype=np.bool_)
    for at in range(places):
        found[:, at] = (soon & (up > 0))[:, place == at].any(axis=1)
    return found
