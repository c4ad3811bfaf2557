"""Prices as the study counted them, on a market worked out by hand."""

import numpy as np
import pytest

from sim.market.grid import Grid
from sim.market.jobs import Moves, RentedJob
from sim.market.offers import History, Market, Offer
from sim.market.price_files import read_prices
from sim.market.renting import rent
from sim.market.strategies import strategy
from sim.market.study_rules import AFTER, base_days, study_grid, study_starts, worst_grid
from sim.specs.fields import InputError
from sim.units import DAY_S

inf = np.inf


def instance(name, device="v100", devices=1, cloud="aws", zone="us-east-1a"):
    region = "us-east-1" if cloud == "aws" else zone
    return Offer(cloud=cloud, region=region, zone=zone if cloud == "aws" else "", instance=name, device=device,
                 devices=devices)  # fmt: skip


def listed(offer, *prices):
    """Return the history of (day, USD) pairs; a fraction of a day is the time of day."""
    days, usd = zip(*prices, strict=True)
    return History(offer, DAY_S * np.array(days, dtype=float), np.array(usd, dtype=float))


A, B = instance("p3.2xlarge"), instance("p3.2xlarge", zone="us-east-1b")
FOUR = instance("p3.8xlarge", devices=4)
AZURE = instance("NC12s v3", devices=2, cloud="azure", zone="us_east")
MARKET = Market((
    listed(A, (0.1, 1.0), (0.5, 0.8), (0.9, 0.9), (2.2, 1.2)),
    listed(B, (0.3, 0.8), (1.2, 0.7), (2.1, 1.1)),
    listed(FOUR, (1.0, 4.0)),
    listed(AZURE, (2.0, 1.0)),
))  # fmt: skip


def columns(grid: Grid, name: str):
    """Return the first four days by offer, without what tells equal prices apart."""
    days = getattr(grid, name)[:4].round(6).T.tolist()
    return dict(zip((offer.name for offer in grid.offers), days, strict=True))


def test_the_lowest_of_a_day_is_seen_and_the_last_one_kept():
    grid = study_grid(MARKET)
    assert grid.step_s == DAY_S and grid.begin_s == 0.0 and grid.steps == 3 + AFTER
    assert columns(grid, "seen")[A.name] == [0.8, inf, 1.2, 1.2]
    assert columns(grid, "kept")[A.name] == [0.9, 0.9, 1.2, 1.2]
    assert columns(grid, "taken")[A.name] == [0.8, 0.9, 1.2, 1.2]
    assert columns(grid, "kept")[AZURE.name] == [0.0, 0.0, 0.5, 0.5]


def test_azure_is_compared_by_the_instance_unless_asked_otherwise():
    assert columns(study_grid(MARKET), "seen")[AZURE.name][2] == 1.0
    assert columns(study_grid(MARKET), "taken")[AZURE.name][2] == 0.5
    assert columns(study_grid(MARKET, per_device=True), "seen")[AZURE.name][2] == 0.5
    assert columns(study_grid(MARKET), "seen")[FOUR.name][1] == 1.0


def test_of_equal_prices_the_newest_is_first_then_the_order_of_types():
    grid = study_grid(MARKET)
    first = {offer: grid.seen[0, n] for n, offer in enumerate(grid.offers)}
    assert first[A] < first[B]  # at noon, not at 0.3
    level = Market((listed(A, (0.0, 1.0)), listed(FOUR, (0.9, 4.0))))
    assert np.argmin(study_grid(level).seen[0]) == 0


def test_of_types_with_the_same_devices_another_cloud_has_one():
    twin = instance("NC12r v3", devices=2, cloud="azure", zone="us_east")
    both = MARKET + Market((listed(twin, (0.0, 0.1)),))
    assert [offer.instance for offer in study_grid(both).offers if offer.cloud == "azure"] == ["NC12s v3"]


def test_whoever_stays_pays_the_last_price_of_each_day():
    job = RentedJob(steps=2.5 * DAY_S, steps_per_s={"v100": 1.0}, whole=False)
    found = rent(job, study_grid(MARKET), strategy("baseline"), Moves.free())
    assert found.path[0].offer == A and found.finished
    assert found.cost_usd == pytest.approx(24 * 0.8 + 24 * 0.9 + 12 * 1.2)


def test_the_worst_zone_was_listed_first_on_the_day_and_begins_at_the_end_of_the_table():
    grid = worst_grid(MARKET)
    assert np.isfinite(grid.seen[:4]).tolist() == [[True, False], [False, True], [False, True], [False, True]]
    assert set(grid.taken.ravel()) == {1.1}  # the first of the last day
    job = RentedJob(steps=2 * DAY_S, steps_per_s={"v100": 1.0})
    assert rent(job, grid, strategy("baseline_worst"), Moves.free()).cost_usd == pytest.approx(24 * (1.1 + 0.9))


def test_of_equal_times_the_last_zone_is_the_worst():
    level = Market((listed(A, (0.5, 1.0)), listed(B, (0.5, 2.0))))
    assert worst_grid(level).seen[0].tolist() == [inf, 2.0]


def test_starts_are_days_with_a_price_of_the_base_type():
    days = [n for n in range(50) if n != 20]
    market = Market((listed(A, *((day, 1.0) for day in days)), listed(FOUR, (20, 4.0))))
    assert base_days(market).tolist() == days
    assert study_starts(market) == tuple(days[-35:-5])


def test_without_the_base_type_there_are_no_days():
    for market in (Market((listed(FOUR, (0, 1.0)),)), Market((History.constant(A, 1.0),))):
        with pytest.raises(InputError, match=r"offers of p3\.2xlarge of aws with dated prices"):
            study_grid(market)


def test_a_price_without_a_date_is_listed_on_no_day():
    always = MARKET + Market((History.constant(instance("p2.xlarge", "k80"), 0.1),))
    assert columns(study_grid(always), "seen")["aws us-east-1a p2.xlarge"] == [inf] * 4


def test_prices_that_repeat_stay_where_asked(tmp_path):
    path = tmp_path / "prices.csv"
    rows = [f"us-east-1,us-east-1a,p3.2xlarge,2020-03-0{day}T00:00:00Z,{usd}" for day, usd in ((1, 1), (2, 1), (3, 2))]
    header = "region,availability_zone,instance_type,timestamp_utc,spot_price_usd_per_hour"
    path.write_text("\n".join([header, *rows]) + "\n")
    assert [len(read_prices(path, repeats=kept).histories[0].times_s) for kept in (False, True)] == [2, 3]
