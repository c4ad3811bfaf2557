import numpy as np
import pytest

from sim.market.jobs import Moves, RentedJob
from sim.market.offers import Market
from sim.market.renting import rent
from sim.market.strategies import strategy
from sim.market.strategies.planned import Planned
from sim.specs.fields import InputError
from tests.market.toys import HOUR, TARIFFS, a_job, hours, offer, priced

FREE = Moves.free()
A, B = offer("us-east-1a"), offer("us-west-2a")


def two(first=(1, 1, 9, 9, 9, 9, 9, 9), second=(2, 2, 2, 2, 2, 2, 2, 2), available=None):
    """Return two offers hour by hour; the one that is cheaper changes."""
    return hours(Market((priced(*first, of=A), priced(*second, of=B))), 8, available)


def test_the_cheapest_is_rented_and_left():
    stays = rent(a_job(), two(), strategy("multi_cloud"), FREE)
    assert (stays.cost_usd, stays.hours, stays.migrations) == (1 + 1 + 9 + 9, 4.0, 0)
    goes = rent(a_job(), two(), strategy("preemption"), FREE)
    assert (goes.cost_usd, goes.hours, goes.migrations) == (1 + 1 + 2 + 2, 4.0, 1)
    assert [(s.offer, s.begin_s, s.end_s, s.usd, s.steps, s.ended) for s in goes.path] == [
        (A, 0.0, 2 * HOUR, 2.0, 2 * HOUR, "moved"),
        (B, 2 * HOUR, 4 * HOUR, 4.0, 2 * HOUR, "finished"),
    ]
    assert goes.finished
    assert goes.gpu_hours == 4.0


def test_what_a_start_and_a_move_take():
    moves = Moves(
        boot_s=100.0, restart_s=80.0, write_s=40.0, read_s=20.0, state_bytes=1e10, wan_bytes_per_s=1e9, usd=3.0,
        tariffs=TARIFFS,
    )  # fmt: skip
    found = rent(a_job(steps=3 * HOUR), two(), strategy("preemption"), moves)
    assert found.parts_s["moving"] == pytest.approx(180 + 180 + 40 + 20 + 10)
    assert found.hours * HOUR == pytest.approx(3 * HOUR + 430)
    assert found.transfer_usd == pytest.approx(10 * 0.02 + 3)
    assert found.cost_usd == pytest.approx(2 + 2 * (HOUR + 430) / HOUR + 3.2)


def test_data_leaves_home_at_a_price():
    moves = Moves(data_bytes=1e11, wan_bytes_per_s=1e9, boot_s=0.0, restart_s=0.0, tariffs=TARIFFS)
    at_home = rent(a_job(home="aws us-east-1"), two(), strategy("multi_cloud"), moves)
    away = rent(a_job(home="aws us-west-2"), two(), strategy("multi_cloud"), moves)
    assert at_home.transfer_usd == 0
    assert away.transfer_usd == pytest.approx(100 * 0.02)
    assert away.parts_s["moving"] == pytest.approx(100)
    with pytest.raises(InputError, match="home"):
        rent(a_job(home="moon"), two(), strategy("multi_cloud"), moves)


def test_who_is_preempted_loses_work_and_chooses_again():
    gone = {A: HOUR * np.array([[0.0, 1.5]])}
    moves = Moves(boot_s=0.0, restart_s=0.0, lost_work_s=1_200.0)
    found = rent(a_job(), two(available=gone), strategy("multi_cloud"), moves)
    assert (found.preemptions, found.migrations) == (1, 1)
    assert found.parts_s == pytest.approx({"training": 4 * HOUR, "moving": 0, "lost": 1_200, "waiting": HOUR / 2})
    assert found.path[0].ended == "preempted"
    assert found.cost_usd == pytest.approx(1.5 + 2 * (2.5 + 1 / 3))
    assert sum(stay.steps for stay in found.path) == pytest.approx(4 * HOUR)


def test_no_more_work_is_lost_than_was_done():
    gone = {A: HOUR * np.array([[0.0, 0.1]])}
    found = rent(a_job(), two(available=gone), strategy("multi_cloud"), Moves(boot_s=0, restart_s=0, lost_work_s=9e5))
    assert found.parts_s["lost"] == pytest.approx(360)
    assert found.finished


def test_who_is_taken_off_while_starting_has_done_nothing():
    gone = {A: HOUR * np.array([[0.0, 1.5]])}
    found = rent(a_job(), two(available=gone), strategy("multi_cloud"), Moves(boot_s=2 * HOUR, restart_s=0.0))
    assert found.path[0].steps == 0
    assert found.parts_s["moving"] == pytest.approx(1.5 * HOUR + 2 * HOUR)


def test_nobody_chooses_while_the_job_is_being_started():
    found = rent(a_job(), two(first=(1, 9, 9, 9, 9, 9, 9, 9)), strategy("preemption"), Moves(boot_s=9_000, restart_s=0))
    assert [stay.begin_s / HOUR for stay in found.path] == [0.0, 3.0]


def test_shares_of_an_instance_or_all_of_it():
    grid = hours(Market((priced(8, 8, 8, 8, of=offer(devices=8)),)), 4)
    assert rent(a_job(whole=False), grid, strategy("dynamic"), FREE).cost_usd == 4.0
    assert rent(a_job(gpus=4, whole=False), grid, strategy("dynamic"), FREE).cost_usd == 16.0
    assert rent(a_job(), grid, strategy("dynamic"), FREE).cost_usd == 32.0
    assert rent(a_job(gpus=16), grid, strategy("dynamic"), FREE).cost_usd == 64.0
    with pytest.raises(InputError, match="may rent"):
        rent(a_job(gpus=12), grid, strategy("dynamic"), FREE)


def test_saving_takes_time():
    found = rent(a_job(), two(), strategy("multi_cloud"), Moves(boot_s=0.0, restart_s=0.0, overhead=0.25))
    assert found.hours == pytest.approx(5.0)


def test_prices_may_end_before_the_job():
    found = rent(a_job(steps=20 * HOUR), two(), strategy("multi_cloud"), FREE)
    assert not found.finished
    assert (found.hours, found.path[-1].ended) == (8.0, "cut")


def test_how_often_it_chooses():
    grid = two(first=(1, 3, 1, 3, 1, 3, 1, 3))
    assert [rent(a_job(), grid, strategy("preemption"), FREE, every * HOUR).migrations for every in (1, 2, 3)] == [
        3, 0, 1,
    ]  # fmt: skip
    for wrong in (0.0, 1_800.0, 5_000.0, -HOUR):
        with pytest.raises(InputError, match="every_s"):
            rent(a_job(), grid, strategy("preemption"), FREE, wrong)


def test_a_plan_is_followed_and_then_the_cheapest():
    found = rent(a_job(), two(), Planned(0, [-1, 1, 0]), FREE)
    assert [stay.offer for stay in found.path] == [B, A, B]
    assert found.parts_s["waiting"] == HOUR


def test_strategies_choose_by_what_they_believe():
    grid = hours(Market((priced(2, 2, 2, of=A), priced(1, 1, 1, of=offer("us-west-2a", "k80")))), 30)
    true = a_job(steps_per_s={"v100": 1.0, "k80": 1.0})
    assert rent(true, grid, strategy("multi_cloud"), FREE).cost_usd == 4.0
    wrong = a_job(steps_per_s={"v100": 1.0, "k80": 1.0}, believed={"v100": 1.0, "k80": 0.1})
    assert rent(wrong, grid, strategy("multi_cloud"), FREE).cost_usd == 8.0


def test_a_job_that_runs_nowhere():
    with pytest.raises(InputError, match="steps_per_s"):
        RentedJob(steps=1.0, steps_per_s={"v100": 0.0})
    with pytest.raises(InputError, match="v100"):
        rent(a_job(steps_per_s={"tpu": 1.0}), two(), strategy("dynamic"), FREE)
