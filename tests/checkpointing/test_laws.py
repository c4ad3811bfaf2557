"""Laws of saving: against the formulas by hand, in their limits, and k against what trying every k finds."""

from dataclasses import replace
from math import ceil, exp, inf, sqrt
from typing import get_args

import numpy as np
import pytest

from sim.checkpointing import Times, plan
from sim.checkpointing.advice import Odds, goodput
from sim.checkpointing.laws import costs, goodputs
from sim.specs import Checkpointing, Failures, InputError, Storage
from sim.specs.checkpointing import Policy

TIMES = Times(iteration_s=0.5, update_s=0.05, host_snapshot_s=1.2, persist_s=8.0, reload_s=5.0, contention=0.1)
FAILURES = Failures(device_mtbf_s=1.0, restart_s=60.0, repair_s=0.0)


def kept(times, k, failures, mtbf_s):
    return goodput(times, k, Odds.of(times, failures, mtbf_s))


def of(times, k):
    return {name: float(v) for name, v in costs()(times.values | {"steps_between": k}).items()}


@pytest.mark.parametrize("k", [20, 43, 89, 1000])
def test_overhead_is_stall_contention_and_wait(k):
    found = of(TIMES, k)
    assert found["exposed_s"] == pytest.approx(1.2 - 0.45)
    assert found["overhead_fraction"] == pytest.approx((0.75 + 0.1 * 8) / (k * 0.5))
    assert found["interval_s"] == pytest.approx(k * 0.5 + 1.55)
    assert found["written_after_s"] == pytest.approx(1.2 + 8.8)
    assert found["lost_work_s"] == pytest.approx((k * 0.5 + 1.55) / 2 + 10)


def test_a_disk_that_is_always_busy_sets_the_pace():
    """Training gets nothing beyond what is written: an interval is snapshot and writing, k steps of it trained."""
    alone = replace(TIMES, contention=0.0)
    assert of(alone, 4)["interval_s"] == pytest.approx(1.2 + 8)
    assert of(alone, 4)["waited_s"] == pytest.approx(8 - (2 - 0.45))
    # beside training both take longer, until training waits
    assert of(TIMES, 4)["interval_s"] == pytest.approx(1.2 + 8 + 0.1 * (2 - 0.45))


def test_times_of_one_device_and_its_storage():
    disk = Storage(read_bytes_per_s=4e9, write_bytes_per_s=2e9, latency_s=0.5)
    made = Times.of(0.1, 8e9, disk, 1e10, contention=0.2)
    assert made == Times(
        iteration_s=0.1, host_snapshot_s=0.8, persist_s=4.0, reload_s=2.5, state_bytes=8e9, contention=0.2
    )


def test_saving_without_a_snapshot_waits_for_all_of_it():
    found = of(replace(TIMES, snapshot="none"), 10)
    assert found["overhead_fraction"] == pytest.approx((1.2 + 8) / 5)
    assert found["written_after_s"] == pytest.approx(9.2)


def test_the_snapshot_is_on_the_device_if_it_fits_and_is_faster():
    assert TIMES.kind == "host"
    fits = replace(TIMES, device_snapshot_s=0.01)
    assert (fits.kind, fits.snapshot_s, fits.written_s) == ("device", 0.01, 9.2)
    assert replace(TIMES, device_snapshot_s=2.0).kind == "host"
    assert plan(fits, Checkpointing(snapshot="host")).snapshot == "host"


@pytest.mark.parametrize("contention", [0.0, 0.1])
@pytest.mark.parametrize("snapshot_s", [0.3, 1.2, 20.0])
@pytest.mark.parametrize("budget", [0.01, 0.035, 0.9])
def test_checkfreq_takes_the_least_within_the_budget(contention, snapshot_s, budget):
    times = replace(TIMES, contention=contention, host_snapshot_s=snapshot_s)
    found = plan(times, Checkpointing(overhead_budget=budget))
    k, o = found.steps_between, max(0.0, snapshot_s - 0.45)
    rule = max(ceil((snapshot_s + 8.0 - o) / 0.5 - 1e-6), ceil(o / (budget * 0.5) - 1e-6), 1)
    assert found.choice("checkfreq-rule").steps_between == rule <= k
    released = max(ceil(8.0 / 0.5), ceil(snapshot_s / (budget * 0.5) - 1e-6), 1)
    assert found.choice("checkfreq-released").steps_between == released
    assert found.overhead_fraction <= budget + 1e-9
    assert found.waited_s == 0
    if k > 1:
        less = of(times, k - 1)
        assert less["overhead_fraction"] > budget or less["waited_s"] > 0


def test_without_contention_the_rule_is_blind():
    """On processors that train and write on the same cores, the rule's k misses its budget by multiples."""
    times = Times(iteration_s=1.0, update_s=0.1, host_snapshot_s=0.2, persist_s=2.5, contention=1.9)
    row = plan(times).choice("checkfreq-rule")
    assert row.steps_between == 3
    assert row.overhead_fraction > 1.5
    assert plan(times).overhead_fraction <= 0.035


@pytest.mark.parametrize("mtbf_s", [100.0, 3600.0, 1e6])
@pytest.mark.parametrize("persist_s", [0.0, 8.0, 300.0])
def test_best_is_the_best_of_all(mtbf_s, persist_s):
    times = replace(TIMES, persist_s=persist_s)
    k = np.arange(1, 20_000)
    tried = kept(times, k, FAILURES, mtbf_s)
    found = plan(times, Checkpointing(failures=FAILURES), mtbf_s).choice("best")
    assert found.goodput == pytest.approx(tried.max(), rel=1e-12)
    assert found.steps_between == k[tried.argmax()]


def test_young_and_daly_are_near_the_best_where_failures_are_rare():
    found = plan(TIMES, Checkpointing(failures=FAILURES, every="young"), 1e6)
    assert found.steps_between == round(sqrt(2 * 1.55 * 1e6) / 0.5)
    best = found.choice("best")
    for policy in ("young", "daly"):
        assert found.choice(policy).goodput == pytest.approx(best.goodput, rel=1e-5)
    assert abs(found.choice("daly").steps_between - best.steps_between) <= 1
    # and where a checkpoint costs twice the time between failures, Daly's is that time
    dear = plan(replace(TIMES, host_snapshot_s=300.0), Checkpointing(failures=FAILURES), 100.0).choice("daly")
    assert dear.steps_between == max(200, ceil((8.0 + 0.45) / 0.5))


def test_goodput_of_rare_failures_is_that_of_small_shares():
    values = TIMES.values | {"restart_s": 60.0, "regrowths_per_s": 0.0, "mtbf_s": np.array([1e4, 1e5, 1e6])}
    found = goodputs()(values | {"steps_between": np.array([[100], [400]])})
    by_hand = (1 - 1.55 / np.array([[50], [200]])) * (
        1 - (np.array([[25], [100]]) + 8 + 5 + 60) / np.array([1e4, 1e5, 1e6])
    )
    assert found["first_order"] == pytest.approx(by_hand, rel=1e-12)
    assert found["goodput"] == pytest.approx(by_hand, abs=2e-3)
    assert kept(TIMES, 100, FAILURES, 1e13) == pytest.approx(kept(TIMES, 100, FAILURES, None), rel=1e-9)


def test_goodput_without_any_cost_is_that_of_a_poisson_process():
    free = Times(iteration_s=1.0, host_snapshot_s=0.0, persist_s=0.0)
    none = Failures(device_mtbf_s=1.0, restart_s=0.0, repair_s=0.0)
    k, mtbf_s = 50, 30.0
    left = sum(k * j * (exp(-k * j / mtbf_s) - exp(-k * (j + 1) / mtbf_s)) for j in range(200))
    assert kept(free, k, none, mtbf_s) == pytest.approx(left / mtbf_s)


def test_waiting_for_a_repair_is_lost_and_a_spare_saves_it():
    away = Failures(device_mtbf_s=1.0, restart_s=60.0, repair_s=3600.0)
    alone, spared, many = (kept(TIMES, 400, replace(away, spares=n), 3600.0) for n in (0, 1, 50))
    assert alone == pytest.approx(many / 2)
    assert spared == pytest.approx(many * 4 / 5)  # Erlang's loss formula: 1 - (1/2) / (1 + 1 + 1/2)
    why = plan(TIMES, Checkpointing(failures=away), 3600.0).why
    assert "no spare node: nothing trains, which takes 50\xa0%" in why[-1]
    assert "a failure every 1.00 h loses" in why[-2] and "is away for 1.00 h" in why[-1]


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Times(iteration_s=1.0, update_s=2.0, host_snapshot_s=1.0, persist_s=1.0), "update_s: got 2.0"),
        (lambda: replace(TIMES, persist_s=-1.0), "persist_s: got -1.0; allowed: a number from 0"),
        (lambda: plan(TIMES, Checkpointing(snapshot="device")), "snapshot: got 'device'; allowed: auto, host or none"),
        (lambda: plan(TIMES, Checkpointing(every="young")), "checkpointing.every: got 'young'; allowed: steps, or"),
        (lambda: plan(TIMES, Checkpointing(every="best")), "checkpointing.every: got 'best'; allowed: steps, or"),
        (lambda: plan(TIMES, mtbf_s=0.0), "mtbf_s: got 0.0"),
        (lambda: plan(TIMES, mtbf_s=inf), "mtbf_s: got inf"),
        (lambda: plan(TIMES).choice("daily"), "policy: got 'daily'"),
    ],
)
def test_bad_input_is_refused(make, words):
    with pytest.raises(InputError) as caught:
        make()
    assert words in str(caught.value)


@pytest.mark.parametrize("policy", get_args(Policy))
def test_every_policy_of_the_answer_can_be_asked_for(policy):
    usual = plan(TIMES, Checkpointing(failures=FAILURES), 1e4)
    found = plan(TIMES, Checkpointing(failures=FAILURES, every=policy), 1e4)
    assert found.policies == usual.policies
    assert {row.policy for row in found.policies} == set(get_args(Policy))
    assert (found.steps_between, found.goodput) == (found.choice(policy).steps_between, found.choice(policy).goodput)


def test_a_stated_k_is_kept():
    found = plan(TIMES, Checkpointing(every=7))
    assert (found.steps_between, found.policies[0].policy) == (7, "stated")
    assert found.overhead_percent == pytest.approx(100 * of(TIMES, 7)["overhead_fraction"])
