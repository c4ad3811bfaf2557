"""The prices of a job: what a cluster may rent, and what its devices cost."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np

from sim.market.devices import catalog_device, market_name
from sim.market.grid import price_grid
from sim.market.offers import Market, Offer
from sim.market.price_files import read_prices
from sim.specs import Cluster, InputError, Prices, Training
from sim.units import DAY_S, HOUR_S

FIELDS = {
    "prices": "",
    "begin_s": "begin",
    "step_s": "step_hours",
    "every_s": "every_hours",
    "available": "availability",
}
"""The fields of prices behind the arguments of what is called here."""


@contextmanager
def stated() -> Iterator[None]:
    """Name the fields of a job's prices in errors."""
    try:
        yield
    except InputError as error:
        raise InputError(FIELDS.get(error.path, error.path), error.value, error.allowed).under("prices") from None


def market_of(prices: Prices, cluster: Cluster) -> Market:
    """Return what prices of files offer that a cluster can be: its device, in instances that hold its nodes.

    Raises:
        InputError: a file cannot be read, nothing is left, or the cluster has several devices.
    """
    if len({member.device for member in cluster.members}) > 1:
        raise InputError("prices.files", prices.files, "usd_per_gpu_hour for a cluster of several devices")
    whole = _read(prices.files)
    with stated():
        billing = None if prices.billing == "any" else prices.billing
        left = whole.only(clouds=prices.clouds or None, regions=prices.regions or None, billing=billing)
        return fitting(left, cluster, prices.device)


def _read(files: tuple[str, ...]) -> Market:
    """Return the prices in files, read again only where one has changed."""
    try:
        known = tuple((file, status.st_mtime_ns, status.st_size) for file in files for status in (Path(file).stat(),))
    except (OSError, ValueError):
        return read_prices(*files)  # which says what is wrong
    return _read_once(known)


@lru_cache(maxsize=2)
def _read_once(files: tuple[tuple[str, int, int], ...]) -> Market:
    return read_prices(*(file for file, _, _ in files))  # the rest only tells one state of a file from another


def fitting(market: Market, cluster: Cluster, device: str | None = None) -> Market:
    """Return the offers with a cluster's device (or that of this name there) whose instances hold its nodes evenly."""
    wanted = cluster.device if device is None else device.lower()
    found = [h for h in market.histories if wanted in (h.offer.device, catalog_device(h.offer.device))]
    if not found:
        known = ", ".join(sorted({offer.device for offer in market.offers}))
        raise InputError("device", device or market_name(wanted) or wanted, f"one of {known}, which are offered")
    held = tuple(history for history in found if _holds(history.offer, cluster))
    if not held:
        sizes = ", ".join(map(str, sorted({history.offer.devices for history in found})))
        nodes = f"{cluster.nodes} x {cluster.gpus_per_node} {wanted}"
        raise InputError("files", f"instances of {sizes} devices", f"instances that hold {nodes} evenly")
    return replace(market, histories=held)


def _holds(offer: Offer, cluster: Cluster) -> bool:
    if offer.devices >= cluster.gpus:
        return True
    return offer.devices % cluster.gpus_per_node == 0 and cluster.gpus % offer.devices == 0


def begin_of(prices: Prices, market: Market) -> float:
    """Return when a run begins, in seconds since 1970-01-01 UTC: 0 where no time was stated and no price changes.

    Raises:
        InputError: nothing is offered yet.
    """
    if prices.begin_s is not None and prices.begin_s < market.offered_s:
        first = datetime.fromtimestamp(market.offered_s, UTC).isoformat()
        raise InputError("prices.begin", prices.begin, f"a time at which something is offered: from {first}")
    return market.first_s if prices.begin_s is None else prices.begin_s


def priced(cluster: Cluster, prices: Prices | None, training: Training | None = None) -> Cluster:
    """Return a cluster at the price that prices, or without them training, say, per device.

    That of files is the mean, from the begin to the last change of a price, of what is cheapest of all that fits.

    Raises:
        InputError: as `market_of`, or nothing is offered at the begin.
    """
    if prices is None:
        stated_usd = training.usd_per_gpu_hour if training else None
        return cluster if stated_usd is None else _at(cluster, stated_usd)
    usd, notes = prices.usd_per_gpu_hour, list[str]()
    if usd is None:
        market = market_of(prices, cluster)
        begin_s, step_s = begin_of(prices, market), prices.step_hours * HOUR_S
        with stated():
            grid = price_grid(market, begin_s, max(market.end_s - begin_s, step_s), step_s)
        idle = np.array([max(1.0, offer.devices / cluster.gpus) for offer in grid.offers])
        usd = float(np.where(np.isfinite(grid.seen), grid.kept * idle, np.inf).min(axis=1).mean())
        notes.append(
            f"cluster.usd_per_gpu_hour = {usd:.4g} USD (the cheapest of {len(grid.offers)} offers at each time, mean "
            f"of {grid.steps * step_s / DAY_S:.3g} days; what moving takes is not in it)"
        )
    return _at(cluster, usd, notes)


def _at(cluster: Cluster, usd: float, notes: Sequence[str] = ()) -> Cluster:
    """Return a cluster, or its groups, at a price; `notes`: what was assumed of it."""
    if cluster.groups:
        groups = tuple(replace(group, usd_per_gpu_hour=usd) for group in cluster.groups)
        made = Cluster(groups=groups, links=cluster.links, multipliers=cluster.multipliers)
    else:
        made = replace(cluster, usd_per_gpu_hour=usd)
    kept = [line for line in cluster.assumptions if "cluster.usd_per_gpu_hour" not in line]
    object.__setattr__(made, "assumptions", (*kept, *notes))  # what else was assumed still is
    return made
