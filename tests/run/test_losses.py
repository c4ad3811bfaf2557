"""What a run loses: shares that sum to one, to data, checkpoints and failures, against arithmetic."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.checkpointing.failures import mtbf_s
from sim.engine.step import simulate
from sim.report.text import losses_words
from sim.run import Budget, whole_run
from sim.run.feed import Feed
from sim.run.losses import Saving, _predict, losses, losses_of, paced_step_time_s, predicted
from sim.run.turns import in_turn
from sim.specs import Around, Checkpointing, Cluster, Dataset, Failures, InputError, Loading, Plan, Storage, Training
from sim.specs.catalog import models
from sim.specs.plan import StagePlan
from sim.units import digits3

TOKENS = Dataset(samples=10**7, sample_bytes=32_768.0)
DISK = Storage(read_bytes_per_s=1e9, write_bytes_per_s=1e9)
OFTEN = Failures(device_mtbf_s=1e7, restart_s=300.0, repair_s=3_600.0, spares=4)


def reading(**changes):
    return Loading(**{"dataset": TOKENS, "storage": DISK, "workers": 2} | changes)


def test_the_busiest_node_feeds_its_replicas(step):
    feed = Feed.of(step)  # tp 4, pp 2 on two nodes of eight: both first stages on the first node
    assert (feed.readers, feed.batch, feed.microbatches) == (1, 2, 32)
    assert feed.compute_samples_per_s == pytest.approx(64 / step.step_time_s)
    uneven = simulate(models["llama3-8b"], Cluster.of("h100-sxm-80gb", nodes=3), Plan(tp=8, global_batch=6, dp=3))
    assert Feed.of(uneven).samples_per_step == 2


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        ({}, "loading: got 'a step with what it waits for data takes"),
        ({"state_bytes": 1e15}, "checkpointing.storage: got 'writing the state takes 5e+11 s'"),
        ({"state_bytes": 1e15, "snapshot": "device", "storage": DISK}, "checkpointing.snapshot: got 'device'"),
    ],
)
def test_errors_name_the_sections_of_the_job(step, saved, told):
    tape = Storage(read_bytes_per_s=1e3, write_bytes_per_s=1e3)
    slow = reading(dataset=Dataset(samples=9, sample_bytes=1e12), storage=tape)
    kept = Checkpointing(**({"storage": tape} | saved)) if saved else Checkpointing()
    with pytest.raises(InputError, match=re.escape(told)):
        whole_run(step, Training(steps=9), None if saved else slow, kept)


@pytest.mark.parametrize("epochs", [0.25, 1.0, 4.0])
def test_caches_are_of_no_use_in_the_first_epoch(step, epochs):
    """Storage gives half of what training takes, a cache holds half of the data: once that is full nothing waits."""
    data = Dataset(samples=64_000, sample_bytes=32_768.0)
    half = Storage(read_bytes_per_s=32 * data.sample_bytes / step.step_time_s, write_bytes_per_s=1e9)
    kept = reading(
        dataset=data, storage=half, workers=16, topology="staged", cache="minio", cache_bytes=data.size_bytes / 2
    )
    run = whole_run(step, Training(steps=int(epochs * 1_000)), kept)
    first = min(1.0, 1 / epochs)
    assert run.paced_step_time_s / step.step_time_s == pytest.approx(2 * first + 1 - first, rel=1e-3)
    assert paced_step_time_s(step, kept) == pytest.approx(step.step_time_s, rel=1e-3)
    budget = Budget.on(step, days=run.days, loading=kept).flop / (6 * step.model.active_parameters)
    assert budget == pytest.approx(run.tokens, rel=1e-3)
    assert "first epoch fills the caches" in " ".join(losses_words(losses_of(step, run.around)))


@pytest.mark.parametrize(
    ("plan", "readers", "batch"),
    [
        ({"tp": 2, "pp": 4}, 1, 4),  # all four first stages on the first of four nodes
        ({"tp": 2, "pp": 4, "rank_order": "tp-cp-pp-dp"}, 4, 1),  # a replica a node
        ({"tp": 8, "pp": 2}, 2, 1),  # a first stage fills a node, and the last ones another
        ({"tp": 2, "pp": 4, "schedule": "dualpipe"}, 2, 2),  # half enters at either end
    ],
)
def test_data_is_read_where_first_stages_lie(plan, readers, batch):
    plan = Plan(global_batch=64, recompute="full", zero=1, **plan)
    feed = Feed.of(simulate(models["llama3-8b"], Cluster.of("h100-sxm-80gb", nodes=4), plan))
    assert (feed.readers, feed.batch) == (readers, batch)


def test_data_is_told_per_node_with_the_sum():
    cluster, plan = Cluster.of("h100-sxm-80gb", nodes=2), Plan(global_batch=64, tp=8, recompute="full", zero=1)
    step = simulate(models["llama3-8b"], cluster, plan)
    whole = step.plan.global_batch / step.step_time_s
    (line,) = losses_words(losses_of(step, Around(loading=reading(workers=16))))
    assert f"it takes {digits3(whole / 2)} samples/s" in line
    assert f"Rates are per node; 2 nodes read {digits3(whole)} samples/s in all." in line
    alone = simulate(models["llama3-8b"], Cluster.of("h100-sxm-80gb"), plan)
    assert "per node" not in losses_words(losses_of(alone, Around(loading=reading(workers=16))))[0]


def test_replicas_of_unequal_stages_are_those_of_the_first():
    stages = (
        StagePlan(layers=20, tp=4, dp=4, micro_batch=1, recompute="full"),
        StagePlan(layers=12, tp=4, dp=2, micro_batch=2, recompute="full"),
    )
    step = simulate(models["llama3-8b"], Cluster.of("h100-sxm-80gb", nodes=3), Plan(global_batch=64, stages=stages))
    feed = Feed.of(step)
    assert (feed.readers, feed.batch) == (2, 2)
    assert feed.readers * feed.samples_per_step == 64


def test_a_mixed_cluster_shares_a_cache_over_its_slowest_network():
    groups = [{"device": name, "nodes": 1} for name in ("h100-sxm-80gb", "a100-sxm-80gb")]
    mixed = simulate(models["llama3-8b"], Cluster.of(groups=groups), Plan(tp=8, global_batch=8, zero=1))
    assert Feed.of(mixed).network_bytes_per_s == Cluster.of("a100-sxm-80gb").links.inter_bytes_per_s_per_node
    assert 0 < losses(mixed, Training(steps=9), reading(cache="partitioned", cache_bytes=1e9)).goodput <= 1


def test_data_in_time_loses_nothing(step):
    found = losses(step, Training(steps=9), reading())
    assert found.step_time_s == pytest.approx(step.step_time_s)
    assert found.shares == {"data": pytest.approx(0.0)}
    assert found.goodput == pytest.approx(1.0)


def test_slow_data_sets_the_pace(step):
    rate = Feed.of(step).compute_samples_per_s
    slow = reading(storage=Storage(read_bytes_per_s=rate * 32_768 / 2, write_bytes_per_s=1e9))
    assert paced_step_time_s(step, slow) == pytest.approx(2 * step.step_time_s)
    found = losses(step, Training(steps=9, goodput=0.8), slow)
    assert found.shares == {"data": pytest.approx(0.4), "stated": pytest.approx(0.2)}
    assert found.goodput == pytest.approx(0.4)


@settings(max_examples=20)
@given(
    st.integers(1, 5_000), st.floats(1e5, 1e9), st.floats(0.0, 1.0), st.floats(1e6, 1e10), st.integers(0, 3),
)  # fmt: skip
def test_shares_sum_to_one(step, every, mtbf, contention, write, spares):
    failures = Failures(device_mtbf_s=mtbf, restart_s=60.0, repair_s=600.0, spares=spares)
    storage = Storage(read_bytes_per_s=1e9, write_bytes_per_s=write)
    kept = Checkpointing(every=every, contention=contention, storage=storage, failures=failures)
    found = losses(step, Training(steps=9), reading(), kept)
    assert sum(found.shares.values()) + found.goodput == pytest.approx(1.0)
    assert all(share >= -1e-12 for share in found.shares.values())
    assert 0 <= found.goodput <= 1


def test_checkpoints_and_failures_stretch_the_run(step):
    kept = Checkpointing(every=100, storage=DISK, contention=0.0, failures=OFTEN)
    plain = whole_run(step, Training(steps=100_000))
    run = whole_run(step, Training(steps=100_000), checkpointing=kept)
    saving = Saving.of(step, None, kept)
    assert run.goodput == pytest.approx(saving.advice.goodput)
    assert run.days == pytest.approx(plain.days / saving.advice.goodput)
    assert run.steps_between_checkpoints == 100
    assert saving.mtbf_s == mtbf_s(OFTEN, 16, 2) == pytest.approx(1e7 / 16)
    assert run.losses["failures"] > run.losses["checkpoints"] >= 0


def test_luck_widens_the_interval_of_short_runs(step):
    kept = Checkpointing(every=100, storage=DISK, failures=OFTEN)

    def width(steps):
        run = whole_run(step, Training(steps=steps), checkpointing=kept)
        return run.days_interval[1] / run.days_interval[0]

    alone = step.step_time_interval_s[1] / step.step_time_interval_s[0]
    assert width(10_000) > width(10_000_000) > alone
    assert width(10**9) == pytest.approx(alone, rel=1e-3)


def test_no_luck_is_better_than_that_nothing_fails(step):
    """An hour, a failure in 20 days, and a day until its node is back: mostly none strikes."""
    kept = Checkpointing(every=100, storage=DISK, failures=Failures(device_mtbf_s=16 * 20 * 86_400.0))
    found = losses(step, Training(steps=1), checkpointing=kept)
    low, _ = step.profile.interval80(3_600.0, found.luck_log(3_600.0))
    assert low == pytest.approx(3_600.0 * (1 - found.shares["failures"]))
    assert found.luck_log(1e9) < 0.05  # of many


def test_a_goodput_is_not_stated_twice(step):
    with pytest.raises(InputError, match="left out beside checkpointing"):
        whole_run(step, Training(steps=9, goodput=0.9), checkpointing=Checkpointing())


def test_a_run_of_which_failures_leave_nothing_is_refused(step):
    often = Checkpointing(storage=DISK, failures=Failures(device_mtbf_s=16.0))
    with pytest.raises(InputError, match=r"checkpointing: got 'a failure every 1\.00 s'; allowed: failures so rare"):
        whole_run(step, Training(steps=9), checkpointing=often)


def test_what_is_assumed_is_said(step):
    run = whole_run(step, Training(steps=9), reading(), Checkpointing(failures=OFTEN, storage=DISK))
    text = " ".join(run.assumptions)
    assert "training.goodput" not in text
    assert "checkpointing.contention = 0" in text and "every epoch reads every file once" in text
    assert "no time lost to checkpoints or failures" in " ".join(
        whole_run(step, Training(steps=9), reading()).assumptions
    )


def test_waiting_for_data_makes_steps_longer_for_checkpoints(step):
    rate = Feed.of(step).compute_samples_per_s
    slow = reading(storage=replace(DISK, read_bytes_per_s=rate * 32_768 / 2))
    kept = Checkpointing(every=10, storage=DISK)
    assert Saving.of(step, slow, kept).advice.interval_s == pytest.approx(
        2 * Saving.of(step, None, kept).advice.interval_s, rel=0.05
    )
    assert predicted(step, slow).bottleneck == "fetch"


def test_data_is_predicted_once_for_all_that_a_run_loses(step):
    """Workers on shared cores take seconds: a job was asked for eleven times."""
    _predict.cache_clear()
    in_turn(step, whole_run(step, Training(steps=9), reading(), Checkpointing()))
    assert _predict.cache_info().misses == 1
