"""Figures and words of checkpoints: they show what the laws and the processes say."""

from dataclasses import replace

import numpy as np
import pytest

from sim.checkpointing import Fleet, Times, plan, simulate
from sim.report import figures
from sim.report.checkpoints import answer_plan, answer_simulated
from sim.specs import Checkpointing, Failures

TIMES = Times(iteration_s=1.0, update_s=0.2, host_snapshot_s=1.3, persist_s=1.8, reload_s=4.0, contention=0.5)
GIVEN = Checkpointing(failures=Failures(restart_s=60.0, repair_s=3_600.0, spares=2))
MTBF_S = 36_000.0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_picks_stand_on_the_sum_of_what_is_lost(theme):
    figure = figures.checkpoint_interval(TIMES, GIVEN, MTBF_S, theme=theme)
    everything, saving, failing = figure.data
    assert np.allclose(everything.y, np.add(saving.y, failing.y))
    for at in (0, -1):  # the shares that `sim.run.losses` tells of a whole run
        one = plan(TIMES, replace(GIVEN, every=int(saving.x[at])), MTBF_S)
        assert saving.y[at] == pytest.approx(100 * one.goodput * one.overhead_fraction)
    rows = plan(TIMES, GIVEN, MTBF_S).policies
    best = next(row for row in rows if row.policy == "best")
    assert 100 * (1 - best.goodput) == pytest.approx(min(everything.y), rel=1e-3)
    told = " ".join(note.text for note in figure.layout.annotations)
    assert all(name in told for name in ("CheckFreq", "Young", "Daly", "best"))
    assert all(note.y < figure.layout.yaxis.range[1] for note in figure.layout.annotations)
    beside = [(note.ax, note.xanchor) for note in figure.layout.annotations[:2]]
    assert beside == [(20, "left"), (-20, "right")]  # Young's and Daly's picks are almost one


def test_the_pick_of_the_policy_that_was_asked_for_is_marked():
    figure = figures.checkpoint_interval(TIMES, replace(GIVEN, every="checkfreq-rule"), MTBF_S)
    assert "checkfreq-rule" in " ".join(note.text for note in figure.layout.annotations)


def test_more_gpus_keep_less():
    figure = figures.checkpoint_scale(TIMES, GIVEN, gpus=(64, 4_096), years=(1.0, 10.0))
    often, seldom = figure.data
    assert often.y[0] > often.y[1]
    assert seldom.y[1] > often.y[1]
    none = replace(GIVEN, failures=replace(GIVEN.failures, repair_s=0.0))
    assert often.y[1] == pytest.approx(100 * plan(TIMES, none, 365.25 * 86_400 / 4_096).goodput)


def test_a_timeline_has_every_bar():
    figure = figures.checkpoint_timeline({"alone": replace(TIMES, contention=0.0), "beside": TIMES}, 2, 4)
    bars = {bar.name: bar for bar in figure.data}
    assert len(bars["training"].x) == len(bars["weight update"].x) == 8
    assert len(bars["snapshot"].x) == len(bars["writing"].x) == 4
    assert set(bars["writing"].y) == {2, 5}
    alone, beside = (bars["writing"].x[i] for i in (0, 2))
    assert alone == pytest.approx(1.8)
    assert beside > alone
    assert sum(bars["training"].x[:4]) == pytest.approx(4 * 0.8)
    assert len(bars["training waits"].x) > 0


def test_recovery_by_storage():
    advices = {"fast": plan(TIMES, GIVEN, MTBF_S), "slow": plan(replace(TIMES, persist_s=30.0), GIVEN, MTBF_S)}
    figure = figures.checkpoint_recovery(advices, restart_s=60.0)
    assert figure.layout.yaxis.dtick == 1  # every row has its name
    work, reading, restarting = figure.data
    assert work.x == tuple(a.lost_work_s for a in advices.values())
    assert reading.x == pytest.approx((4.0, 4.0))
    assert restarting.x == (60.0, 60.0)


def test_words():
    told = list(answer_plan(plan(TIMES, GIVEN, MTBF_S), TIMES))
    assert told[0].startswith("Save every ")
    assert "goodput" in told[0]
    never = list(answer_plan(plan(TIMES, GIVEN), TIMES))
    assert "goodput" not in never[0]
    one = simulate(TIMES, GIVEN, seconds=1e6, mtbf_s=MTBF_S, fleet=Fleet(2, 1))
    assert "in one run of" in next(iter(answer_simulated(one)))
    quiet = list(answer_simulated(simulate(TIMES, GIVEN, steps=100)))
    assert len(quiet) == 2
