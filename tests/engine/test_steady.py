"""The steady state of schedules without flush: the slowest stage sets the pace and never waits."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.path import run_path
from sim.engine.steady import bubbles, steady_state
from sim.engine.step import simulate
from sim.engine.timeline import Durations
from sim.schedules import Kind, Shape, build
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import models
from sim.tuner.space import build_space

TICKS = st.integers(1, 1_000)


def run(name, shape, f, b, update, message=0):
    order = build(name, shape)
    table = {Kind.F: np.array(f), Kind.B: np.array(b), Kind.OPTIMIZER: np.array(update)}
    return steady_state(run_path(order, Durations(table, np.full(len(f), message))))


@pytest.mark.parametrize("name", ["pipedream", "2bw"])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_no_bubble_at_equal_times(name, p):
    found = run(name, Shape(p, 16 * p), [1] * p, [2] * p, [0] * p)
    assert found.ticks_per_microbatch == 3
    assert found.bubble == 0
    assert found.busy == pytest.approx(1)
    assert found.microbatches_per_update == (p if name == "2bw" else 1)


@given(st.data(), st.integers(2, 5))
def test_the_slowest_stage_sets_the_pace(data, p):
    column = st.lists(TICKS, min_size=p, max_size=p)
    f, b, update = data.draw(column), data.draw(column), data.draw(column)
    found = run("pipedream", Shape(p, 60 * p), f, b, update)
    slowest = max(x + y + u for x, y, u in zip(f, b, update, strict=True))
    assert found.ticks_per_microbatch == pytest.approx(slowest, rel=0.02)


@given(st.data(), st.integers(2, 5), st.integers(0, 8))
def test_a_group_of_2bw_hides_all_but_the_update(data, p, beyond):
    """A group takes at least the slowest stage's work; the updates come in one piece, so neighbours wait for some."""
    column = st.lists(TICKS, min_size=p, max_size=p)
    f, b, update = data.draw(column), data.draw(column), data.draw(column)
    group = p + beyond
    found = run("2bw", Shape(p, 20 * group * p, group=group), f, b, update)
    least = max(group * (x + y) + u for x, y, u in zip(f, b, update, strict=True))
    most = group * max(x + y for x, y in zip(f, b, strict=True)) + sum(update)
    assert 0.99 * least <= found.ticks_per_microbatch * found.microbatches_per_update <= 1.01 * most


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_replicas_share_a_stage(data, replicas):
    """1F1B-RR: a stage takes (F + B + update) / replicas per microbatch, and NOAM in flight hide the rest.

    They do where the replicas of every stage are a multiple of the next one's, as in 15-1: else rounds do not fit into
    each other, and a stage can wait for the few that are in flight before it.
    """
    column = st.lists(TICKS, min_size=len(replicas), max_size=len(replicas))
    f, b, update = data.draw(column), data.draw(column), data.draw(column)
    found = run("pipedream", Shape(sum(replicas), 480, replicas=tuple(replicas)), f, b, update)
    slowest = max((x + y + u) / r for x, y, u, r in zip(f, b, update, replicas, strict=True))
    assert found.ticks_per_microbatch > 0.95 * slowest
    if not any(before % after for before, after in pairwise(replicas)):
        assert found.ticks_per_microbatch == pytest.approx(slowest, rel=0.05)
        assert found.bubble == pytest.approx(0, abs=0.05)


def test_messages_that_p_microbatches_do_not_hide():
    """Round trip of the last pair of ranks: two microbatches wait for two (F + B) and two messages."""
    found = run("pipedream", Shape(4, 64), [1] * 4, [2] * 4, [0] * 4, message=1)
    assert found.ticks_per_microbatch == pytest.approx((4 * 3 + 6) / 4)
    assert found.bubble == pytest.approx(1 - 3 / 4.5)


@pytest.mark.parametrize("schedule", ["pipedream", "2bw"])
def test_the_idle_share_is_that_of_steps_without_end(schedule, h100s):
    step = simulate(models["llama3-8b"], h100s, Plan(tp=8, pp=4, schedule=schedule, global_batch=256, micro_batch=4))
    idle = bubbles(step.timeline)
    assert idle["bubble_fraction"] == pytest.approx(step.breakdown_s["bubble"] / step.step_time_s, abs=0.01)
    assert step.timeline.bubble_fraction() > idle["bubble_fraction"] + 0.01  # with the filling of the pipeline


def test_too_short_a_run_is_refused():
    with pytest.raises(ValueError, match="microbatches: got 4"):
        run("2bw", Shape(4, 4), [1] * 4, [2] * 4, [0] * 4)


@pytest.mark.parametrize("schedule", ["pipedream", "2bw"])
def test_a_steady_state_that_takes_too_long_to_show_is_refused(schedule):
    """176 ranks and steps of 177 microbatches come back to the same place after 177 steps."""
    model, cluster = Model(name="deep", layers=176, hidden=64, heads=2, seq=64), Cluster.of("l4", nodes=22)
    with pytest.raises(InputError, match=r"^plan\.global_batch: got 177; allowed: .* nearby: 177 and 176 take 11"):
        simulate(model, cluster, Plan(pp=176, schedule=schedule, global_batch=177))
    knobs = {"pp": [176], "schedule": [schedule], "micro_batch": [1]}
    few, many = (build_space(model, cluster, batch, knobs) for batch in (176, 177))
    assert few.allowed.any()
    assert many.excluded["too many actions until a schedule without flush is steady"]
    assert not many.allowed.any()
