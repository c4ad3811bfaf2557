"""The command that makes the notebook's table of executed plans, without executing any."""

import json

import pytest

from calibration.execute import evidence
from calibration.execute.cli import planned
from calibration.execute.holdout import Case, Row
from calibration.execute.measure import Measured, processes
from sim.specs import InputError
from sim.validation.executed import read_evidence
from sim.validation.traces import read_trace


def test_there_are_plans_of_every_kind_on_one_two_and_four_processes():
    plans = [job.plan for _, job in evidence.jobs()]
    assert len(plans) >= 12
    assert {processes(plan) for plan in plans} == {1, 2, 4}
    assert {plan.zero for plan in plans} == {0, 1, 2, 3}
    assert {plan.recompute for plan in plans} == {"none", "selective", "full"}
    assert {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "pipedream", "2bw"} <= {plan.schedule for plan in plans}
    assert evidence.TRACED in evidence.PLANS


def execute(job, setting, busy):
    """Return a plan as it was predicted, with traces of the two passes of a step where they are asked for."""
    del busy
    run, told = planned(job, "cpu")
    took = Measured(
        2 * told.step_time_s, 2.1 * told.step_time_s, setting.steps, (), told.peak_memory_bytes, told.bytes_sent, 1e-7,
        told.traffic, told.order, (2 * told.step_time_s, 2.2 * told.step_time_s),
    )  # fmt: skip
    for rank in range(processes(run.plan)) if setting.traces else ():
        step = [{"ph": "X", "name": f"PP:{rank}{kind}0", "ts": 5.0 + at, "dur": 2.0} for at, kind in enumerate("FB")]
        later = [event | {"ts": event["ts"] + 100.0} for event in step]
        other = {"ph": "X", "name": "aten::mm", "ts": 1.0, "dur": 1.0}
        text = json.dumps({"traceEvents": [other, *step, *later]})
        (setting.traces / f"trace-0-{rank}.json").write_text(text)
    return Row(Case("a", "step", job.model, run.plan), told, took)


@pytest.fixture
def injected(monkeypatch):
    """Nothing runs: what was predicted took twice as long, on a machine that has not drifted."""
    monkeypatch.setattr(evidence, "execute", execute)
    monkeypatch.setattr(evidence, "drift_since", lambda session: lambda: 1.0)


@pytest.mark.usefixtures("injected")
def test_plans_are_kept_in_order_and_replaced(tmp_path):
    out = tmp_path / "hardware.json"
    for name in (evidence.TRACED, "one process", "one process"):
        evidence.gather(out, lambda n, _, name=name: n == name)
    held = read_evidence(out).plans
    assert [one.name for one in held] == ["one process", evidence.TRACED]
    assert all(one.order_matches and one.traffic_matches and not one.shares_cores for one in held if one.cores >= 2)
    assert [one.error for one in held] == pytest.approx([-0.5, -0.5], rel=1e-4)
    assert [one.passes for one in held] == [0, 48]
    assert held[1].job()[1].schedule == "zb-h1"
    ((actions,),) = (read_trace(tmp_path / f"hardware-trace-{rank}.json").values() for rank in (1,))
    assert [(a.action, a.start_s, a.duration_s) for a in actions] == [("1F0", 0.0, 2e-6), ("1B0", 1e-6, 2e-6)]


def test_an_unknown_plan_is_refused(tmp_path):
    with pytest.raises(InputError, match="--only"):
        evidence.main(tmp_path / "x.json", only=["teleport"])


def test_a_busy_machine_is_asked_again(monkeypatch):
    said = iter(["busy", "busy", None])
    monkeypatch.setattr(evidence, "others", lambda: next(said))
    monkeypatch.setattr(evidence.time, "sleep", lambda s: None)
    assert evidence.patient() is None
    monkeypatch.setattr(evidence, "PATIENCE_S", 0.0)
    monkeypatch.setattr(evidence, "others", lambda: "busy")
    assert evidence.patient() == "busy"
