"""What a run takes as each section joins."""

import pytest

from sim.run import in_turn, run_of
from sim.specs import Around, Checkpointing, Dataset, Loading, Prices, Training

TRAINING = Training(steps=1_000, usd_per_gpu_hour=2.0)
LATE = Loading(dataset=Dataset(samples=10_000, sample_bytes=1e6), storage="nvme", prep_s=5.0, workers=1)
KEPT = Checkpointing(storage="nvme", every=10)


def test_only_what_is_stated_is_told(step):
    run = run_of(step, Around(TRAINING))
    turns = in_turn(step, run)
    assert list(turns) == ["steps alone"]
    assert turns["steps alone"].days == run.days


def test_each_section_adds_to_those_before(step):
    run = run_of(step, Around(TRAINING, LATE, KEPT))
    turns = in_turn(step, run)
    assert list(turns) == ["steps alone", "with its data", "with checkpoints and failures"]
    alone, fed, saved = turns.values()
    assert alone.days < fed.days < saved.days
    assert fed.goodput == pytest.approx(alone.days / fed.days)
    for name in ("days", "gpu_hours", "cost_usd", "energy_kwh"):
        assert getattr(saved, name) == getattr(run, name)


def test_one_price_holds_all_along(step):
    run = run_of(step, Around(Training(steps=1_000), LATE, None, Prices(usd_per_gpu_hour=7.0)))
    assert [round(held.cost_usd / held.gpu_hours, 6) for held in in_turn(step, run).values()] == [7.0, 7.0]
