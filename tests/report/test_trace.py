"""Traces agree with the timeline, keep to their formats, and are the same bytes every time."""

import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sim.engine.step import Step, simulate
from sim.report import save_trace, trace, tracks
from sim.report.chrome import FIRST_THREAD
from sim.report.perfetto import message, varint
from sim.report.tracks import MESSAGES, STREAMS
from sim.specs import Plan
from tests.full import FULL
from tests.oracle import ROOT
from tests.report.conftest import CLUSTER, model
from tests.report.protobuf import decode, number, real, whole

Event = dict[str, Any]
PLANS = 200 if FULL else 4


@pytest.fixture(scope="module")
def contended() -> Step:
    """A step of the event engine, with collectives and messages of their own."""
    return simulate(model(), CLUSTER, Plan(tp=2, pp=2, virtual_stages=2, global_batch=16, zero=1), "events")


@pytest.fixture(params=["path", "events"])
def either(request: pytest.FixtureRequest, step: Step, contended: Step) -> Step:
    """A step of each engine."""
    return step if request.param == "path" else contended


def events(step: Step, folder: Path) -> list[Event]:
    """Return the events of a written trace."""
    target = save_trace(step, folder / "step.json")
    assert list(folder.iterdir()) == [target]
    found: list[Event] = json.loads(target.read_text("utf-8"))["traceEvents"]
    return found


def test_slices_are_the_timeline_and_do_not_overlap(step: Step, tmp_path: Path) -> None:
    slices = [e for e in events(step, tmp_path) if e["ph"] == "X"]
    assert len(slices) == len(step.timeline.start)
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(step.timeline.makespan * 1e-3)
    for rank in range(step.plan.pp):
        own = [e for e in slices if e["tid"] == FIRST_THREAD + rank]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(own))
        order = [e["name"] for e in own if e["cat"] == "compute"]
        assert " ".join(order) == step.timeline.schedule.texts()[rank]
    assert slices[0]["name"] == "0F0"
    assert slices[0]["args"]["torch"] == "PP:0F0"


def test_counters_hold_the_peak_of_every_rank(either: Step, tmp_path: Path) -> None:
    counters = [e for e in events(either, tmp_path) if e["ph"] == "C"]
    for held in either.memory:
        own = [sum(e["args"].values()) for e in counters if e["name"] == f"memory of pipeline rank {held.rank} (GB)"]
        assert max(own) * 1e9 == pytest.approx(held.peak_bytes, rel=1e-5)


def test_threads_have_names(step: Step, tmp_path: Path) -> None:
    names = [e["args"]["name"] for e in events(step, tmp_path) if e["ph"] == "M" and e["name"] == "thread_name"]
    assert names == [f"pipeline rank {r}" for r in range(step.plan.pp)]


def test_streams_of_the_event_engine_are_threads(contended: Step, tmp_path: Path) -> None:
    found = events(contended, tmp_path)
    names = defaultdict(set)
    for e in found:
        if e["ph"] == "M" and e["name"] == "thread_name":
            names[e["pid"]].add(e["args"]["name"])
    assert set(names) == {1, 2}
    assert {"actions", STREAMS[1], STREAMS[2], STREAMS[5], STREAMS[MESSAGES]} <= names[1]
    actions = [e for e in found if e["ph"] == "X" and "torch" in e["args"]]
    assert len(actions) == len(contended.timeline.start)
    assert {e["cat"] for e in found if e["ph"] == "X"} == {"compute", "communication", "optimizer"}


def test_chrome_events_keep_to_the_format(either: Step, tmp_path: Path) -> None:
    """Required fields, time in order, threads that do not overlap, flows that start, go on and finish in a slice."""
    found = events(either, tmp_path)
    timed = [e for e in found if e["ph"] != "M"]
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    assert {e["ph"] for e in found} <= set("MXCstf")
    assert all({"ph", "pid", "name"} <= e.keys() and isinstance(e["pid"], int) for e in found)
    assert all(isinstance(e["tid"], int) for e in found if e["ph"] in "Xstf")
    assert min(e["ts"] for e in timed) == 0
    threads: dict[int, list[Event]] = defaultdict(list)
    for e in found:
        if e["ph"] == "X":
            threads[e["tid"]].append(e)
    for own in threads.values():
        assert len({e["pid"] for e in own}) == 1
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(own))
    flows: dict[int, list[Event]] = defaultdict(list)
    for e in timed:
        if e["ph"] in "stf":
            assert any(x["ts"] <= e["ts"] <= x["ts"] + x["dur"] for x in threads[e["tid"]])
            flows[e["id"]].append(e)
    assert {"".join(e["ph"] for e in flow) for flow in flows.values()} == {"sf" if len(threads) == 4 else "stf"}
    assert all(flow[0]["pid"] != flow[-1]["pid"] or flow[0]["tid"] != flow[-1]["tid"] for flow in flows.values())


def test_every_message_between_ranks_is_an_arrow(either: Step) -> None:
    graph = either.timeline.graph
    starts = [e for e in trace.trace_data(either)["traceEvents"] if e["ph"] == "s"]
    assert len(starts) == (graph.boundary >= 0).sum() > 0


def test_a_trace_is_bounded_and_says_what_it_leaves_out(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_SLICES", 10)
    data = trace.trace_data(step)
    assert sum(e["ph"] == "X" for e in data["traceEvents"]) == 10
    assert data["otherData"]["slices_left_out"] == len(step.timeline.start) - 10
    phases = [e["ph"] for e in data["traceEvents"]]
    assert phases.count("s") == phases.count("f")


def test_slices_that_are_left_out_are_not_made(contended: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    made, plain = [], tracks.Slice
    monkeypatch.setattr(tracks, "Slice", lambda *fields: made.append(fields) or plain(*fields))
    held = tracks.tracks_of(contended, 50)
    assert len(held.slices) == 50 <= len(made) < 100 < held.left_out


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**64 - 1])
def test_varints(value: int) -> None:
    assert number(varint(value), 0) == (value, len(varint(value)))
    assert decode(message((5, value)))[5] == [value]


def test_messages_nest_and_keep_every_type() -> None:
    inner = message((1, "zwölf"), (2, -1), (3, 0.5))
    fields = decode(decode(message((300, inner)))[300][0])
    assert fields[1] == ["zwölf".encode()]
    assert fields[2] == [2**64 - 1]
    assert real(fields[3][0]) == 0.5


def packets(step: Step, folder: Path) -> list[dict[int, list[Any]]]:
    """Return the packets of a written Perfetto trace."""
    target = save_trace(step, folder / "step.pftrace")
    assert list(folder.iterdir()) == [target]
    fields = decode(target.read_bytes())
    assert set(fields) == {1}
    return [decode(p) for p in fields[1]]


def test_perfetto_holds_the_same_slices_as_chrome(either: Step, tmp_path: Path) -> None:
    found = [(p[8][0], decode(p[11][0])) for p in packets(either, tmp_path) if 11 in p]
    begins, opened = [], {}
    for at, event in found:
        track = event[11][0]
        if event[9] == [1]:
            assert track not in opened
            opened[track] = event[23][0].decode(), at
        elif event[9] == [2]:
            name, start = opened.pop(track)
            begins.append((start / 1e3, (at - start) / 1e3, name))
    assert not opened
    chrome = trace.trace_data(either)["traceEvents"]
    assert sorted(begins) == sorted((e["ts"], e["dur"], e["name"]) for e in chrome if e["ph"] == "X")


def test_arrows_do_not_go_back_in_time_to_a_rank_that_gathers_before_its_message_is_there() -> None:
    step = simulate(model(), CLUSTER, Plan(pp=2, zero=3, global_batch=64))
    flows: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for e in trace.trace_data(step)["traceEvents"]:
        if e["ph"] in "stf":
            flows[e["id"]].append((e["ph"], e["ts"]))
    assert len(flows) > 10
    assert all(dict(ends)["s"] <= dict(ends)["f"] for ends in flows.values())


def test_perfetto_tracks_are_described_before_they_are_used_and_flows_are_balanced(either: Step, tmp_path: Path):
    known, leaving, arriving = set(), [], []
    for p in packets(either, tmp_path):
        assert p[10] == [1]
        if 60 in p:
            track = decode(p[60][0])
            assert track[1][0] not in known
            assert all(parent in known for parent in track.get(5, []))
            known.add(track[1][0])
        else:
            event = decode(p[11][0])
            assert event[11][0] in known
            leaving += map(whole, event.get(47, []))
            arriving += map(whole, event.get(48, []))
    assert len(set(arriving)) == len(arriving) == (either.timeline.graph.boundary >= 0).sum()
    assert set(leaving) == set(arriving)


def test_perfetto_counters_hold_the_peaks(either: Step, tmp_path: Path) -> None:
    names, most = {}, defaultdict(float)
    for p in packets(either, tmp_path):
        if 60 in p:
            track = decode(p[60][0])
            group = names.get(track.get(5, [0])[0], "")  # a counter's parent is the group of its rank
            own = track.get(2, [b""])[0].decode()
            names[track[1][0]] = f"{group}: {own}" if 8 in track else own
        elif decode(p[11][0])[9] == [4]:
            event = decode(p[11][0])
            most[names[event[11][0]]] = max(most[names[event[11][0]]], real(event[44][0]))
    held = either.fullest
    for name, size in held.composition().items():
        assert most[f"memory of pipeline rank {held.rank}: {name}"] >= size * (1 - 1e-12)


SCRIPT = """
import hashlib, json, random, sys
import sim
from sim.report.perfetto import perfetto_trace
from sim.report.trace import trace_data
from sim.report.tracks import tracks_of
draw, seen = random.Random(int(sys.argv[1])), hashlib.sha256()
model = sim.Model(name="small", layers=16, hidden=1024, heads=16, seq=512)
cluster = sim.Cluster.of("a100-sxm-80gb", nodes=2)
for _ in range(int(sys.argv[2])):
    pp = draw.choice([1, 2, 4])
    chunks = draw.choice([1, 2]) if pp > 1 else 1
    plan = sim.Plan(
        tp=draw.choice([1, 2]), pp=pp, virtual_stages=chunks, global_batch=16 * draw.choice([1, 2, 4]),
        zero=draw.choice([0, 1, 2, 3]) if pp == 1 else draw.choice([0, 1]),
        schedule="interleaved" if chunks == 2 else draw.choice(["gpipe", "1f1b", "zb-h1"]) if pp > 1 else None,
    )
    step = sim.simulate(model, cluster, plan, draw.choice(["path", "events"]))
    seen.update(json.dumps(trace_data(step)).encode() + perfetto_trace(tracks_of(step, 10**6)))
sys.stdout.write(seen.hexdigest())
"""


@pytest.mark.slow
def test_traces_are_the_same_bytes_in_every_process() -> None:
    """Random plans, in processes under one hash seed and under another."""
    found = set()
    for seed in ("0", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT, "7", str(PLANS)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr[-2000:]
        found.add(run.stdout)
    assert len(found) == 1
    assert len(found.pop()) == hashlib.sha256().digest_size * 2
