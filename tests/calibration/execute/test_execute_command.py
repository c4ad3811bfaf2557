"""`trainsim execute`: what it prints, and what it refuses."""

import errno
import json
import os
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from calibration.execute import cli, processes
from calibration.execute.holdout import Case, Row
from calibration.execute.limits import as_executed
from calibration.execute.measure import Measured
from calibration.execute.predict import assumptions, predict
from calibration.execute.processes import ExecutionError
from calibration.instruments import usable_cores
from calibration.spot_check import SpotCheck
from sim.engine.step import simulate
from sim.plans.plan_file import load_plan, plan_data
from sim.specs import InputError
from sim.units import seconds
from tests.calibration.execute.cases import SMALL, cluster, job, plan, profile
from tests.full import FULL

RUN = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of a made-up core."""
    return profile(tmp_path_factory.mktemp("profiles") / "core")


@pytest.mark.slow
def test_predicted_and_measured_figures_stand_side_by_side(tmp_path, folder):
    done = RUN.invoke(cli.app, [str(job(tmp_path, folder)), "--despite-load", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    for side in ("predicted", "measured"):
        assert {"step_time_s", "peak_memory_bytes", "bytes_sent", "max_gradient_error"} <= told[side].keys()
        assert len(told[side]["peak_memory_bytes"]) == len(told[side]["bytes_sent"]) == 2
    assert told["measured"]["max_gradient_error"] < 1e-5
    assert told["predicted"]["bytes_sent"] == told["measured"]["bytes_sent"] == [4.0 * SMALL.parameters] * 2
    assert told["errors"]["bytes_sent"] == [0.0, 0.0]
    assert told["errors"]["step_time_s"] == told["predicted"]["step_time_s"] / told["measured"]["step_time_s"] - 1
    assert max(abs(e) for e in told["errors"]["peak_memory_bytes"]) < 0.2
    assert told["executed_as"]["dp"] == 2 and told["executed_as"]["core_modules"] is False


def test_a_busy_machine_is_refused_with_exit_code_1(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(cli, "others", lambda: "the machine is busy: others use 80%")
    done = RUN.invoke(cli.app, [str(job(tmp_path, folder))])
    assert done.exit_code == 1
    assert "others use 80%" in done.stderr
    assert not done.stdout


def test_a_plan_executed_on_a_busy_machine_says_so(tmp_path, folder, monkeypatch):
    told = predict(SMALL, cluster(folder, 2), plan(dp=2), cores=usable_cores())
    took = Measured(1.0, 1.0, 10, (), told.peak_memory_bytes, told.bytes_sent, 1e-7, told.traffic, told.order)
    monkeypatch.setattr(cli, "measure_all", lambda runs, setting: [replace(took, host_bytes=told.host_bytes)])
    monkeypatch.setattr(cli, "beside", lambda run: (run(), 0.45))
    given = [str(job(tmp_path, folder)), "--despite-load"]
    assert json.loads(RUN.invoke(cli.app, [*given, "--json"]).stdout)["load"] == 0.45
    assert "the machine was busy: others used 45 % of it" in " ".join(RUN.invoke(cli.app, given).stdout.split())


def test_processes_share_the_cores_that_they_may_use(tmp_path, folder, monkeypatch):
    """A container, or taskset, may allow fewer than the machine has."""
    held, seen = load_plan(job(tmp_path, folder)).job, {}
    for cores in (1, 2):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        _, seen[cores] = cli.planned(held, "cpu")
    assert (seen[1].crowded_factor > 1.5, seen[2].crowded_factor) == (True, 1.0)


def test_a_failing_process_is_one_line(tmp_path, folder, monkeypatch):
    def fails(*_: object) -> None:
        raise ExecutionError("process 1 of 2 died with exit code 1: out of cheese")

    monkeypatch.setattr(cli, "measure_all", fails)
    done = RUN.invoke(cli.app, [str(job(tmp_path, folder)), "--despite-load"])
    assert done.exit_code == 1
    assert done.stderr.strip() == "error: process 1 of 2 died with exit code 1: out of cheese"


@pytest.mark.parametrize(
    ("change", "said"),
    [({"cp": 2}, "plan.cp"), ({"precision": "bf16"}, "plan.precision"), ({"gradient_dtype": "bf16"}, "gradient_dtype")],
)
def test_what_cannot_be_run_is_refused(tmp_path, folder, change, said):
    done = RUN.invoke(cli.app, [str(job(tmp_path, folder, **change)), "--despite-load"])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)


@pytest.mark.parametrize("option", [("--steps", "10001"), ("--seed", str(2**64)), ("--timeout-s", "inf")])
def test_what_no_process_can_be_told_is_refused_before_one_starts(tmp_path, folder, monkeypatch, option):
    monkeypatch.setattr(cli, "measure_all", lambda *_: pytest.fail("started"))
    done = RUN.invoke(cli.app, [str(job(tmp_path, folder)), "--despite-load", *option])
    assert done.exit_code == 2
    assert option[0] in done.stderr


def test_a_job_without_a_plan_is_refused(tmp_path, folder):
    path = job(tmp_path, folder)
    held = json.loads(path.read_text())
    del held["plan"]
    path.write_text(json.dumps(held))
    done = RUN.invoke(cli.app, [str(path), "--despite-load"])
    assert str(done.exception).startswith("plan: missing")


def test_the_cluster_must_be_of_the_kind_that_runs(tmp_path, folder):
    path = job(tmp_path, folder)
    held = json.loads(path.read_text())
    held["cluster"]["device"] = "h100-sxm-80gb"
    path.write_text(json.dumps(held))
    done = RUN.invoke(cli.app, [str(path), "--despite-load"])
    assert "cluster.device" in str(done.exception)


def test_a_profile_of_another_machine_is_said_and_its_interval_reaches_to_this_one(tmp_path, folder, monkeypatch):
    told = predict(SMALL, cluster(folder, 2), plan(dp=2), cores=usable_cores())
    took = 2 * told.interval_s[1]
    same = Measured(took, took, 10, (), told.peak_memory_bytes, told.bytes_sent, 1e-7, told.traffic, told.order)
    same = replace(same, host_bytes=told.host_bytes)
    monkeypatch.setattr(cli, "measure_all", lambda runs, setting: [same])
    given = [str(job(tmp_path, folder)), "--despite-load"]
    done = RUN.invoke(cli.app, [*given, "--json"])
    assert done.exit_code == 0, done.exception
    plain = json.loads(done.stdout)
    assert plain["spot_check"] is None and not plain["errors"]["inside_interval"]
    monkeypatch.setattr(cli, "_checked", lambda name: SpotCheck(name, {"gemm": 3.0, "norm": 3.0}))
    found = json.loads(RUN.invoke(cli.app, [*given, "--json"]).stdout)
    low, high = plain["predicted"]["interval_s"]
    assert found["predicted"]["interval_s"] == pytest.approx([low, 3 * high])
    assert found["errors"]["inside_interval"] and found["spot_check"]["typical"] == 3.0
    assert found["errors"]["step_time_s"] == plain["errors"]["step_time_s"]
    assert "predictions are of that machine" in RUN.invoke(cli.app, given).stdout


def test_a_pipeline_leaves_its_measured_order_over_the_simulated_one(tmp_path, folder):
    traces = tmp_path / "traces"
    path = job(tmp_path, folder, pp=2, schedule="1f1b", dp=1)
    done = RUN.invoke(cli.app, [str(path), "--despite-load", "--json", "--traces", str(traces), "--port", "0"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["measured"]["order_matches"] is told["errors"]["traffic_matches"] is True
    assert told["predicted"]["traffic"] == told["measured"]["traffic"]
    assert "measured.html" in done.stderr
    page = (traces / "measured.html").read_text()
    assert "18\\u00a0actions measured" in page  # 16 passes, a reduction on each rank
    assert len(list(traces.glob("trace-0-*.json"))) == 2


@pytest.mark.parametrize("task", [(), ("--task", "task")])
def test_traces_of_a_plan_without_a_pipeline_are_refused_before_it_is_run(tmp_path, folder, monkeypatch, task):
    monkeypatch.setattr(cli, "measure_all", lambda *_: pytest.fail("started"))
    monkeypatch.chdir(tmp_path)
    done = RUN.invoke(cli.app, [str(job(tmp_path, folder)), "--despite-load", "--traces", "traces", *task])
    assert isinstance(done.exception, InputError) and done.exception.path == "--traces"
    assert not (tmp_path / "traces").exists() and not (tmp_path / "task").exists()


def test_the_table_tells_of_every_process(folder):
    given = plan(pp=2, schedule="1f1b")
    told = predict(SMALL, cluster(folder, 2), given)
    same = Measured(1.0, 1.0, 10, (), told.peak_memory_bytes, told.bytes_sent, 1e-7, told.traffic, told.order)
    other = replace(same, order=told.order[::-1], traffic=told.traffic[::-1])
    texts = []
    for measured in (same, other):
        console = Console(record=True, width=200, file=StringIO())
        console.print(cli.by_process(Row(Case("a", "step", SMALL, given), told, measured)))
        texts.append(console.export_text())
    assert texts[0].count("as planned") == texts[0].count(", exactly as predicted") == 2
    assert "4 pp send 0>1" in texts[0]
    assert "1e-07 of the largest" in texts[0]
    assert texts[1].count("another") == texts[1].count(", not as predicted") == 2


def test_a_task_for_torchrun_is_written_and_its_command_printed(tmp_path, folder):
    task = tmp_path / "a task"
    done = RUN.invoke(cli.app, [str(job(tmp_path, folder, pp=2, schedule="zb-h1")), "--task", str(task)])
    assert done.stdout.strip() == f"torchrun --nproc-per-node 2 -m calibration.execute.worker '{task}'"
    assert json.loads((task / "task.json").read_text())["runs"][0]["order"] == "order-0.csv"
    assert (task / "order-0.csv").read_text().startswith("0F0,0F1,")
    given = [str(job(tmp_path, folder)), "--task", str(tmp_path / "other")]
    told = json.loads(RUN.invoke(cli.app, [*given, "--json"]).stdout)
    assert told["path"] == given[-1] and told["command"].startswith("torchrun --nproc-per-node 2 ")
    refused = RUN.invoke(cli.app, [*given, "--learn"]).exception
    assert isinstance(refused, InputError) and refused.path == "--learn"


@pytest.mark.parametrize("option", ["--task", "--traces"])
def test_a_folder_that_cannot_be_made_is_one_error(tmp_path, folder, monkeypatch, option):
    monkeypatch.setattr(cli, "others", lambda: None)
    done = RUN.invoke(cli.app, [str(job(tmp_path, folder, pp=2, schedule="zb-h1")), option, "/proc/none"])
    assert isinstance(done.exception, InputError) and done.exception.path == option


@pytest.mark.parametrize(("option", "fits"), [("--task", 1), ("--traces", 1), ("--traces", 2)])
def test_a_full_disk_leaves_no_folder(tmp_path, folder, monkeypatch, option, fits):
    """So many files still fit: of a task and its order, or of two traces and their page."""
    new, given, write = tmp_path / "new", job(tmp_path, folder, pp=2, schedule="1f1b", dp=1), Path.write_bytes
    room = [None] * fits

    def until_full(draft, content):
        if new in draft.parents:
            if not room:
                draft.touch()
                raise OSError(errno.ENOSPC, "no room")
            room.pop()
        return write(draft, content)

    monkeypatch.setattr(Path, "write_bytes", until_full)
    done = RUN.invoke(cli.app, [str(given), "--despite-load", option, str(new / "deep")])
    assert isinstance(done.exception, OSError) and done.exception.errno == errno.ENOSPC
    assert not room and not new.exists()


def test_a_run_that_dies_leaves_no_folder_for_its_traces(tmp_path, folder, monkeypatch):
    def dies(*_):
        raise ExecutionError("process 0 of 2 died with exit code 1: no")

    monkeypatch.setattr(processes, "_wait", dies)
    given = job(tmp_path, folder, pp=2, schedule="1f1b", dp=1)
    done = RUN.invoke(cli.app, [str(given), "--despite-load", "--traces", str(tmp_path / "new" / "deep")])
    assert done.exit_code == 1 and not (tmp_path / "new").exists()


def test_a_plan_file_whose_order_was_changed_is_not_executed(tmp_path, folder):
    step = simulate(SMALL, cluster(folder, 2), plan(pp=2, schedule="1f1b"))
    held = plan_data(step)
    held["order"]["ranks"][0] = held["order"]["ranks"][0].replace("0F0 0F1", "0F1 0F0")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(held))
    done = RUN.invoke(cli.app, [str(path), "--task", str(tmp_path / "task")])
    assert isinstance(done.exception, InputError) and done.exception.path == "order.ranks.0"
    assert not (tmp_path / "task").exists()


def test_what_is_executed_otherwise_than_planned_is_said_where_it_takes_another_time(tmp_path, folder):
    """PyTorch's ZeRO-1 reduces gradients after the backward; messages in parts need a pipeline to tell."""
    planned = plan(dp=2, zero=1).but(overlap_dp=True, scatter_gather=True)
    (said,) = assumptions(SMALL, cluster(folder, 2), planned, as_executed(planned))
    times = [simulate(SMALL, cluster(folder, 2), each).step_time_s for each in (planned, as_executed(planned))]
    assert times[0] < times[1] and f"{seconds(times[0])} instead of {seconds(times[1])}" in said
    assert "overlap_dp false" in said and "scatter_gather" not in said
    same = planned.but(zero=0)
    assert assumptions(SMALL, cluster(folder, 2), same, as_executed(same)) == ()
    pieces = plan(tp=2).but(tp_comm_overlap=True)
    (said,) = assumptions(SMALL, cluster(folder, 2), pieces, as_executed(pieces))
    assert "tp_comm_overlap false" in said
    if FULL:  # another launch, for what the command passes on
        done = RUN.invoke(cli.app, [str(job(tmp_path, folder, zero=1, overlap_dp=True)), "--despite-load", "--json"])
        assert json.loads(done.stdout)["assumptions"] == [said]
