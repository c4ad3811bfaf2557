"""Prices as the study of dynamic prices counted them, oddities included: one step a day.

Source: the published notebook `single_job_cost_analysis.ipynb` (stanford-futuredata/training_on_a_dime, MIT licence).

Of the prices that an offer has on one day whoever chooses sees and pays the lowest; who stays pays the last one, or the
last known where there is none. An offer without a price on a day is not offered on it. Prices of AWS are compared by
the device, those of other clouds by the instance, though they are paid by the device. Of equal ones it takes the first
in its table: by cloud and type of instance, the newest price first. Of instance types of another cloud with the same
devices only one is known. The prices of the last day hold on.
"""

from math import floor, inf

import numpy as np

from sim.market.grid import Grid
from sim.market.offers import Floats, History, Market, Offer
from sim.market.paths import Ints
from sim.market.strategies.study import CLOUD
from sim.specs.fields import InputError
from sim.units import DAY_S

BASE = "p3.2xlarge"
"""The instance type whose prices say which days there are."""
AFTER = 60
"""Days for which the prices of the last one hold: enough for the slowest job to end."""
STARTS = slice(-35, -5)
TIE = 1e-9
"""By this share prices that are equal are told apart; no two others are that near."""


def study_grid(market: Market, per_device: bool = False) -> Grid:
    """Return the prices of every day; every listed price has to be in `market`, also one that repeats the last.

    per_device: prices of all clouds are compared by the device.

    Raises:
        InputError: there is no p3.2xlarge of AWS.
    """
    days = base_days(market)
    held = [history for history in market.histories if _known(history.offer, market.offers)]
    columns = zip(*(_daily(history, days) for history in held), strict=True)
    lowest, newest, kept = (np.column_stack(column) for column in columns)
    devices = np.array([history.offer.devices for history in held], dtype=float)
    compared = np.array([per_device or history.offer.cloud == CLOUD for history in held])
    seen = lowest / np.where(compared, devices, 1.0) * (1 + TIE * (_types(held) - newest))
    taken = np.where(np.isfinite(lowest), lowest, kept)
    return _grid(held, days, seen, taken / devices, kept / devices)


def worst_grid(market: Market) -> Grid:
    """Return the prices by which the study's baseline_worst comes out.

    It takes the zone whose first price of the day came last in its table, and pays on the first day what the table ends
    with.

    Raises:
        InputError: there is no p3.2xlarge of AWS.
    """
    days = base_days(market)
    held = [history for history in market.histories if _is_base(history.offer)]
    first = np.column_stack([_first_of_day(history, days) for history in held])
    zone = len(held) - 1 - first[:, ::-1].argmin(axis=1)  # of equals the last
    ends = held[zone[-1]]
    price = ends.usd_per_hour[np.searchsorted(ends.times_s, first[-1].min())]
    seen = np.where(np.isfinite(first) & (zone[:, None] == np.arange(len(held))), price, inf)
    kept = np.column_stack([_daily(history, days)[2] for history in held])
    return _grid(held, days, seen, np.full(seen.shape, price), kept)


def study_starts(market: Market) -> tuple[int, ...]:
    """Return the steps of `study_grid` at which the study has its jobs begin."""
    days = base_days(market)
    return tuple((days[STARTS] - days[0]).tolist())


def base_days(market: Market) -> Ints:
    """Return the days (since 1970-01-01) on which the base type has a price, ascending."""
    found = [_days(history) for history in market.histories if _is_base(history.offer)]
    if not found:
        raise InputError("market", len(market.histories), f"prices of {BASE} of {CLOUD} among those of others")
    return np.unique(np.concatenate(found))


def _is_base(offer: Offer) -> bool:
    return offer.cloud == CLOUD and offer.instance == BASE


def _days(history: History) -> Ints:
    return np.floor(history.times_s / DAY_S).astype(np.int64)


def _known(offer: Offer, others: tuple[Offer, ...]) -> bool:
    """Return whether an offer's instance type is the last by name of those of its cloud with the same devices."""
    same = (o.instance for o in others if (o.cloud, o.device, o.devices) == (offer.cloud, offer.device, offer.devices))
    return offer.cloud == CLOUD or offer.instance == max(same)


def _types(held: list[History]) -> Ints:
    """Return the place (N,) of each offer's type of instance in the study's order, from 1 on."""
    kinds = [(history.offer.cloud, history.offer.device, history.offer.devices) for history in held]
    order = sorted(set(kinds))
    return np.array([1 + order.index(kind) for kind in kinds])


def _daily(history: History, days: Ints) -> tuple[Floats, Floats, Floats]:
    """Return of each day the lowest price (inf: none), at what part of the day it was listed last, the last known."""
    count = int(days[-1] - days[0]) + 1
    lowest, newest, kept = np.full(count, inf), np.zeros(count), np.zeros(count)
    at = history.times_s / DAY_S - days[0]
    for time, usd in zip(at.tolist(), history.usd_per_hour.tolist(), strict=True):
        day = floor(time)
        if 0 <= day < count:
            if usd <= lowest[day]:
                lowest[day], newest[day] = usd, time - day
            kept[day:] = usd
    return lowest, newest, kept


def _first_of_day(history: History, days: Ints) -> Floats:
    """Return the time of the first price of each day; inf where there is none."""
    found = np.full(int(days[-1] - days[0]) + 1, inf)
    np.minimum.at(found, _days(history) - days[0], history.times_s)
    return found


def _grid(held: list[History], days: Ints, seen: Floats, taken: Floats, kept: Floats) -> Grid:
    every = [np.concatenate([prices, np.repeat(prices[-1:], AFTER, axis=0)]) for prices in (seen, taken, kept)]
    offers = tuple(history.offer for history in held)
    return Grid(offers, float(days[0]) * DAY_S, DAY_S, every[0], every[1], every[2], np.full(every[0].shape, DAY_S))
