"""What the study of dynamic prices left out, added to its costs one thing after the other."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from sim.market.availability import drawn
from sim.market.grid import Grid, Intervals, price_grid
from sim.market.jobs import Moves, RentedJob
from sim.market.lifetimes import read_lifetimes
from sim.market.offers import Offer
from sim.market.optimum import optimum
from sim.market.renting import rent
from sim.market.results import Rental
from sim.market.strategies import strategy
from sim.market.study_rules import study_grid
from sim.specs.catalog import dataset
from sim.units import DAY_S, HOUR_S
from sim.validation.checkfreq import OVERHEAD_PERCENT
from sim.validation.market_published import Rates, StudyMarket, study_job
from sim.validation.market_results import BOUND, WEIGHED, LeftOut

STARTED = ("multi_cloud", "preemption")
DAYS = 4.0
AFTER_S = 60 * DAY_S
"""The last known prices hold so long: enough for the slowest job to end."""
LIFETIMES = "instance_lifetimes_2020-03.csv"
LOGGED = {"azure": "aws", "p100": "k80"}
"""Whose lifetimes stand in where none were logged: assumptions."""
DOWN_S = HOUR_S
"""Assumption: so long, in the mean, an offer that was taken away cannot be had."""
CHECKPOINT_S = 1_800.0
STATE_BYTES = 12.0
"""Assumption, of a parameter: fp32 weights and two optimizer states."""
SEED = 0


class Network(NamedTuple):
    """Parameters, and bytes of the data it trains on."""

    parameters: float
    data_bytes: float


NETWORKS = {
    "ResNet-50": Network(25.6e6, dataset("imagenet-1k").size_bytes),
    "ResNet-18": Network(11.2e6, 60_000 * 3_073),  # CIFAR-10: images of 32 x 32 x 3 bytes, and a label
    "Transformer": Network(60e6, 20e6),
    "LM": Network(14e6, 13e6),
    "Recommendation": Network(10e6, 0.5e9),
    "CycleGAN": Network(28e6, 0.3e9),
    "A3C": Network(0.6e6, 0.0),  # plays, needs no data
}
"""Data by Gavel's table of models (arXiv 2008.09213): ImageNet, CIFAR-10, Multi30k, Wikitext-2, ML-20M, monet2photo,
Pong; parameters, and bytes of all but the first two, are assumptions."""
ASSUMPTIONS = (
    "starting takes 120 s until an instance boots and 300 s until training runs",
    "state is 12 bytes a parameter; all of it and the data are transferred at every change of region",
    f"saving every {CHECKPOINT_S / 60:g} minutes takes {OVERHEAD_PERCENT:g} % of the time (CheckFreq's budget); who is "
    "preempted loses half an interval",
    "instances live as those logged in March 2020 (exponential, by device): Azure's as AWS's, P100s as K80s",
    f"an offer that was taken away is back after {DOWN_S / HOUR_S:g} hour in the mean",
)


@dataclass(frozen=True)
class Hourly:
    """Prices hour by hour as they change, from the first start on: always to be had, and taken away by chance."""

    sure: Grid
    taken_away: Grid

    @classmethod
    def of(cls, study: StudyMarket, folder: Path) -> "Hourly":
        """Return the prices of a region."""
        begin = study.grid.begin_s + study.starts[0] * DAY_S
        seconds = (study.starts[-1] - study.starts[0]) * DAY_S + AFTER_S
        available = _available(study.market.offers, folder, begin, begin + seconds)
        return cls(
            price_grid(study.market, begin, seconds), price_grid(study.market, begin, seconds, HOUR_S, available)
        )


def _available(offers: tuple[Offer, ...], folder: Path, begin_s: float, end_s: float) -> dict[Offer, Intervals]:
    """Return when offers can be held, by how long instances lived."""
    lived = {(found.cloud, found.device): found.mean_s for found in read_lifetimes(folder / LIFETIMES)}
    found: dict[Offer, Intervals] = {}
    for (cloud, device), mean_s in lived.items():
        alike = [offer for offer in offers if _logged(offer) == (cloud, device)]
        if alike:
            found |= drawn(alike, mean_s, DOWN_S, begin_s, end_s, SEED + len(found))
    return found


def _logged(offer: Offer) -> tuple[str, str]:
    return LOGGED.get(offer.cloud, offer.cloud), LOGGED.get(offer.device, offer.device)


@dataclass(frozen=True)
class _Case:
    """A way to count: the prices, what moving costs, whether instances are paid whole, how often it chooses."""

    added: str
    grid: Grid
    moves: Moves
    every_s: float | None = None
    whole: bool = False


def left_out(study: StudyMarket, hourly: Hourly, model: str, rates: Rates) -> Iterator[LeftOut]:
    """Yield what a model costs with one thing more each time, for both strategies, then weighed, then the bound."""
    network = NETWORKS[model.split(" (", maxsplit=1)[0]]
    *before, last = _cases(study, hourly, network)
    job = study_job(rates, DAYS, whole=True)
    longest = [0.0] * len(study.starts)
    for name, cases in (*((name, [*before, last]) for name in STARTED), (WEIGHED, _weighed(last))):
        for case in cases:
            held = replace(job, whole=case.whole)
            rentals = [rent(held, case.grid, strategy(name), case.moves, case.every_s, n) for n in _starts(study, case)]
            yield _mean(study.region, model, name, case.added, rentals, [rental.cost_usd for rental in rentals])
            if case.whole:
                longest = [max(h, rental.hours) for h, rental in zip(longest, rentals, strict=True)]
    yield _bound(study.region, model, job, last, list(zip(_starts(study, last), longest, strict=True)))


def _cases(study: StudyMarket, hourly: Hourly, network: Network) -> Iterator[_Case]:
    free, started = Moves.free(), Moves()
    moved = replace(started, state_bytes=STATE_BYTES * network.parameters, data_bytes=network.data_bytes)
    saved = replace(moved, overhead=OVERHEAD_PERCENT / 100, lost_work_s=CHECKPOINT_S / 2)
    yield _Case("as published", study.grid, free)
    yield _Case("Azure compared by the device", study_grid(study.market, per_device=True), free)
    yield _Case("prices by the hour", hourly.sure, free, DAY_S)
    yield _Case("boot and restart", hourly.sure, started, DAY_S)
    yield _Case("transfers", hourly.sure, moved, DAY_S)
    yield _Case("saving and preemption", hourly.taken_away, saved, DAY_S)
    yield _Case("whole instances", hourly.taken_away, saved, DAY_S, whole=True)


def _weighed(last: _Case) -> list[_Case]:
    return [replace(last, added="moves weighed"), replace(last, added="chosen every hour", every_s=None)]


def _starts(study: StudyMarket, case: _Case) -> list[int]:
    """Return the steps of a case's grid at which jobs begin: days, or the hours they begin with."""
    first = round((case.grid.begin_s - study.grid.begin_s) / DAY_S)
    return [round((start - first) * DAY_S / case.grid.step_s) for start in study.starts]


def _bound(region: str, model: str, job: RentedJob, last: _Case, starts: list[tuple[int, float]]) -> LeftOut:
    """Return what the job costs at least where it may take as long as the slowest strategy does."""
    found = [optimum(job, last.grid, last.moves, start, hours) for start, hours in starts]
    ways = [best.hindsight for best in found if best.hindsight]
    return _mean(region, model, BOUND, "hindsight", ways, [best.usd for best in found])


def _mean(region: str, model: str, name: str, added: str, rentals: list[Rental], usd: list[float]) -> LeftOut:
    return LeftOut(
        region=region,
        model=model,
        strategy=name,
        added=added,
        usd=fmean(usd),
        hours=fmean(rental.hours for rental in rentals),
        migrations=fmean(rental.migrations for rental in rentals),
        preemptions=fmean(rental.preemptions for rental in rentals),
    )
