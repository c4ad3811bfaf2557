"""A run that rents its devices: what it asks of the market by the prices of its job."""

from collections.abc import Mapping

from sim.checkpointing import Advice, Times
from sim.market.asked import Asked
from sim.market.availability import read_available
from sim.market.grid import Intervals
from sim.market.job_prices import begin_of
from sim.market.jobs import Moves, RentedJob
from sim.market.offers import Market, Offer
from sim.market.strategies import STRATEGIES, strategy
from sim.market.strategies.base import Strategy
from sim.market.strategies.study import Baseline
from sim.specs import Failures, InputError, Prices
from sim.specs.tariffs import tariffs_of
from sim.units import HOUR_S

ASSUMPTIONS = (
    "prices: only offers with the cluster's device are rented, in instances that hold its nodes; each runs the plan as "
    "fast as the cluster does, and whole instances are paid by the second",
    "prices: failures of devices and preemptions are both counted, each as if there were no others",
)


def asked_of(prices: Prices, market: Market, moves: Moves, gpus: int, steps: int, wall_s: float) -> Asked:
    """Return what a run of `steps` steps on `gpus` devices asks, which take `wall_s` where nothing interrupts it.

    wall_s: what saving and failures of devices take included.

    Raises:
        InputError: the file that says when spot instances are there cannot be read, or says nothing of these.
    """
    job = RentedJob(
        name="the run",
        steps=steps,
        steps_per_s={offer.device: steps / wall_s for offer in market.offers},
        gpus=gpus,
        usd_per_hour=prices.usd_per_hour,
        deadline_s=None if prices.deadline_hours is None else prices.deadline_hours * HOUR_S,
        home=prices.home,
    )
    return Asked(
        job=job,
        market=market,
        moves=moves,
        begin_s=begin_of(prices, market),
        step_s=prices.step_hours * HOUR_S,
        every_s=prices.every_hours * HOUR_S,
        available=_available(prices, market),
    )


def _available(prices: Prices, market: Market) -> Mapping[Offer, Intervals] | None:
    """Return when spot offers can be held; None where no file says so."""
    if prices.availability is None:
        return None
    return read_available(prices.availability, market, begin_of(prices, market), "prices.availability")


def chosen(prices: Prices, asked: Asked) -> Strategy:
    """Return the strategy; those of the study start with the cluster's device, in the first cloud stated.

    Raises:
        InputError: it may rent nothing of what fits.
    """
    offers, name = asked.market.offers, prices.strategy
    cloud = prices.clouds[0] if prices.clouds else offers[0].cloud
    start = {"device": offers[0].device, "cloud": cloud} if issubclass(STRATEGIES[name], Baseline) else {}
    found = strategy(name, **start)
    if not found.allowed(offers, asked.job).any():
        fit = ", ".join(offer.name for offer in offers[:10])
        raise InputError("prices.strategy", name, f"one that may rent an offer that fits: {fit}")
    return found


def moves_of(times: Times, advice: Advice, failures: Failures, prices: Prices, market: Market) -> Moves:
    """Return what moving takes of a run whose state is saved as `advice` says, at the catalog's tariffs.

    What saving takes of training is not in it, but in the time that the training takes.
    """
    return Moves(
        boot_s=prices.boot_s,
        restart_s=failures.restart_s,
        write_s=times.persist_s,
        read_s=times.reload_s,
        state_bytes=times.state_bytes,
        data_bytes=prices.data_bytes,
        wan_bytes_per_s=prices.wan_bytes_per_s,
        lost_work_s=advice.lost_work_s,
        tariffs=tariffs_of((offer.cloud for offer in market.offers), prices.egress_usd_per_gb),
    )
