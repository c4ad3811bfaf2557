"""The comparison, and evidence that goes on where it ended."""

import json
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from calibration.cluster import cli, evidence
from calibration.cluster.compare import compared
from calibration.cluster.measure import Measured, scheduled
from calibration.cluster.networks import NETWORKS
from calibration.cluster.results import read_evidence
from calibration.cluster.rounds import run_rounds
from sim.cluster.simulate import Rounds
from sim.specs.fields import InputError
from tests.calibration.cluster import test_rounds
from tests.calibration.cluster.test_rounds import Clock, Fake, Saved
from tests.cluster.toys import job, speeds

JOBS = (job(6_100, name="a"), job(4_200, name="b"), job(3_300, name="c"))
RATES = {"fast": 400.0, "slow": 200.0}
KNOWN = speeds(**{one.job_type: list(RATES.values()) for one in JOBS})


@pytest.fixture(autouse=True)
def quick_moves(monkeypatch):
    """What the simulation does not know, placing a job for the first time, hardly takes time."""
    monkeypatch.setattr(test_rounds, "SAVE_S", 0.01)
    monkeypatch.setattr(test_rounds, "LOAD_S", 0.02)


def faked(rule="max_min_fairness_perf", load=0.0, slower=1.0, told=str):
    """Return what slots do that run at their throughputs over `slower`, on a clock of their own."""
    clock, saved = Clock(), Saved()
    slots = {name: Fake(clock, saved, rate / slower) for name, rate in RATES.items()}
    assign = scheduled(JOBS, KNOWN, rule, Rounds(round_s=5.0, reset_s=0, switch_s=0), clock)
    ran = run_rounds(slots, {one.job_type: one.steps for one in JOBS}, assign, 5.0, clock, clock.wait)
    return Measured(JOBS, KNOWN, rule, 5.0, ran, load)


@pytest.mark.parametrize("rule", evidence.POLICIES)
def test_what_runs_as_simulated_has_small_errors(rule):
    case = compared(faked(rule))
    assert case.switch_s == pytest.approx(0.03)
    assert case.moves_measured == case.moves_simulated > 0
    assert 0 < case.mean_error_percent < 0.5
    assert all(abs(one.error_percent) < 0.5 for one in case.slots)


def test_slots_slower_than_measured_show():
    case = compared(faked("fifo_perf", slower=1.25))
    assert case.jobs[0].error_percent == pytest.approx(-20, abs=0.5)  # it has the fast slot to itself
    assert case.makespan.error_percent < -5  # whole rounds hide some of it


def test_evidence_goes_on_and_repeats_busy_runs(monkeypatch, tmp_path):
    out, loads, asked = tmp_path / "found.json", iter([0.0, 0.3, 0.2, 0.4, 0.5, 0.05, 0.0]), []

    def measured(rule, told):
        asked.append(rule)
        return faked(rule, next(loads))

    monkeypatch.setattr(evidence, "measured", measured)
    monkeypatch.setattr(evidence, "REPETITIONS", 1)
    monkeypatch.setattr(evidence, "monotonic", iter([0.0, 1.0, 11.0, 12.0]).__next__)
    evidence.gather(out, 10.0, str)
    assert len(read_evidence(out).cases) == 1
    monkeypatch.setattr(evidence, "monotonic", lambda: 0.0)
    found = evidence.gather(out, 10.0, str)
    fair, fifo, finish = evidence.POLICIES
    assert asked == [fair, *[fifo] * 3, *[finish] * 2]
    assert [case.load for case in found.cases] == [0.0, 0.2, 0.05]
    kept = read_evidence(out)
    assert [(row.policy, row.job) for row in kept.rows] == [
        (rule, name) for rule in evidence.POLICIES for name in "abc"
    ]
    assert any(line.startswith("fifo_perf: completion times off by") for line in kept.lines())


def test_the_stored_evidence_is_whole():
    found = read_evidence(Path(__file__).parents[3] / "notebooks" / "data" / "cluster-real.json")
    wanted = {(rule, n) for n in range(1, evidence.REPETITIONS + 1) for rule in evidence.POLICIES}
    assert {(case.policy, case.repetition) for case in found.cases} == wanted
    assert {row.job for row in found.rows} == set(NETWORKS)


def test_wrong_files_are_told(tmp_path):
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"command": "x", "date": "x", "machine": "x", "software": "x", "cases": [{}]}))
    with pytest.raises(InputError, match="cases"):
        read_evidence(path)


def test_the_table_says_errors_and_moves(monkeypatch):
    monkeypatch.setattr(cli, "measured", lambda rule, told, **_: faked(rule, load=0.3))
    app = typer.Typer()
    app.command()(cli.measure_command)
    run = partial(CliRunner().invoke, app, catch_exceptions=False)
    ended = run(["--policy", "fifo_perf"])
    assert "fifo_perf: done after" in ended.stdout
    assert "the machine was busy: others used 30\u00a0%" in ended.stderr
    data = json.loads(run(["--policy", "fifo_perf", "--json"]).stdout)
    assert data["moves_simulated"] == data["moves_measured"]
    assert data["makespan"]["measured_s"] == max(one["measured_s"] for one in data["completion"].values())
