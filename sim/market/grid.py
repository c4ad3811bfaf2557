"""Prices of offers step by step."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from sim.market.offers import Floats, History, Market, Offer
from sim.specs.fields import InputError

Intervals = Floats
"""When an offer can be held: begins and ends (n, 2) in seconds since 1970-01-01 UTC, ascending and apart."""

MOST_CELLS = 200_000_000


@dataclass(frozen=True, eq=False)
class Grid:
    """What N offers cost in K steps of `step_s` from `begin_s`, in USD of an hour of one device; each (K, N).

    `seen`: what whoever chooses sees, inf where nothing is offered. `taken` is paid in the step in which a stay begins,
    `kept` in each after it. `up_s`: so many seconds of the step, from its beginning, an offer can be held.
    """

    offers: tuple[Offer, ...]
    begin_s: float
    step_s: float
    seen: Floats
    taken: Floats
    kept: Floats
    up_s: Floats

    @property
    def steps(self) -> int:
        """K."""
        return len(self.seen)

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Every cloud and region once, in the order of the offers."""
        return tuple(dict.fromkeys(offer.place for offer in self.offers))


def price_grid(
    market: Market,
    begin_s: float,
    seconds: float,
    step_s: float = 3_600.0,
    available: Mapping[Offer, Intervals] | None = None,
) -> Grid:
    """Return the prices from `begin_s` for `seconds` (rounded up to whole steps).

    Whoever chooses sees the price at the beginning of a step, and pays the mean over it. `available`: when spot offers
    can be held; those it does not name always can. A step is of use to whoever holds the offer until it is first taken
    away in it; one that comes back is there again from the next step on.

    Raises:
        InputError: nothing is offered at the beginning, or can be held at the begin of any step, or there are more than
            200 million cells.
    """
    if not 0 < step_s < inf:
        raise InputError("step_s", step_s, "seconds above 0")
    count = max(1, ceil(seconds / step_s - 1e-9))
    if count * len(market.histories) > MOST_CELLS:
        told = f"at most {MOST_CELLS:.0e} steps x offers, here {count} x {len(market.histories)}"
        raise InputError("step_s", step_s, told)
    edges: Floats = np.array([begin_s + step_s * k for k in range(count + 1)])
    seen = np.column_stack([_at(history, edges[:-1]) for history in market.histories])
    mean = np.column_stack([_mean(history, edges) for history in market.histories])
    up = np.full(seen.shape, step_s)
    for n, offer in enumerate(market.offers):
        if available and offer in available:
            up[:, n] = _up(available[offer], edges, step_s)
    if np.isinf(mean[0]).all():
        raise InputError("begin_s", begin_s, f"a time at which something is offered: from {market.offered_s:.0f}")
    seen[(up == 0) | np.isinf(mean)] = inf
    if np.isinf(seen).all():
        raise InputError("available", "nothing", "an offer that can be held at the begin of a step")
    each = np.array([offer.devices for offer in market.offers])
    mean[np.isinf(mean)] = 0.0  # never paid: not offered
    return Grid(market.offers, begin_s, step_s, seen / each, mean / each, mean / each, up)


def _at(history: History, times_s: Floats) -> Floats:
    """Return the price at each time; inf before the first."""
    at = np.searchsorted(history.times_s, times_s, side="right") - 1
    return np.where(at < 0, inf, history.usd_per_hour[np.maximum(at, 0)])


def _mean(history: History, edges: Floats) -> Floats:
    """Return the mean price between neighbouring edges; inf where the first one is before the first price."""
    inside = history.times_s[(history.times_s > edges[0]) & (history.times_s < edges[-1])]
    points = np.union1d(edges, inside)
    prices = _at(history, points[:-1])
    paid = np.concatenate([[0.0], np.cumsum(np.where(np.isinf(prices), 0.0, prices) * np.diff(points))])
    found = np.diff(paid[np.searchsorted(points, edges)]) / np.diff(edges)
    return np.where(np.isinf(_at(history, edges[:-1])), inf, found)


def _up(intervals: Intervals, edges: Floats, step_s: float) -> Floats:
    """Return how long from the beginning of each step an offer can be held."""
    if not len(intervals):
        return np.zeros(len(edges) - 1)
    at = np.searchsorted(intervals[:, 0], edges[:-1], side="right") - 1
    end = np.where(at < 0, -inf, intervals[np.maximum(at, 0), 1])
    # Edges are rounded: what lasts to the next one lasts for all of the step, or else it would be taken away there.
    return np.where(end >= edges[1:], step_s, np.clip(end - edges[:-1], 0.0, step_s))
