"""A run that rents, against arithmetic by hand; at one price it is the run that it was."""

from dataclasses import fields
from datetime import UTC, datetime
from math import ceil

import pytest

from sim.checkpointing import times
from sim.market.offers import History, Market
from sim.market.price_files import write_prices
from sim.run import run_of, whole_run
from sim.run.losses import Saving
from sim.specs import Around, Checkpointing, InputError, Prices, Training
from tests.market.toys import HOUR, offer
from tests.market.toys import priced as history

EAST, WEST = offer("us-east-1a", "h100", 8), offer("us-west-2a", "h100", 8)
CHEAP = {EAST: [16.0], WEST: [24.0] * 48 + [8.0]}
"""USD of an instance of eight, hour by hour: the west is cheaper from hour 48 on."""


@pytest.fixture
def prices(tmp_path):
    """Return prices in a file; more is stated by name."""

    def make(rows=CHEAP, **more):
        file = tmp_path / "prices.csv"
        write_prices(Market(tuple(history(*usd, of=one) for one, usd in rows.items())), file)
        return Prices(files=str(file), **{"boot_s": 600.0, "begin": "1970-01-01"} | more)

    return make


@pytest.fixture
def available(tmp_path):
    """Return a file that says when the east can be held, from hour to hour."""

    def make(*periods):
        rows = [",".join(datetime.fromtimestamp(h * HOUR, UTC).isoformat() for h in period) for period in periods]
        lines = ["cloud,zone,device,begin_utc,end_utc", *(f"aws,us-east-1a,h100,{row}" for row in rows)]
        (tmp_path / "up.csv").write_text("\n".join(lines) + "\n")
        return str(tmp_path / "up.csv")

    return make


def lasting(step, hours):
    return Training(steps=round(hours * HOUR / step.step_time_s))


def test_one_price_is_the_run_at_that_price(step):
    one = whole_run(step, Training(steps=1_000), prices=Prices(usd_per_gpu_hour=2.5))
    old = whole_run(step, Training(steps=1_000, usd_per_gpu_hour=2.5))
    same = [f.name for f in fields(one) if f.name != "around"]
    assert [getattr(one, name) for name in same] == [getattr(old, name) for name in same]
    assert one.rental is one.optimum is None
    with pytest.raises(InputError, match=r"usd_per_gpu_hour: got 2.5; allowed: left out beside prices"):
        whole_run(step, Training(steps=1, usd_per_gpu_hour=2.5), prices=Prices(usd_per_gpu_hour=2.5))


def test_two_offers_by_hand(step, prices):
    """The east for 48 h at 32 USD, then the west at 16 USD: a start, and a move with the state between regions."""
    training, saving = lasting(step, 200), times(step, Checkpointing())
    run = whole_run(step, training, prices=prices())
    wall_s = training.steps * step.step_time_s
    transfer_usd = saving.state_bytes * 0.02e-9
    move_s = saving.persist_s + saving.state_bytes / 1.25e8 + 600 + 300 + saving.reload_s

    def hours(alone_s):
        return (alone_s + 900 + move_s) / HOUR

    def cost(alone_s):
        return 48 * 32 + (hours(alone_s) - 48) * 16 + transfer_usd

    ends = step.profile.interval80(wall_s, step.sigma_log)
    assert run.days == pytest.approx(hours(wall_s) / 24)
    assert run.cost_usd == pytest.approx(cost(wall_s))
    assert run.days_interval == pytest.approx(tuple(hours(end) / 24 for end in ends))
    assert run.cost_usd_interval == pytest.approx(tuple(cost(end) for end in ends))
    assert run.gpu_hours == pytest.approx(16 * hours(wall_s))
    assert run.energy_kwh == pytest.approx(run.gpu_hours * run.mean_power_w_per_gpu / 1e3)
    assert run.goodput == pytest.approx(wall_s / HOUR / hours(wall_s))
    assert run.losses == {
        "moves": pytest.approx(1 - run.goodput), "preemptions": 0.0, "waiting": pytest.approx(0.0, abs=1e-12),
    }  # fmt: skip
    assert [stay.offer for stay in run.rental.path] == [EAST, WEST]
    assert (run.rental.migrations, run.rental.transfer_usd) == (1, pytest.approx(transfer_usd))
    assert 0.9 * run.cost_usd < run.optimum.usd <= run.cost_usd


def test_checkpoints_and_failures_are_in_it_too(step, prices):
    training, kept = lasting(step, 100), Checkpointing(every=50)
    alone, run = (whole_run(step, training, checkpointing=kept, prices=p) for p in (None, prices()))
    stretch = alone.days / run.days
    assert run.goodput == pytest.approx(alone.goodput * stretch)
    assert run.losses["failures"] == pytest.approx(alone.losses["failures"] * stretch)
    assert sum(run.losses.values()) + run.goodput == pytest.approx(1.0)
    assert any("both counted" in line for line in run.assumptions)
    assert not any("nobody says how state is saved" in line for line in run.assumptions)


def test_preemptions_lose_work_and_wait(step, prices, available):
    """The east can be held from 0 to 10 h and from 12 h on; the west costs too much to be worth a move."""
    kept = Checkpointing(every=50)
    saving = Saving.of(step, None, kept)
    file = available((0, 10), (12, 24 * 9))
    run = whole_run(step, lasting(step, 20), checkpointing=kept, prices=prices({EAST: [16.0]}, availability=file))
    total_s = run.days * 86_400
    assert [stay.ended for stay in run.rental.path] == ["preempted", "finished"]
    assert run.losses["waiting"] == pytest.approx(2 * HOUR / total_s)
    assert run.losses["preemptions"] == pytest.approx(saving.advice.lost_work_s / total_s)
    assert run.losses["moves"] == pytest.approx((2 * 900 + saving.times.reload_s) / total_s)
    assert sum(run.losses.values()) + run.goodput == pytest.approx(1.0)
    assert run.energy_kwh == pytest.approx(run.gpu_hours * run.mean_power_w_per_gpu / 1e3)
    assert run.gpu_hours == pytest.approx(16 * (total_s - 2 * HOUR) / HOUR)
    assert not any("never taken away" in line for line in run.assumptions)


def test_a_run_that_does_not_end_is_refused(step, prices, available):
    gone = prices({EAST: [16.0]}, availability=available((0, 10)))
    with pytest.raises(
        InputError, match=r"prices.strategy: got 'dynamic'; .* one by which the job ends: after .* % is done"
    ):
        whole_run(step, lasting(step, 20), prices=gone)


def test_a_trace_is_of_one_offer(step, prices, tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text('{"metadata": {"gap_seconds": 3600}, "data": ' + str([1] * 5 + [0] + [1] * 200) + "}")
    run = whole_run(step, lasting(step, 20), prices=prices({EAST: [16.0]}, availability=str(trace)))
    assert run.rental.preemptions == 1
    with pytest.raises(InputError, match=r"prices.availability: .* a JSON trace is of one spot offer, and 2 fit"):
        whole_run(step, lasting(step, 20), prices=prices(availability=str(trace)))


def test_strategies_of_the_study_start_with_the_clusters_device(step, prices):
    one, other = offer("us-east-1a", "h100", 16), offer("us_easta", "h100", 16, "azure")
    held = {one: [32.0] * 48 + [64.0], other: [40.0]}

    def path(**more):
        return [s.offer for s in whole_run(step, lasting(step, 100), prices=prices(held, **more)).rental.path]

    assert path(strategy="baseline") == [one]
    assert path(strategy="gpu_type", clouds=["azure", "aws"]) == [other]
    assert path(strategy="preemption") == [one, other]
    with pytest.raises(InputError, match=r"prices.strategy: got 'baseline'; .* fits: aws us-east-1a 8xh100"):
        whole_run(step, lasting(step, 2), prices=prices(strategy="baseline"))  # it takes one instance


def test_what_an_hour_is_worth_and_a_deadline(step, prices):
    stated = prices(usd_per_hour=5.0, deadline_hours=50.0)
    run = whole_run(step, lasting(step, 100), prices=stated)
    assert run.rental.objective_usd == pytest.approx(run.cost_usd + 5 * run.days * 24)
    assert run.optimum.usd <= run.rental.objective_usd
    assert (run.rental.job.deadline_s, run.optimum.hours) == (50 * HOUR, ceil(run.rental.hours))
    assert whole_run(step, lasting(step, 20), prices=stated).optimum.hours == 50


def test_clouds_without_a_tariff_take_the_stated_one(step, prices):
    abroad = offer("x1a", "h100", 8, "lambda")
    rows = {EAST: [16.0], abroad: [24.0] * 48 + [2.0]}
    stated = prices(rows, egress_usd_per_gb=0.0, home="lambda x1")
    run = run_of(step, Around(training=lasting(step, 100), prices=stated))
    state = times(step, Checkpointing()).state_bytes
    assert [stay.offer for stay in run.rental.path] == [EAST, abroad]
    assert run.rental.transfer_usd == pytest.approx(state * 0.09e-9)  # of AWS, for what leaves it
    with pytest.raises(InputError, match=r"prices.home: got 'mars'; allowed: one of aws us-east-1, lambda x1"):
        whole_run(step, lasting(step, 1), prices=prices(rows, home="mars"))


def test_a_catalogue_without_times_is_constant(step, tmp_path):
    file = tmp_path / "catalogue.csv"
    write_prices(Market((History.constant(EAST, 16.0),)), file)
    run = whole_run(step, lasting(step, 10), prices=Prices(files=str(file)))
    assert run.cost_usd == pytest.approx(32 * run.days * 24)
    assert run.rental.begin_s == 0.0
    assert any("nobody says how state is saved" in line for line in run.assumptions)
