"""A year of hourly prices of 200 offers: read, rented by every strategy, and the least it could have cost."""

from time import perf_counter

import numpy as np

from sim.market import STRATEGIES, History, Market, Moves, Offer, RentedJob, optimum, price_grid, rent, strategy
from sim.market.price_files import read_prices, write_prices
from tests.benchmarks.table import Speed
from tests.market.toys import TARIFFS

HOURS, OFFERS, MOST_S = 8_760, 200, 5.0
SPEED = {"v100": 10.0, "k80": 1.7, "p100": 4.0}


def a_year() -> Market:
    """Return prices that wander hour by hour in ten regions of two clouds."""
    rng, histories = np.random.default_rng(0), []
    for n in range(OFFERS):
        device = ("v100", "k80", "p100")[n % 3]
        offer = Offer(
            cloud=("aws", "azure")[n % 2], region=f"r{n % 10}", zone=f"z{n}", instance="i", device=device,
            devices=(1, 4, 8)[n % 3], billing="on-demand" if n % 7 == 0 else "spot",
        )  # fmt: skip
        price = 0.2 * SPEED[device] * offer.devices * np.exp(0.015 * np.cumsum(rng.normal(size=HOURS)))
        histories.append(History(offer, 3_600.0 * np.arange(HOURS), price))
    return Market(tuple(histories))


def test_a_year_of_hourly_prices(benchmark, speeds):
    market = a_year()
    job = RentedJob(steps=86_400 * 30 * 10.0, steps_per_s=SPEED, whole=False, deadline_s=86_400 * 60.0)
    moves = Moves(state_bytes=5e9, data_bytes=1e11, write_s=60.0, read_s=60.0, lost_work_s=900.0, tariffs=TARIFFS)
    optimum(job, price_grid(market, 0.0, 86_400 * 300), moves)  # compiles

    def whole():
        grid = price_grid(market, 0.0, HOURS * 3_600.0)
        rentals = {name: rent(job, grid, strategy(name), moves, 3_600.0) for name in STRATEGIES}
        return rentals, optimum(job, grid, moves)

    begin = perf_counter()
    rentals, bound = benchmark.pedantic(whole, rounds=1)
    seconds = perf_counter() - begin
    speeds["market: a year of hourly prices of 200 offers, 9 strategies and the optimum"] = Speed(seconds, "s", "5 s")
    assert seconds < MOST_S
    assert all(bound.usd <= rental.objective_usd for rental in rentals.values())


def test_a_year_is_read(benchmark, speeds, tmp_path):
    file = tmp_path / "prices.csv.gz"
    market = a_year()
    write_prices(market, file)
    begin = perf_counter()
    found = benchmark.pedantic(read_prices, (file,), rounds=1)
    speeds["market: 1.75 million prices read"] = Speed(perf_counter() - begin, "s", "seconds")
    assert len(found.offers) == OFFERS
