"""The critical path: no gap, no time left over, and nothing off it decides the makespan."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.critical import Held, Spent, critical_path, slack
from sim.engine.events import run_events, run_events_of
from sim.engine.graph import graph_of
from sim.engine.path import run_path, run_program
from sim.engine.step import simulate
from sim.engine.timeline import Durations
from sim.schedules import Kind, Shape, build
from sim.specs import Cluster, Model, Plan
from tests.engine.test_engines import problems

SMALL = Model(name="small", layers=8, hidden=1024, heads=8, seq=512)


def kinds(message: int = 1) -> Durations:
    """Return F 1, B 2 on two stages."""
    return Durations.uniform(2, {Kind.F: 1, Kind.B: 2}, message)


def words(path) -> list[str]:
    """Return what the path consists of."""
    return [f"{s.action} {s.spent} {s.ticks}: {s.why}" for s in path.segments]


@pytest.mark.parametrize("engine", [run_path, run_events])
def test_two_ranks_by_hand(engine):
    path = critical_path(engine(build("1f1b", Shape(2, 2)), kinds()).run)
    assert words(path) == [
        "0F0 forward 1: starts the run",
        "0F0 pipeline messages 1: waits for data of the same rank",
        "1F0 forward 1: waits for the message of 0F0",
        "1B0 backward 2: waits for its rank's previous action",
        "1F1 forward 1: waits for its rank's previous action",
        "1B1 backward 2: waits for its rank's previous action",
        "1B1 pipeline messages 1: waits for data of the same rank",
        "0B1 backward 2: waits for the message of 1B1",
    ]
    assert path.by_cause() == {Spent.BACKWARD: 6, Spent.FORWARD: 3, Spent.MESSAGE: 2}
    assert path.by_rank(2) == [4, 7]
    assert path.crossings() == 2


@given(problems(), st.sampled_from([run_path, run_events]))
def test_segments_follow_each_other_and_sum_to_the_makespan(problem, engine):
    timeline = engine(*problem)
    path = critical_path(timeline.run)
    assert path.segments[0].start == timeline.start.min()
    assert path.segments[-1].end == timeline.end.max()
    assert all(a.end == b.start for a, b in pairwise(path.segments))
    assert path.ticks == sum(path.by_cause().values()) == sum(path.by_rank(timeline.schedule.ranks))
    assert path.ticks == timeline.makespan


@given(problems(), st.data())
def test_slack_is_how_much_longer_an_operation_may_take(problem, data):
    program = problem[1].program(graph_of(problem[0]))
    run = run_program(program)
    free = slack(run)
    assert free.min() == 0
    assert all(free[s.operation] == 0 for s in critical_path(run).segments)
    i = data.draw(st.integers(0, len(program) - 1))
    more = np.arange(len(program)) == i
    for extra, longer in ((free[i], 0), (free[i] + 3, 3)):
        slower = run_program(replace(program, duration=program.duration + more * extra))
        assert slower.makespan == run.makespan + longer


def test_a_guest_is_named():
    order = build("1f1b", Shape(2, 1))
    graph = graph_of(order)

    def late(world):
        release = world.hold(1)
        yield world.env.timeout(50)
        release()

    run = run_events_of(kinds().program(graph), guests=[late])
    held = critical_path(run)
    assert held.ticks == run.makespan
    assert Held.OUTSIDE in [s.held for s in held.segments] and held.by_cause()[Spent.OUTSIDE] > 0


@pytest.mark.parametrize("engine", ["path", "events"])
@pytest.mark.parametrize(
    "change", [{}, {"zero": 3, "pp": 1}, {"virtual_stages": 2}, {"overlap_dp": False}, {"zero": 2}]
)
def test_a_step_of_either_engine(engine, change):
    plan = Plan(**({"tp": 2, "pp": 2, "global_batch": 16} | change))
    step = simulate(SMALL, Cluster.of("h100-sxm-80gb", nodes=2), plan, engine)
    path = step.critical_path
    assert path.ticks == step.timeline.makespan == sum(path.by_cause().values())
    assert all(a.end == b.start for a, b in pairwise(path.segments))
    assert Spent.OUTSIDE not in path.by_cause()


def test_the_barrier_holds_a_rank_that_has_reduced():
    plan = Plan(tp=1, pp=4, global_batch=16, optimizer_barrier=True)
    step = simulate(SMALL, Cluster.of("h100-sxm-80gb", nodes=1), plan)
    update = step.critical_path.segments[-1]
    assert update.spent is Spent.OPTIMIZER
    assert update.held in (Held.BARRIER, Held.COLLECTIVE)


@settings(max_examples=10)
@given(st.integers(1, 4), st.integers(1, 8))
def test_contention_is_named(ranks, microbatches):
    plan = Plan(tp=2, pp=ranks if ranks != 3 else 2, global_batch=16 * microbatches, zero=1)
    step = simulate(SMALL, Cluster.of("l4", nodes=4), plan, "events")
    assert all(0 <= s.slowed <= s.ticks for s in step.critical_path.segments)
