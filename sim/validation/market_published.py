"""The published costs of the study of dynamic prices (DISPA 2020), by its rules."""

from pathlib import Path
from statistics import fmean
from typing import Annotated

from sim.market.begins import rent_from
from sim.market.jobs import Moves
from sim.market.offers import Market
from sim.market.price_files import read_prices
from sim.market.rates import read_rates
from sim.market.results import Rental
from sim.market.strategies import strategy
from sim.market.strategies.study import CLOUD, BaselineWorst, PreemptionDataMovement
from sim.market.study_rules import study_grid, study_starts, worst_grid
from sim.specs.csv_rows import read_specs
from sim.specs.fields import InputError, real, spec
from sim.validation.market_results import Rates, StudyCost, Usd, study_job

PRICES = ("aws_gpu_spot_2019-12_2020-03.csv.gz", "azure_gpu_spot_2020-02_2020-03.csv")
TRANSFERS_USD = 9.0
"""What the study adds for moving data: 100 GB at AWS's tariff."""


@spec
class PublishedCost:
    """A row of the published table: what a job of so many days of a V100 costs over 30 starts."""

    aws_region: str
    v100_days_of_work: Annotated[float, real(0.01, 1e4, "days")]
    model: str
    strategy: str
    mean_cost_usd: Usd
    min_cost_usd: Usd
    max_cost_usd: Usd


class StudyMarket:
    """A region of AWS beside all of Azure, by the study's rules."""

    def __init__(self, market: Market, region: str) -> None:
        self.region = region
        self.market = market.only(clouds=[CLOUD], regions=[region]) + market.only(clouds=["azure"])
        self.grid, self.worst = study_grid(self.market), worst_grid(self.market)
        self.starts = study_starts(self.market)

    def rentals(self, rates: Rates, name: str, days: float) -> tuple[Rental, ...]:
        """Return what becomes of a job of so many days of a V100 from each start on."""
        usd = TRANSFERS_USD if name == PreemptionDataMovement.name else 0.0
        moves = Moves(boot_s=0.0, restart_s=0.0, usd=usd)
        grid = self.worst if name == BaselineWorst.name else self.grid
        return rent_from(study_job("", rates, days, whole=False), grid, strategy(name), moves, None, self.starts)


def study_costs(folder: Path) -> tuple[StudyCost, ...]:
    """Return every published cost beside ours; raises InputError for other files than the study's."""
    market, rates = study_prices(folder), study_rates(folder)
    published = list(read_specs(folder / "published_single_job_costs.csv", PublishedCost))
    if unknown := [row for row in published if row.model not in rates]:
        raise InputError("model", unknown[0].model, f"one of {', '.join(rates)}")
    regions = {name: StudyMarket(market, name) for name in {row.aws_region: None for row in published}}
    return tuple(_cost(row, regions[row.aws_region], rates[row.model]) for row in published)


def _cost(row: PublishedCost, market: StudyMarket, rates: Rates) -> StudyCost:
    usd = [rental.cost_usd for rental in market.rentals(rates, row.strategy, row.v100_days_of_work)]
    return StudyCost(
        region=market.region,
        model=row.model,
        strategy=row.strategy,
        mean_usd=fmean(usd),
        least_usd=min(usd),
        most_usd=max(usd),
        published_mean_usd=row.mean_cost_usd,
        published_least_usd=row.min_cost_usd,
        published_most_usd=row.max_cost_usd,
    )


def study_prices(folder: Path) -> Market:
    """Return the study's prices, listed ones that repeat the last too."""
    return read_prices(*(folder / name for name in PRICES), repeats=True)


def study_rates(folder: Path) -> dict[str, dict[str, float]]:
    """Return steps/s by model and device."""
    known = read_rates(folder / "oracle_isolated_throughputs.csv")
    return {name: dict(rates) for (name, _), rates in known.items()}
