"""Two timelines compared: what changes on the critical path adds up, and shifts are those of the actions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.compare import compare
from sim.engine.critical import Spent
from sim.engine.path import run_path
from sim.engine.timeline import Durations
from sim.schedules import Action, Kind, Shape, build
from tests.engine.test_engines import problems


def run(name="1f1b", message=0, forward=1, ranks=3, microbatches=6):
    """Return a small timeline."""
    times = {Kind.F: forward, Kind.B: 2, Kind.I: 1, Kind.W: 1}
    return run_path(build(name, Shape(ranks, microbatches)), Durations.uniform(ranks, times, message))


def test_nothing_changes():
    found = compare(run(), run())
    assert found.ticks == 0
    assert found.changes == ()
    assert found.same_actions
    assert not found.moved.any()
    assert not found.longer.any()


def test_slower_messages_are_the_cause():
    found = compare(run(message=5), run())
    assert found.by_cause()[Spent.MESSAGE] > 0
    assert sum(found.by_cause().values()) == found.ticks > 0
    assert found.moved.max() == found.ticks
    assert not found.longer.any()


def test_one_longer_action_is_named():
    before = run(microbatches=1)
    program = before.run.program
    last = int(np.argmax(before.end))
    from sim.engine.path import run_program  # noqa: PLC0415 - only this test needs a changed program
    from sim.engine.timeline import Timeline  # noqa: PLC0415

    slower = replace(program, duration=program.duration + 7 * (np.arange(len(program)) == last))
    found = compare(Timeline.of(before.schedule, run_program(slower)), before)
    (change,) = found.changes
    assert change[:3] == (Spent.BACKWARD, 0, Action(0, Kind.B, 0))
    assert (change.before, change.after, change.ticks, found.ticks) == (2, 9, 7, 7)
    assert found.longer[last] == 7


@given(problems(), st.integers(0, 50), st.data())
def test_changes_sum_to_the_makespan(problem, message, data):
    order, d = problem
    other = Durations({k: v + data.draw(st.integers(0, 9)) for k, v in d.of_kind.items()}, d.message + message)
    found = compare(run_path(order, other), run_path(order, d))
    assert found.ticks == sum(c.ticks for c in found.changes)
    assert found.ticks == sum(found.by_rank().values()) == sum(found.by_cause().values())
    assert (found.moved >= 0).all()
    sizes = [abs(c.ticks) for c in found.changes]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(("one", "other", "same"), [("1f1b", "gpipe", True), ("1f1b", "zb-h1", False)])
def test_other_schedules_are_compared_by_cause_and_rank(one, other, same):
    found = compare(run(one, 1), run(other, 1))
    assert found.same_actions is same
    assert all((c.action is not None) is same for c in found.changes)
    assert sum(found.by_rank().values()) == found.ticks
    if same:
        where = found.place
        assert (found.after.graph.microbatch == found.before.graph.microbatch[where]).all()
    else:
        assert len(found.moved) == 0
