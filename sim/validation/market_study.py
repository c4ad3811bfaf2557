"""The study of dynamic prices (DISPA 2020) done again, beside what was published, and with what it left out.

python -m sim.validation.market_study REFERENCE/market --out notebooks/data/market.json
    --prices notebooks/data/market-prices.csv
"""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Annotated

import numpy as np
import typer

from sim.market.grid import price_grid
from sim.market.offers import Floats, History, Market
from sim.market.price_files import write_prices
from sim.specs.files import write_json
from sim.units import DAY_S
from sim.validation.market_left_out import ASSUMPTIONS, Hourly, left_out
from sim.validation.market_published import StudyMarket, study_costs, study_prices, study_rates
from sim.validation.market_results import MarketStudy

SOURCE = (
    "prices, speeds and published costs: stanford-futuredata/training_on_a_dime (MIT), D. Narayanan et al., Analysis "
    "and Exploitation of Dynamic Pricing in the Public Cloud for ML Training, DISPA 2020"
)
SHORT_DAYS, SHORT_PLACES = 35, 2
"""Of the short table of prices: days, and places for each type of instance."""


def market_study(folder: Path) -> MarketStudy:
    """Return the study from its prices, speeds and costs in `folder`; raises InputError for other files."""
    begin = perf_counter()
    costs = study_costs(folder)
    seconds = perf_counter() - begin
    market, rates = study_prices(folder), study_rates(folder)
    rates = {cost.model: rates[cost.model] for cost in costs}
    rows = []
    for region in dict.fromkeys(cost.region for cost in costs):
        study = StudyMarket(market, region)
        hourly = Hourly.of(study, folder)
        rows += [row for model in rates for row in left_out(study, hourly, model, rates[model])]
    today = datetime.now(UTC).date().isoformat()
    return MarketStudy(costs, tuple(rows), rates, ASSUMPTIONS, SOURCE, today, seconds)


def short_prices(study: StudyMarket) -> Market:
    """Return the last weeks as a short table: prices at midnight, of each type where it is cheapest in the mean."""
    first = study.grid.begin_s + study.starts[0] * DAY_S
    offers = [offer for offer in study.market.offers if offer in study.grid.offers]
    grid = price_grid(study.market, first, SHORT_DAYS * DAY_S, DAY_S)
    prices = {offer: grid.seen[:, n] * offer.devices for n, offer in enumerate(grid.offers) if offer in offers}
    mean = {offer: float(np.mean(usd[np.isfinite(usd)])) for offer, usd in prices.items()}
    chosen = {
        offer
        for kind in {(offer.cloud, offer.instance) for offer in offers}
        for offer in sorted((o for o in offers if (o.cloud, o.instance) == kind), key=mean.__getitem__)[:SHORT_PLACES]
    }
    days: Floats = np.array([first + DAY_S * day for day in range(SHORT_DAYS)])
    known = {offer: np.isfinite(usd) for offer, usd in prices.items() if offer in chosen}
    return Market(tuple(_changed(History(offer, days[k], prices[offer][k])) for offer, k in known.items()))


def _changed(history: History) -> History:
    """Return a history without the prices that repeat the last."""
    usd: Floats = history.usd_per_hour.round(6)
    new = np.append(True, np.diff(usd) != 0)
    return History(history.offer, history.times_s[new], usd[new])


def main(
    folder: Annotated[Path, typer.Argument(help="The reference data of prices.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    prices: Annotated[Path | None, typer.Option(help="A short table of prices to write.")] = None,
) -> None:
    """Do the study of dynamic prices again."""
    if prices:
        write_prices(short_prices(StudyMarket(study_prices(folder), "us-east-1")), prices)
    write_json(out, asdict(market_study(folder)))


if __name__ == "__main__":
    typer.run(main)
