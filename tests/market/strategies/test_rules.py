import numpy as np
import pytest

from sim.market.jobs import Moves
from sim.market.offers import Market
from sim.market.renting import rent
from sim.market.strategies import strategy
from sim.specs.fields import InputError
from tests.market.toys import HOUR, TARIFFS, a_job, hours, offer, priced

FREE = Moves.free()
ZONES = {
    "cheap v100": (offer("us-east-1a"), 3.0),
    "dear v100": (offer("us-east-1b"), 4.0),
    "k80": (offer("us-east-1a", "k80"), 0.5),
    "four v100s": (offer("us-east-1a", devices=4), 7.0),
    "azure k80": (offer("us_eastx", "k80", cloud="azure"), 0.3),
}


def flat(count=40):
    return hours(Market(tuple(priced(*[price] * count, of=one) for one, price in ZONES.values())), count)


@pytest.mark.parametrize(
    ("name", "rents"),
    [
        ("baseline_worst", "dear v100"), ("baseline", "cheap v100"), ("gpu_type", "k80"), ("packed", "four v100s"),
        ("multi_cloud", "azure k80"), ("preemption", "azure k80"), ("dynamic", "azure k80"),
    ],
)  # fmt: skip
def test_each_liberty_finds_something_cheaper(name, rents):
    found = rent(a_job(whole=False), flat(), strategy(name), FREE)
    assert [stay.offer for stay in found.path] == [ZONES[rents][0]]


def test_baselines_rent_the_smallest_instances_of_each_device():
    """The smallest that has A100s has eight of them, whatever else is offered."""
    eight, sixteen = (offer("us-east-1a", "a100", devices) for devices in (8, 16))
    market = Market((priced(8.0, of=eight), priced(1.0, of=sixteen), priced(3.0), priced(0.9, of=offer(device="k80"))))
    a100s = {"v100": 1.0, "k80": 0.25, "a100": 9.0}
    baseline = strategy("baseline", device="a100")
    found = rent(a_job(steps_per_s=a100s), hours(market, 9), baseline, FREE)
    assert found.path[0].offer == eight
    assert rent(a_job(steps_per_s=a100s), hours(market, 9), strategy("gpu_type"), FREE).path[0].offer == eight
    with pytest.raises(InputError, match="a device that baseline may rent: none of what is offered"):
        rent(a_job(steps_per_s=a100s), hours(Market((priced(8.0, of=eight),)), 9), strategy("baseline"), FREE)


def test_the_worth_of_an_hour_asks_for_faster_devices():
    fast = rent(a_job(whole=False, usd_per_hour=100.0), flat(), strategy("dynamic"), FREE)
    slow = rent(a_job(whole=False), flat(), strategy("dynamic"), FREE)
    assert (fast.hours, slow.hours) == (4.0, 16.0)
    assert fast.cost_usd > slow.cost_usd
    assert fast.objective_usd == fast.cost_usd + 400


@pytest.mark.parametrize(("saved", "moves"), [(0.02, 0), (2.0, 1)])
def test_dynamic_moves_only_where_that_pays(saved, moves):
    a, b = offer("us-east-1a"), offer("us-west-2a")
    grid = hours(Market((priced(*[1.0] * 2, *[1.0 + saved] * 8, of=a), priced(*[1.001] * 10, of=b))), 10)
    costs = Moves(data_bytes=1e10, tariffs=TARIFFS)
    assert rent(a_job(steps=8 * HOUR), grid, strategy("dynamic"), costs).migrations == moves
    assert rent(a_job(steps=8 * HOUR), grid, strategy("preemption"), costs).migrations == 1


def deadline(limit_h, up, price=0.3):
    """Return four hours with a deadline: a spot offer that comes and goes, and one on demand for 1 USD."""
    spot, sure = offer("us-east-1a"), offer("us-east-1b", billing="on-demand")
    market = Market((priced(price, of=spot), priced(1.0, of=sure)))
    grid = hours(market, 30, {spot: HOUR * np.array(up, dtype=float).reshape(-1, 2)})
    return rent(a_job(deadline_s=limit_h * HOUR), grid, strategy("uniform_progress"), FREE)


def test_uniform_progress_keeps_to_cheap_offers_while_it_is_ahead():
    found = deadline(10, [[0, 30]])
    assert (found.cost_usd, found.hours) == (pytest.approx(1.2), 4.0)


def test_uniform_progress_waits_only_while_it_is_ahead():
    found = deadline(10, [[0, 2], [9, 30]])
    assert found.finished
    assert found.hours <= 10
    assert found.parts_s["waiting"] > 0
    assert found.path[0].usd == pytest.approx(0.6)
    assert {stay.offer.billing for stay in found.path[1:]} == {"on-demand"}


def test_uniform_progress_ends_in_time_without_spot():
    for limit in (5, 7, 12):
        found = deadline(limit, [])
        assert found.finished
        assert found.hours <= limit


@pytest.mark.parametrize(("every_h", "work_h", "limit_h", "spot", "up"), [
    (24, 40, 48, "k80", [0, 9]), (6, 40, 48, "k80", [0, 300]), (1, 4, 6.4, "v100", [5, 5.05]),
])  # fmt: skip
def test_uniform_progress_ends_in_time(every_h, work_h, limit_h, spot, up):
    """Beside an offer on demand there is a spot K80, four times as slow, or a V100 that goes before the job starts."""
    sometimes, sure = offer("us-east-1a", spot), offer("us-east-1b", billing="on-demand")
    market = Market((priced(0.1, of=sometimes), priced(3.0, of=sure)))
    grid = hours(market, 300, {sometimes: HOUR * np.array([up], dtype=float)})
    job, moves = a_job(steps=work_h * HOUR, deadline_s=limit_h * HOUR), Moves(boot_s=600.0, restart_s=300.0)
    found = rent(job, grid, strategy("uniform_progress"), moves, every_h * HOUR)
    assert found.finished
    assert found.hours <= limit_h


@pytest.mark.parametrize(("limit_h", "gone_h", "moves"), [
    (9.0, 2.4, {"boot_s": 2.5 * HOUR}), (5.35, 0.4, {"boot_s": 900.0, "data_bytes": 1e11}),
])  # fmt: skip
def test_uniform_progress_counts_long_starts_and_the_way_back(limit_h, gone_h, moves):
    """A spot offer in another region goes away while the job starts there, before anybody chooses again."""
    away, sure = offer("us-west-2a"), offer("us-east-1b", billing="on-demand")
    market = Market((priced(0.1, of=away), priced(3.0, of=sure)))
    grid = hours(market, 30, {away: HOUR * np.array([[0.0, gone_h]])})
    job = a_job(deadline_s=limit_h * HOUR, home="aws us-east-1")
    costs = Moves(**{"restart_s": 0.0, "tariffs": TARIFFS} | moves)
    assert rent(job, grid, strategy("uniform_progress"), costs).hours <= limit_h


def test_where_all_may_be_taken_away_uniform_progress_rents_what_is_fast_enough():
    slow = rent(a_job(deadline_s=20 * HOUR, whole=False), flat(), strategy("uniform_progress"), FREE)
    fast = rent(a_job(deadline_s=8 * HOUR, whole=False), flat(), strategy("uniform_progress"), FREE)
    assert {stay.offer.device for stay in slow.path} == {"k80"}
    assert fast.path[0].offer.device == "v100"
    assert fast.hours <= 8
    assert fast.cost_usd < 4 * 7 / 4  # the end is cheaper on a K80, and still in time
    late = rent(a_job(deadline_s=2 * HOUR, whole=False), flat(), strategy("uniform_progress"), FREE)
    assert (late.hours, late.finished) == (4.0, True)


@pytest.mark.parametrize("billing", ["spot", "on-demand"])
def test_uniform_progress_in_a_hurry_rents_the_cheapest_of_those_as_fast(billing):
    dear, cheap = (offer(zone, billing=billing) for zone in ("us-east-1a", "us-east-1b"))
    grid = hours(Market((priced(*[9.0] * 9, of=dear), priced(*[1.0] * 9, of=cheap))), 9)
    found = rent(a_job(deadline_s=4 * HOUR), grid, strategy("uniform_progress"), FREE)
    assert [stay.offer for stay in found.path] == [cheap]


def test_without_deadline_uniform_progress_is_dynamic():
    found = rent(a_job(whole=False), flat(), strategy("uniform_progress"), FREE)
    assert found.cost_usd == rent(a_job(whole=False), flat(), strategy("dynamic"), FREE).cost_usd


def test_unknown_strategies_and_options():
    with pytest.raises(InputError, match="one of baseline_worst"):
        strategy("best")
    with pytest.raises(InputError, match="options"):
        strategy("dynamic", often=True)
    assert strategy("baseline", device="k80").device == "k80"
