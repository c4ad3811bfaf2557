"""A stretch of training: its parts sum to its time, and agree with the laws of what it loses."""

from dataclasses import replace

import pytest

from sim.engine.step import simulate
from sim.run import train
from sim.run.feed import Feed
from sim.run.losses import losses
from sim.run.trained import HANDED
from sim.specs import Checkpointing, Cluster, Dataset, Failures, InputError, Loading, Plan, Storage, Training
from sim.specs.catalog import models
from tests.run.test_losses import DISK, reading

NEVER = Failures(device_mtbf_s=1e15, restart_s=0.0, repair_s=0.0)


def whole(found):
    return sum(found.parts_s.values())


def test_nothing_beside_it_is_steps_alone(step):
    found = train(step, seconds=99.5 * step.step_time_s)  # a step that has begun is done
    assert found.steps == 100
    assert found.seconds == pytest.approx(100 * step.step_time_s, rel=1e-6)
    assert found.goodput == 1.0
    assert all(span.run is None for span in found.spans)


def test_it_tells_how_far_it_is(step):
    told = []
    train(step, seconds=2.5 * step.step_time_s, progress=told.append)
    assert told == pytest.approx([0, step.step_time_s, 2 * step.step_time_s], rel=1e-6)


@pytest.mark.parametrize("share", [0.4, 0.7, 3.0])
def test_it_is_as_fast_as_the_law_of_loading_says(step, share):
    """Storage gives this share of what training takes."""
    needed = 32 * 32_768 / step.step_time_s
    slow = reading(storage=Storage(read_bytes_per_s=share * needed, write_bytes_per_s=1e9))
    found, law = train(step, slow, seconds=80 * step.step_time_s), losses(step, Training(steps=1), slow)
    assert whole(found) == pytest.approx(found.seconds)
    assert found.goodput == pytest.approx(law.goodput, abs=0.05)
    assert found.parts_s["data"] / found.seconds == pytest.approx(law.shares["data"], abs=0.05)
    assert {span.kind for span in found.data_spans} >= {"fetch"}


@pytest.mark.parametrize(("share", "waited"), [(0.3, 0.0), (2.0, 0.5)])
def test_samples_are_handed_over_while_the_one_before_is_computed(step, share, waited):
    """Receiving a step's samples takes this share of the step."""
    fast = Storage(read_bytes_per_s=1e12, write_bytes_per_s=1e9)
    handed = reading(storage=fast, handover_s=share * step.step_time_s / Feed.of(step).samples_per_step)
    found = train(step, handed, seconds=80 * step.step_time_s)
    assert found.parts_s["data"] / found.seconds == pytest.approx(waited, abs=0.05)
    assert HANDED in found.assumptions
    assert HANDED not in train(step, reading(storage=fast), seconds=step.step_time_s).assumptions


@pytest.mark.parametrize("every, contention, rate", [(5, 0.0, 5e10), (8, 0.3, 5e10), (3, 0.1, 2e9)])
def test_it_loses_what_the_law_of_checkpoints_says(step, every, contention, rate):
    storage = Storage(read_bytes_per_s=1e9, write_bytes_per_s=rate)
    kept = Checkpointing(every=every, contention=contention, storage=storage, failures=NEVER)
    found, law = (
        train(step, checkpointing=kept, seconds=120 * step.step_time_s),
        losses(step, Training(steps=1), checkpointing=kept),
    )
    assert whole(found) == pytest.approx(found.seconds)
    assert found.goodput == pytest.approx(law.goodput, abs=0.03)
    assert found.checkpoints >= 1
    assert found.steps_between_checkpoints == every


def test_failures_lose_steps_and_time(step):
    often = Failures(device_mtbf_s=16 * 50 * step.step_time_s, restart_s=5 * step.step_time_s, repair_s=0.0)
    kept = Checkpointing(every=10, contention=0.0, storage=Storage(read_bytes_per_s=1e12, write_bytes_per_s=1e12),
                         failures=often)  # fmt: skip
    found = train(step, checkpointing=kept, seconds=2_000 * step.step_time_s, seed=1)
    again = train(step, checkpointing=kept, seconds=2_000 * step.step_time_s, seed=1)
    assert found.failures == len(again.pauses) > 20
    assert whole(found) == pytest.approx(found.seconds)
    law = losses(step, Training(steps=1), checkpointing=kept)
    assert found.goodput == pytest.approx(law.goodput, abs=0.05)
    quiet = train(step, checkpointing=kept, seconds=200 * step.step_time_s, failures=False)
    assert quiet.failures == 0
    kept_numbers = [span.number for span in found.spans if not span.lost]
    assert kept_numbers == list(range(1, found.steps + 1))


def test_a_run_without_nodes_stands_still_until_the_end(step):
    """No spare, a day of repair, a failure within minutes: nothing fails meanwhile, and the clock stops in time."""
    alone = Failures(device_mtbf_s=16 * 20 * step.step_time_s, restart_s=1.0)
    kept = Checkpointing(every=10, storage=DISK, failures=alone)
    found = train(step, checkpointing=kept, seconds=500 * step.step_time_s, seed=3)
    assert found.failures == 1
    assert found.seconds == pytest.approx(500 * step.step_time_s)
    assert whole(found) == pytest.approx(found.seconds)
    assert found.parts_s["failures"] > 0.5 * found.seconds


def test_an_elastic_run_stands_still_where_no_replica_is_whole():
    """Eight replicas on one node, which is away: nothing trains, elastic or not."""
    alone = simulate(models["llama3-8b"], Cluster.of("h100-sxm-80gb"), Plan(global_batch=64, zero=1))
    long_s = 300 * alone.step_time_s
    away = Failures(device_mtbf_s=8 * 40 * alone.step_time_s, restart_s=1.0, repair_s=long_s / 3)

    def stands_still(failures):
        kept = Checkpointing(every=10, storage=DISK, failures=failures)
        return train(alone, checkpointing=kept, seconds=long_s, seed=3).parts_s["failures"]

    assert stands_still(replace(away, elastic=True)) == stands_still(away) > long_s / 3


@pytest.mark.parametrize("pp", [1, 2])  # a stage alone keeps one version of its weights, and flushes no more
def test_steps_without_an_end_are_refused(pp):
    cluster = Cluster.of("h100-sxm-80gb")
    step = simulate(models["llama3-8b"], cluster, Plan(tp=4, pp=pp, schedule="pipedream", global_batch=8))
    with pytest.raises(InputError, match="a schedule that flushes"):
        train(step)


def test_too_long_a_stretch_is_refused(step):
    with pytest.raises(InputError, match="at most 1000000 steps"):
        train(step, seconds=1e8)


def test_the_event_engine_takes_part():
    cluster = Cluster.of("h100-sxm-80gb", nodes=2)
    step = simulate(models["llama3-8b"], cluster, Plan(tp=4, pp=2, global_batch=16, zero=1), engine="events")
    kept = Checkpointing(every=3, contention=0.2, storage=DISK, failures=NEVER)
    images = Loading(dataset=Dataset(samples=10_000, sample_bytes=1e5), storage=DISK, workers=2, prep_s=1e-3)
    found = train(step, images, kept, seconds=30 * step.step_time_s)
    assert whole(found) == pytest.approx(found.seconds)
    assert any(span.run is not None for span in found.spans)
    assert any(span.run is None for span in found.spans)
