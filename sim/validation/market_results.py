"""What `sim.validation.market_study` has found, for tables and figures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import Field

from sim.market.jobs import RentedJob
from sim.market.strategies.study import DEVICE
from sim.specs.fields import InputError, read, real
from sim.specs.files import load_mapping
from sim.units import DAY_S, percent

BASELINE = "baseline"
WEIGHED, BOUND = "dynamic", "optimum"

Usd = Annotated[float, real(1e-6, 1e9, "USD")]
Rates = Mapping[str, float]
"""Steps/s by device."""
Reductions = Mapping[str, Mapping[str, float]]
"""By strategy and model."""


@dataclass(frozen=True)
class StudyCost:
    """What a model costs by a strategy in a region of AWS beside Azure: USD over 30 starts, ours and as published."""

    region: str
    model: str
    strategy: str
    mean_usd: Usd
    least_usd: Usd
    most_usd: Usd
    published_mean_usd: Usd
    published_least_usd: Usd
    published_most_usd: Usd

    @property
    def error_percent(self) -> float:
        """Of the mean."""
        return 100 * (self.mean_usd / self.published_mean_usd - 1)

    @property
    def ends_error_percent(self) -> float:
        """Of the least or the most, whichever is further off."""
        ratios = self.least_usd / self.published_least_usd, self.most_usd / self.published_most_usd
        return 100 * max((ratio - 1 for ratio in ratios), key=abs)


@dataclass(frozen=True)
class LeftOut:
    """Means over 30 starts when one thing more is `added` that the study leaves out."""

    region: str
    model: str
    strategy: str
    added: str
    usd: Usd
    hours: float
    migrations: float
    preemptions: float


Costs = Annotated[tuple[StudyCost, ...], Field(min_length=1, description="one cost or more")]


@dataclass(frozen=True)
class MarketStudy:
    """The published study of dynamic prices done again, and with what it left out.

    `steps_per_s`: by model and device, as the study measured them; `seconds`: what its own part took.
    """

    costs: Costs
    left_out: tuple[LeftOut, ...]
    steps_per_s: dict[str, dict[str, float]]
    assumptions: tuple[str, ...]
    source: str
    date: str
    seconds: float

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions of AWS."""
        return tuple(dict.fromkeys(cost.region for cost in self.costs))

    @property
    def models(self) -> tuple[str, ...]:
        """All models."""
        return tuple(dict.fromkeys(cost.model for cost in self.costs))

    def job(self, model: str, v100_days: float = 4.0) -> RentedJob:
        """Return what a V100 does of a model in so many days, as a job that pays whole instances."""
        if model not in self.steps_per_s:
            raise InputError("model", model, f"one of {', '.join(self.steps_per_s)}")
        return study_job(model, self.steps_per_s[model], v100_days, whole=True)

    def reductions(self, region: str, published: bool = False) -> Reductions:
        """Return how many times less than the baseline each model costs in the mean, ours or as published."""
        held = {
            (cost.strategy, cost.model): cost.published_mean_usd if published else cost.mean_usd
            for cost in self.costs
            if cost.region == region
        }
        if not held:
            raise InputError("region", region, f"one of {', '.join(self.regions)}")
        found: dict[str, dict[str, float]] = {}
        for (strategy, model), usd in held.items():
            found.setdefault(strategy, {})[model] = held[BASELINE, model] / usd
        return found

    def steps(self, region: str, model: str, strategy: str = "preemption") -> tuple[LeftOut, ...]:
        """Return what a strategy costs as more is added, then the one that weighs moves, and the bound."""
        rows = [row for row in self.left_out if (row.region, row.model) == (region, model)]
        found = tuple(row for name in (strategy, WEIGHED, BOUND) for row in rows if row.strategy == name)
        if not any(row.strategy == strategy for row in found):
            known = sorted({row.strategy for row in rows})
            allowed = f"one of {', '.join(known)}" if known else "a region and model whose rows are in the study"
            raise InputError("region, model, strategy", (region, model, strategy), allowed)
        return found

    def lines(self) -> Iterator[str]:
        """Yield how near the published costs are met, and what they leave out."""
        off = max(abs(cost.error_percent) for cost in self.costs)
        widest = max(abs(cost.ends_error_percent) for cost in self.costs)
        yield (
            f"{len(self.costs)} published costs: means within {off:.2f} %, least and most of 30 starts within "
            f"{widest:.2f} %."
        )
        for strategy in dict.fromkeys(row.strategy for row in self.left_out):
            if strategy in (WEIGHED, BOUND):
                continue
            every = [self.steps(*place, strategy) for place in self._places]
            more = fmean([row.usd for row in rows if row.strategy == strategy][-1] / rows[0].usd for rows in every) - 1
            yield f"With all that was left out {strategy} costs {percent(more)} more in the mean."
        if not self.left_out:
            return
        ends = [self.steps(*place)[-2:] for place in self._places]
        above = fmean(weighed.usd / bound.usd for weighed, bound in ends) - 1
        yield f"{WEIGHED.capitalize()}, which weighs moves, is {percent(above)} above the bound in the mean."

    @property
    def _places(self) -> tuple[tuple[str, str], ...]:
        return tuple(dict.fromkeys((row.region, row.model) for row in self.left_out))


def study_job(name: str, rates: Rates, v100_days: float, whole: bool) -> RentedJob:
    """Return what a V100 does in so many days, as a job on one device."""
    return RentedJob(name=name, steps=v100_days * DAY_S * rates[DEVICE], steps_per_s=dict(rates), whole=whole)


def read_market_study(path: str | Path) -> MarketStudy:
    """Return what was written; raises InputError for another file."""
    return read(MarketStudy, load_mapping(Path(path)), str(path))
