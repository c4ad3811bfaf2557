"""The Chrome trace agrees with the timeline."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sim.engine.step import Step
from sim.report import save_trace, trace


def events(step: Step, folder: Path) -> list[dict[str, Any]]:
    """Return the events of a written trace."""
    target = save_trace(step, folder / "step.json")
    assert list(folder.iterdir()) == [target]
    found: list[dict[str, Any]] = json.loads(target.read_text("utf-8"))["traceEvents"]
    return found


def test_slices_are_the_timeline_and_do_not_overlap(step: Step, tmp_path: Path) -> None:
    slices = [e for e in events(step, tmp_path) if e["ph"] == "X"]
    assert len(slices) == len(step.timeline.start)
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(step.timeline.makespan * 1e-3)
    for rank in range(step.plan.pp):
        own = [e for e in slices if e["tid"] == rank]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(own))
        order = [e["name"] for e in own if e["cat"] == "compute"]
        assert " ".join(order) == step.timeline.schedule.texts()[rank]
    assert slices[0]["name"] == "0F0" and slices[0]["args"]["torch"] == "PP:0F0"


def test_counters_hold_the_peak_of_every_rank(step: Step, tmp_path: Path) -> None:
    counters = [e for e in events(step, tmp_path) if e["ph"] == "C"]
    for held in step.memory:
        own = [sum(e["args"].values()) for e in counters if e["name"] == f"memory of rank {held.rank} (GB)"]
        assert max(own) * 1e9 == pytest.approx(held.peak_bytes, rel=1e-5)


def test_threads_have_names(step: Step, tmp_path: Path) -> None:
    names = [e["args"]["name"] for e in events(step, tmp_path) if e["ph"] == "M" and e["name"] == "thread_name"]
    assert names == [f"pipeline rank {r}" for r in range(step.plan.pp)]


def test_a_trace_is_bounded_and_says_what_it_leaves_out(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_SLICES", 10)
    data = trace.trace_data(step)
    assert sum(e["ph"] == "X" for e in data["traceEvents"]) == 10
    assert data["otherData"]["slices_left_out"] == len(step.timeline.start) - 10
