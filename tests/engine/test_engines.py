"""Both engines: agreement on every action, exact ticks, bubbles by both definitions."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.critical import Held, critical_path
from sim.engine.events import run_events
from sim.engine.path import run_path
from sim.engine.timeline import Durations, exact_ticks
from sim.schedules import Kind, Shape, build
from tests.oracle import reference

TICKS = st.integers(1, 1_000)


@st.composite
def shapes(draw):
    name = draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
    p = draw(st.integers(2 if name == "interleaved" else 1, 6))
    v = draw(st.integers(2, 3)) if name == "interleaved" else 1
    m = p * draw(st.integers(1, 4)) if name == "interleaved" else draw(st.integers(1, 12))
    return name, Shape(p, m, v)


@st.composite
def problems(draw):
    name, shape = draw(shapes())
    stages = shape.ranks * shape.chunks
    column = st.lists(TICKS, min_size=stages, max_size=stages).map(np.array)
    return build(name, shape), Durations({Kind.F: draw(column), Kind.B: draw(column)}, draw(column))


@given(problems())
def test_engines_agree_on_every_start_and_end(problem):
    order, durations = problem
    path, events = run_path(order, durations), run_events(order, durations)
    assert (path.start == events.start).all()
    assert (path.end == events.end).all()


@given(problems())
def test_nothing_overlaps_on_a_rank_and_data_arrives_first(problem):
    order, durations = problem
    t = run_path(order, durations)
    same = t.graph.previous >= 0
    assert (t.start[same] >= t.end[t.graph.previous[same]]).all()
    waiting = np.repeat(np.arange(len(t.graph)), np.diff(t.graph.first))
    assert (t.start[waiting] >= t.end[t.graph.source] + t.run.program.lag).all()


@given(problems(), st.integers(1, 50))
def test_scaling_time_scales_the_makespan(problem, factor):
    order, d = problem
    scaled = Durations({k: v * factor for k, v in d.of_kind.items()}, d.message * factor)
    assert run_path(order, scaled).makespan == factor * run_path(order, d).makespan


def test_messages_of_a_rank_leave_one_after_the_other():
    """A pass takes 1, a message 5: the second waits for the first, and the lags say so."""
    order = build("gpipe", Shape(2, 3))
    times = Durations.uniform(2, {Kind.F: 1, Kind.B: 2}, message=5)
    t = run_path(order, replace(times, sending=times.message))
    second = (t.graph.rank == 1) & (t.graph.kind == Kind.F)
    assert t.start[second].tolist() == [6, 11, 16]
    assert run_path(order, times).start[second].tolist() == [6, 7, 8]
    back = (t.graph.rank == 0) & (t.graph.kind == Kind.B)
    assert t.start[back].tolist() == [24, 29, 34]
    path = critical_path(t.run)
    assert path.ticks == t.makespan and {s.held for s in path.segments} <= {
        Held.START,
        Held.RANK,
        Held.MESSAGE,
        Held.DATA,
    }


@given(problems())
def test_messages_that_never_meet_change_nothing(problem):
    order, durations = problem
    queued = run_path(order, replace(durations, sending=durations.message))
    alone = run_path(order, durations)
    assert (queued.start >= alone.start).all()
    if (queued.run.program.lag == alone.run.program.lag).all():
        assert (queued.end == alone.end).all()
    busy = replace(durations, message=np.zeros_like(durations.message))
    assert (run_path(order, replace(busy, sending=busy.message)).end == run_path(order, busy).end).all()


def test_events_as_a_log():
    order = build("1f1b", Shape(2, 2))
    t = run_events(order, Durations.uniform(2, {Kind.F: 1, Kind.B: 2}, message=1))
    log = sorted((int(t.start[i]), int(t.graph.rank[i]), str(t.action(i))) for i in range(len(t.graph)))
    assert log == [
        (0, 0, "0F0"), (1, 0, "0F1"), (2, 1, "1F0"), (3, 1, "1B0"),
        (5, 1, "1F1"), (6, 0, "0B0"), (6, 1, "1B1"), (9, 0, "0B1"),
    ]  # fmt: skip


def test_both_bubbles_of_1f1b():
    t = run_path(build("1f1b", Shape(4, 8)), Durations.uniform(4, {Kind.F: 1, Kind.B: 2}))
    assert t.bubble_makespan() == pytest.approx(3 / 8)
    assert t.bubble_fraction() == pytest.approx(3 / 11)
    assert t.bubble_rank_span() == pytest.approx(3 / 11)


def test_decimals_become_exact_ticks():
    assert exact_ticks({"F": "1", "B": "2.5", "comm": "0.1"}) == {"F": 10, "B": 25, "comm": 1}
    with pytest.raises(ValueError, match="F: got -1"):
        exact_ticks({"F": "-1"})


def test_published_bubble_rates_of_1f1b():
    """Zero Bubble (arXiv 2401.10241) Tables 5 and 9: measured durations give the published rate to four digits."""
    rows = list(csv.DictReader(reference("pipelines/zero_bubble_oracle.csv").open()))
    assert len(rows) == 6
    for row in rows:
        p, m = int(row["p"]), int(row["m"])
        t = exact_ticks({k: row[k] for k in ("TF_ms", "TB_ms", "TW_ms", "Tcomm_ms")})
        table = {Kind.F: t["TF_ms"], Kind.B: t["TB_ms"] + t["TW_ms"]}
        run = run_path(build("1f1b", Shape(p, m)), Durations.uniform(p, table, t["Tcomm_ms"]))
        assert run.bubble_rank_span() == pytest.approx(float(row["bubble_1F1B"]), abs=5e-5)


def test_published_bubble_rates_of_interleaved_1f1b():
    """The same tables: a chunk is 1/v of a stage, and p messages do not count."""
    for row in csv.DictReader(reference("pipelines/zero_bubble_oracle.csv").open()):
        p, m, v = (int(row[k]) for k in ("p", "m", "vpp_chunks_used_to_reproduce_1F1BI"))
        t = exact_ticks({k: row[k] for k in ("TF_ms", "TB_ms", "TW_ms", "Tcomm_ms")})
        table = {Kind.F: t["TF_ms"], Kind.B: t["TB_ms"] + t["TW_ms"]}
        message = v * t["Tcomm_ms"]  # in the unit in which a chunk takes what a stage took
        run = run_path(build("interleaved", Shape(p, m, v)), Durations.uniform(p * v, table, message))
        span = run.spans().max() - p * message
        assert 1 - run.busy().max() / span == pytest.approx(float(row["bubble_1F1BI"]), abs=5e-5)
