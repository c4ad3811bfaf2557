"""The published study of dynamic prices: all its costs, and what it left out."""

import csv
from dataclasses import replace

import pytest

from sim.market.price_files import read_prices
from sim.specs.fields import InputError
from sim.validation import market_study as module
from sim.validation.market_left_out import NETWORKS, STARTED, Hourly, left_out
from sim.validation.market_published import StudyMarket, study_costs, study_prices, study_rates
from sim.validation.market_results import BOUND, WEIGHED, read_market_study
from tests.oracle import ROOT, reference

STORED = ROOT / "notebooks" / "data" / "market.json"
PRICES = ROOT / "notebooks" / "data" / "market-prices.csv"


@pytest.fixture(scope="module")
def folder():
    return reference("market")


@pytest.fixture(scope="module")
def costs(folder):
    return study_costs(folder)


@pytest.fixture(scope="module")
def west(folder):
    return StudyMarket(study_prices(folder), "us-west-2")


@pytest.mark.slow
def test_every_published_cost_is_met(costs):
    assert len(costs) == 132
    assert max(abs(cost.error_percent) for cost in costs) < 0.5
    assert max(abs(cost.ends_error_percent) for cost in costs) < 0.5


def test_what_is_stored_is_what_comes_out(costs):
    assert [replace(c, mean_usd=0, least_usd=0, most_usd=0) for c in read_market_study(STORED).costs] == [
        replace(c, mean_usd=0, least_usd=0, most_usd=0) for c in costs
    ]
    for stored, found in zip(read_market_study(STORED).costs, costs, strict=True):
        assert stored.mean_usd == pytest.approx(found.mean_usd)


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("A3C", (1, 1.32, 1.71, 3.10, 3.53)),
        ("Transformer (batch size 256)", (1, 1, 1.11, 2.36, 3.21)),
        ("ResNet-50 (batch size 128)", (1, 1, 1.08, 1.49, 1.53)),
    ],
)
def test_reductions_are_those_of_the_paper(model, published):
    ours = read_market_study(STORED).reductions("us-east-1")
    names = ("baseline", "gpu_type", "packed", "multi_cloud", "preemption")
    assert [ours[name][model] for name in names] == pytest.approx(published, abs=0.006)


def test_transfers_of_the_study_are_nine_dollars(folder, west):
    rates = study_rates(folder)["A3C"]
    moved, plain = (west.rentals(rates, name, 4.0) for name in ("preemption_data_movement", "preemption"))
    assert [a.cost_usd - b.cost_usd for a, b in zip(moved, plain, strict=True)] == pytest.approx([9.0] * 30)


def test_what_was_left_out_is_added_step_by_step(folder):
    west = StudyMarket(study_prices(folder), "us-west-2")
    west.starts = west.starts[::4]
    name = "ResNet-50 (batch size 128)"
    rows = list(left_out(west, Hourly.of(west, folder), name, study_rates(folder)[name]))
    named = {(row.strategy, row.added): row for row in rows}
    start = named["preemption", "as published"]
    plain = [rental.cost_usd for rental in west.rentals(study_rates(folder)[name], "preemption", 4.0)]
    assert start.usd == pytest.approx(sum(plain) / len(plain))
    assert start.preemptions == 0 and named["preemption", "saving and preemption"].hours > start.hours
    for before, after in (("prices by the hour", "boot and restart"), ("boot and restart", "transfers")):
        assert named["preemption", after].usd > named["preemption", before].usd
    last = [row.usd for row in rows if row.strategy in (*STARTED, WEIGHED)
            and row.added in ("whole instances", "moves weighed", "chosen every hour")]  # fmt: skip
    assert len(last) == 4 and min(last) >= rows[-1].usd
    assert rows[-1].strategy == BOUND


def test_the_stored_bound_is_never_above_a_strategy():
    study = read_market_study(STORED)
    assert set(study.models) == set(study.steps_per_s)
    assert {model.split(" (")[0] for model in study.models} == set(NETWORKS)
    for region in study.regions:
        for model in study.models:
            for name in STARTED:
                *_, whole, weighed, hourly, bound = study.steps(region, model, name)
                assert bound.strategy == BOUND and bound.usd <= min(whole.usd, weighed.usd, hourly.usd)


def test_lines_say_how_near_and_what_is_missing():
    near, *more, last = read_market_study(STORED).lines()
    assert near.startswith("132 published costs: means within 0.08 %")
    assert len(more) == len(STARTED) and "bound" in last


def test_what_is_not_there_is_refused(tmp_path):
    study = read_market_study(STORED)
    with pytest.raises(InputError, match=r"region: got 'mars'; allowed: one of us-east-1, us-west-2"):
        study.reductions("mars")
    with pytest.raises(InputError, match="region, model, strategy"):
        study.steps("us-east-1", "A3C", "packed")
    with pytest.raises(InputError, match="model: got 'VGG'"):
        study.job("VGG")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match="costs"):
        read_market_study(tmp_path / "x.json")


def test_a_job_is_so_many_days_of_a_v100():
    job = read_market_study(STORED).job("A3C", 2.0)
    assert job.steps / job.steps_per_s["v100"] == 2 * 86_400 and job.whole


def test_the_short_table_is_the_reference_at_midnight(folder):
    stored = read_prices(PRICES)
    assert PRICES.stat().st_size < 40_000 and {offer.cloud for offer in stored.offers} == {"aws", "azure"}
    full = {history.offer: history for history in study_prices(folder).histories}
    for history in stored.histories:
        known = full[history.offer]
        at = known.times_s.searchsorted(history.times_s, side="right") - 1
        assert history.usd_per_hour == pytest.approx(known.usd_per_hour[at])


@pytest.mark.slow
def test_it_writes_both_files(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "left_out", lambda *_: iter(()))
    module.main(folder, tmp_path / "out.json", tmp_path / "prices.csv")
    assert (tmp_path / "prices.csv").read_text() == PRICES.read_text()
    found = read_market_study(tmp_path / "out.json")
    with (folder / "published_single_job_costs.csv").open() as file:
        assert [cost.published_mean_usd for cost in found.costs] == [
            float(row["mean_cost_usd"]) for row in csv.DictReader(file)
        ]
    assert found.seconds < 60 and "DISPA 2020" in found.source
