"""The study of dynamic prices (DISPA 2020) done again, beside what was published, and with what it left out.

python -m sim.validation.market_study REFERENCE/market --out notebooks/data/market.json
"""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from sim.specs.files import write_atomically
from sim.validation.market_left_out import ASSUMPTIONS, Hourly, left_out
from sim.validation.market_published import StudyMarket, study_costs, study_prices, study_rates
from sim.validation.market_results import MarketStudy

SOURCE = "published: stanford-futuredata/training_on_a_dime (MIT), notebooks/single_job_cost_analysis.ipynb"


def market_study(folder: Path) -> MarketStudy:
    """Return the study from its prices, speeds and costs in `folder`; raises InputError for other files."""
    begin = perf_counter()
    costs = study_costs(folder)
    seconds = perf_counter() - begin
    market, rates = study_prices(folder), study_rates(folder)
    rows = []
    for region in dict.fromkeys(cost.region for cost in costs):
        study = StudyMarket(market, region)
        hourly = Hourly.of(study, folder)
        for model in dict.fromkeys(cost.model for cost in costs):
            rows += left_out(study, hourly, model, rates[model])
    return MarketStudy(costs, tuple(rows), ASSUMPTIONS, SOURCE, datetime.now(UTC).date().isoformat(), seconds)


def main(
    folder: Annotated[Path, typer.Argument(help="The reference data of prices.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
) -> None:
    """Do the study of dynamic prices again."""
    write_atomically(out, json.dumps(asdict(market_study(folder)), indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
