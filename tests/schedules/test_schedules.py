"""The schedules: contract, the corpus of other generators' orders, refusals."""

import gzip
import json

import pytest

from sim.engine.events import run_events
from sim.engine.graph import DeadlockError
from sim.engine.path import run_path
from sim.engine.timeline import Durations
from sim.schedules import Action, IllegalScheduleError, Kind, Schedule, Shape, build
from tests.contracts.schedule import ScheduleContract
from tests.oracle import reference

PLAIN = tuple(Shape(p, m) for p in (1, 2, 4) for m in (1, 2, 4, 9))


class TestGPipe(ScheduleContract):
    name = "gpipe"
    shapes = PLAIN


class TestOneFOneB(ScheduleContract):
    name = "1f1b"
    shapes = PLAIN


class TestInterleaved(ScheduleContract):
    name = "interleaved"
    shapes = tuple(Shape(p, p * g, v) for p in (2, 4) for v in (2, 3) for g in (1, 2, 3))


class TestZBH1(ScheduleContract):
    name = "zb-h1"
    shapes = PLAIN


class TestZBH2(ScheduleContract):
    name = "zb-h2"
    shapes = PLAIN


class TestZB1P(ScheduleContract):
    name = "zb-1p"
    shapes = PLAIN
    exact_in_flight = False


class TestZB2P(ScheduleContract):
    name = "zb-2p"
    shapes = PLAIN
    exact_in_flight = False


OURS = {"torch/GPipe": "gpipe", "torch/1F1B": "1f1b", "zb/1F1B": "1f1b"} | dict.fromkeys(
    ("torch/Interleaved1F1B", "megatron/interleaved", "zb/VPP"), "interleaved"
)


def corpus():
    with gzip.open(reference("pipelines/schedules_corpus.json.gz")) as file:
        rows = json.load(file)["rows"]
    return [r for r in rows if r["schedule"] in OURS and "flag" not in r]


def shape_of(row):
    p, m, v = row["ranks"], row["microbatches"], row["stages_per_rank"]
    group = m // max(1, m // p) if row["schedule"].startswith("torch") else 0
    return Shape(p, m, v, row["params"].get("microbatch_group_size_per_vp_stage", 0) or (group if v > 1 else 0))


def test_orders_are_those_of_torch_megatron_and_zero_bubble():
    compared = 0
    for row in corpus():
        shape = shape_of(row)
        if 0 < row["microbatches"] % shape.group < row["ranks"] and OURS[row["schedule"]] == "interleaved":
            with pytest.raises(IllegalScheduleError, match="deadlock"):
                build(OURS[row["schedule"]], shape)
            continue
        order = build(OURS[row["schedule"]], shape)
        assert order.texts() == [" ".join(a for a in rank.split() if "REDUCE" not in a) for rank in row["actions"]]
        timeline = run_path(order, Durations.uniform(order.stages, {Kind.F: 1, Kind.B: 2}))
        assert timeline.makespan == row["check"]["makespan"]
        assert order.peak_in_flight() == row["check"]["peak_F_minus_B"]
        compared += 1
    assert compared == 166


@pytest.mark.parametrize(
    ("name", "shape", "field"),
    [
        ("zigzag", Shape(2, 2), "schedule"),
        ("1f1b", Shape(2, 2, 2), "virtual_stages"),
        ("gpipe", Shape(2, 2, 2), "virtual_stages"),
        ("interleaved", Shape(2, 2, 1), "virtual_stages"),
        ("interleaved", Shape(4, 8, 2, 2), "microbatch_group_size"),
        ("interleaved", Shape(4, 6, 2), "microbatches"),
        ("zb-h1", Shape(2, 2, 2), "virtual_stages"),
        ("zb-1p", Shape(2, 2, 2), "virtual_stages"),
        ("zb-2p", Shape(2, 2, memory_limit=0.5), "memory_limit"),
        ("zb-2p", Shape(2, 2, memory_limit=float("nan")), "memory_limit"),
        ("zb-h2", Shape(2, 2, memory_limit=3), "memory_limit"),
        ("zb-h1", Shape(2, 2, input_frees=1.5), "input_frees"),
        ("zb-1p", Shape(2, 2, input_frees=float("nan")), "input_frees"),
    ],
)
def test_refusals(name, shape, field):
    with pytest.raises(IllegalScheduleError) as caught:
        build(name, shape)
    assert caught.value.field == field


@pytest.mark.parametrize("engine", [run_path, run_events])
def test_a_deadlock_names_its_cycle(engine):
    first = (Action(0, Kind.F, 0), Action(0, Kind.B, 0), Action(0, Kind.F, 1), Action(0, Kind.B, 1))
    second = (Action(1, Kind.F, 1), Action(1, Kind.F, 0), Action(1, Kind.B, 0), Action(1, Kind.B, 1))
    with pytest.raises(DeadlockError, match="waits for") as caught:
        engine(Schedule("bad", 2, (0, 1), (first, second)), Durations.uniform(2, {Kind.F: 1, Kind.B: 2}))
    assert Action(1, Kind.F, 1) in caught.value.cycle
