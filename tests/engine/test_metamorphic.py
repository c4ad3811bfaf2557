"""What must hold between two runs of one order, on both engines, for every kind and any durations."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.events import run_events, run_events_of
from sim.engine.graph import Graph
from sim.engine.memory import Footprint, memory_timelines
from sim.engine.noise import replicated
from sim.engine.path import run_path, run_program
from sim.engine.program import Program
from sim.engine.timeline import Durations
from sim.schedules import Action, Kind
from tests.engine.problems import problems, program_of
from tests.schedules.split import merge_backward, split_backward

both_runners = pytest.mark.parametrize("run", [run_program, run_events_of])
both_engines = pytest.mark.parametrize("engine", [run_path, run_events])
FACTOR = st.integers(1, 50)


def changed(d, kinds=tuple(Kind), factor=1, message=1, divide=1):
    """Return durations with some kinds and the messages multiplied (or divided and rounded down)."""
    of_kind = {k: v * factor // divide if k in kinds else v for k, v in d.of_kind.items()}
    return Durations(of_kind, d.message * message // divide)


@both_engines
@given(problems(), FACTOR)
def test_time_scales(engine, problem, factor):
    order, d = problem
    one, scaled = engine(order, d), engine(order, changed(d, factor=factor, message=factor))
    assert (scaled.start == factor * one.start).all()
    assert (scaled.end == factor * one.end).all()


@both_engines
@given(problems(), FACTOR)
def test_more_bandwidth_is_never_slower(engine, problem, factor):
    order, d = problem
    slower = engine(order, changed(d, factor=1, message=factor))
    assert (engine(order, d).end <= slower.end).all()


@both_engines
@given(problems(), st.sampled_from([Kind.F, Kind.I, Kind.W, Kind.B]), FACTOR)
def test_faster_devices_are_never_slower(engine, problem, kind, factor):
    order, d = problem
    slower = engine(order, changed(d, kinds=(kind,), factor=factor))
    assert (engine(order, d).end <= slower.end).all()


@both_engines
@given(problems(), st.integers(0, 7), FACTOR)
def test_one_slower_stage_delays_by_no_more_than_its_own_extra(engine, problem, stage, extra):
    order, d = problem
    stage %= order.stages
    slower = {kind: ticks + extra * (np.arange(order.stages) == stage) for kind, ticks in d.of_kind.items()}
    actions = sum(action.stage == stage for rank in order.actions for action in rank)
    delay = engine(order, Durations(slower, d.message)).makespan - engine(order, d).makespan
    assert 0 <= delay <= actions * extra


@both_engines
@given(problems(), FACTOR)
def test_latency_delays_by_no_more_than_the_messages_of_a_path(engine, problem, latency):
    order, d = problem
    later = Durations(d.of_kind, d.message + latency)
    # A path takes an action at most once, and with each at most one message.
    actions = sum(map(len, order.actions))
    assert 0 <= engine(order, later).makespan - engine(order, d).makespan <= latency * actions


@both_engines
@given(problems(), st.randoms())
def test_equal_devices_may_change_places(engine, problem, random):
    order, d = problem
    place = list(range(order.ranks))
    random.shuffle(place)
    moved = replace(
        order,
        actions=tuple(order.actions[place.index(r)] for r in range(order.ranks)),
        fused=tuple(order.fused[place.index(r)] for r in range(order.ranks)),
        rank_of=tuple(place[r] for r in order.rank_of),
    )
    one, other = engine(order, d), engine(moved, d)
    assert one.makespan == other.makespan
    assert one.spans().tolist() == other.spans()[place].tolist()


@both_engines
@given(problems())
def test_no_run_beats_its_busiest_rank_or_one_microbatch(engine, problem):
    order, d = problem
    timeline = engine(order, d)
    one = sum(int((d.of_kind[Kind.F] + d.of_kind[Kind.I])[s]) for s in range(order.depth))
    assert timeline.makespan >= max(timeline.busy().max(), one if order.pipelines == 1 else 0)
    assert (timeline.spans() >= timeline.busy()).all()
    assert timeline.makespan <= timeline.busy().sum() + d.message.max() * sum(map(len, order.actions))


@both_engines
@given(problems())
def test_splitting_backwards_is_never_slower(engine, problem):
    order, d = problem
    whole = merge_backward(order)
    assert engine(split_backward(whole), d).makespan <= engine(whole, d).makespan


def with_update(order, barrier):
    end = Kind.REDUCE_GRAD, Kind.OPTIMIZER
    actions = tuple(rank + tuple(Action(r, k, -1) for k in end) for r, rank in enumerate(order.actions))
    return replace(order, actions=actions, barrier=barrier)


@both_engines
@given(problems())
def test_a_barrier_is_never_faster_and_holds_everyone(engine, problem):
    order, d = problem
    free, held = (engine(with_update(order, barrier), d) for barrier in (False, True))
    assert (free.end <= held.end).all()
    update, reduce = (held.graph.kind == kind for kind in (Kind.OPTIMIZER, Kind.REDUCE_GRAD))
    assert held.start[update].min() >= held.end[reduce].max()
    assert free.period <= held.period


@both_runners
@given(problems())
def test_backwards_in_time_takes_as_long(run, problem):
    program = program_of(problem)
    assert run(program).makespan == run(reversed_in_time(program)).makespan


def reversed_in_time(program):
    """Return the operations in the opposite order, every edge turned round."""
    g, n = program.graph, len(program)
    waiting = np.repeat(np.arange(n), np.diff(g.first))
    to, source = n - 1 - g.source, n - 1 - waiting
    order = np.argsort(to, kind="stable")
    graph = Graph(
        g.rank[::-1], g.stage[::-1], g.kind[::-1], g.microbatch[::-1], g.lane[::-1].max() - g.lane[::-1],
        np.searchsorted(to[order], np.arange(n + 1)), source[order], g.boundary[order], np.zeros(n, dtype=bool),
    )  # fmt: skip
    return Program(graph, program.duration[::-1].copy(), program.lag[order])


@both_runners
@given(problems(), st.integers(1, 4))
def test_equal_replicas_are_as_one(run, problem, copies):
    program = program_of(problem)
    joint = program.graph.kind == Kind.W
    many = replicated(replace(program, duration=np.tile(program.duration, copies)), joint, copies)
    assert run(many).end.reshape(copies, -1).tolist() == [run(program).end.tolist()] * copies


@both_runners
@given(problems(), st.integers(0, 2), FACTOR)
def test_a_slow_replica_delays_the_others_where_they_meet_and_only_there(run, problem, slow, factor):
    order, d = problem
    program = program_of((with_update(order, True), d))
    joint = program.graph.kind == Kind.REDUCE_GRAD
    duration = np.tile(program.duration, 3).reshape(3, -1)
    duration[slow] *= factor
    many = replicated(replace(program, duration=duration.ravel()), joint, 3)
    end = run(many).end.reshape(3, -1)
    alone = run(program).end
    assert (end >= alone).all()
    before = program.graph.microbatch >= 0
    other = (slow + 1) % 3
    assert (end[other][before] == alone[before]).all()
    reduce = np.flatnonzero(joint)
    assert ((end - duration)[:, reduce] == (end - duration)[0, reduce]).all()


@both_engines
@given(problems())
def test_what_is_allocated_is_freed(engine, problem):
    order, d = problem
    footprint = Footprint(({},) * order.ranks, (1.0,) * order.stages, (0.0,) * order.stages)
    for held in memory_timelines(engine(order, d), footprint):
        assert held.activations[-1] == pytest.approx(0, abs=1e-9)
        assert held.activations.min() >= -1e-9
