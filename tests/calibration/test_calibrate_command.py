"""`trainsim calibrate --device`: options, refusals, and what is in the folder afterwards."""

import csv
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from calibration import cli, measuring
from calibration.cli import _run_level, app
from calibration.collectives import Measured as Collective
from calibration.execute.busy import idle
from calibration.execute.processes import ExecutionError
from calibration.folder import LOCK, alone
from calibration.measuring import budget_s
from calibration.session import Bench, open_bench
from calibration.store import SAMPLES, SESSION, load_session, read_samples
from sim.costs.profile import load_profile
from sim.specs.fields import InputError
from tests.calibration.fakes import FINGERPRINT, FakeFamily, FakeMachine, families
from tests.oracle import ROOT


@pytest.fixture
def machine():
    return FakeMachine()


@pytest.fixture
def fitted(monkeypatch):
    """The folders that were fitted; the fit itself is not under test here."""
    seen = []

    def fit(folder, note):
        seen.append({path.name for path in folder.iterdir()})
        return load_profile("a100-sxm-80gb")

    monkeypatch.setattr(measuring, "build_profile", fit)
    return seen


@pytest.fixture
def invoke(machine, monkeypatch, fitted):
    monkeypatch.setattr(measuring, "open_bench", lambda device: Bench(FINGERPRINT, machine.tools()))
    monkeypatch.setattr(measuring, "FAMILIES", families(machine))

    def run(*arguments):
        arguments = arguments if "--check" in arguments else (*arguments, "--no-check")
        return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)

    return run


def test_measures_and_prints_one_object(invoke, tmp_path, fitted):
    out = tmp_path / "deep" / "p"
    result = invoke("--device", "cpu", "--budget", "8m", "--seed", "3", "--out", out, "--json")
    printed = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (printed["measured"], printed["flagged"], printed["skipped"], printed["left"]) == (9, 0, 0, 0)
    assert printed["path"] == str(out / "profile.json")
    assert {"op", "implementation", "mape", "median", "p90", "coverage90"} <= printed["families"][0].keys()
    assert printed["product_rates_flop_per_s"]["library"] == pytest.approx(2.41e14, rel=0.01)
    assert fitted == [{SAMPLES, SESSION, "device.json", LOCK}]
    assert {path.name for path in out.iterdir()} == {SAMPLES, SESSION, "device.json"}
    session = load_session(out)
    assert (session.seed, session.suite, session.budget_s, session.session) == (3, "smoke", 480.0, printed["session"])
    assert "min of at least 25 samples" in session.method
    assert {row["session"] for row in read_samples(out / SAMPLES)} == {session.session}
    device = json.loads((out / "device.json").read_text())
    assert device["title"] == "Model 1"
    assert "e" in device["memory_bytes_per_s"]["source"]


def test_shows_a_table_and_counts(invoke, tmp_path):
    result = invoke("--device", "cpu", "--out", tmp_path / "p")
    assert "gemm forward" in result.stdout
    assert "products of 4096 x 4096 x 4096: library 241 TFLOP/s" in " ".join(result.stdout.split())
    assert "9 kernels measured, 0 of them flagged, 0 skipped, 0 left by the budget" in result.stderr


@pytest.mark.parametrize("options", [(), ("--resume",), ("--suite", "tbd", "--check")])
def test_a_folder_that_another_calibration_writes_is_refused_and_left_alone(invoke, tmp_path, options):
    """Whoever has it ends, however it ends: then it is free, whatever it has left there."""
    out = tmp_path / "p"
    told = rf"^--out: got '{out}'; allowed: one that no other process writes; process {{}} does$"
    modules = "from calibration.folder import alone; from pathlib import Path"
    holder = f"{modules}\nwith alone(Path({str(out)!r})): input(print())"
    command, env = [sys.executable, "-uc", holder], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as other:
        other.stdout.readline()
        with pytest.raises(InputError, match=told.format(other.pid)):
            invoke("--device", "cpu", "--out", out, *options)
        assert {path.name for path in out.iterdir()} == {LOCK}
        other.kill()
    assert (out / LOCK).exists()
    if not options:
        assert invoke("--device", "cpu", "--out", out).exit_code == 0
        assert {path.name for path in out.iterdir()} == {SAMPLES, SESSION, "device.json"}


def test_a_new_folder_in_which_nothing_was_written_goes_again(tmp_path):
    with pytest.raises(KeyError), alone(tmp_path / "new"):
        raise KeyError
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyError), alone(tmp_path / "new" / "below"):
        raise KeyError
    assert not list(tmp_path.iterdir())
    with alone(tmp_path):
        pass
    assert tmp_path.is_dir()


@pytest.mark.parametrize("options", [("--from", "/dev/null"), ("--trace", "/dev/null")])
def test_what_is_no_file_is_not_waited_for(invoke, tmp_path, options):
    """A device or a pipe may never end."""
    with pytest.raises(InputError, match="/dev/null: got 'not a regular file'"):
        invoke(*options, "--check", "--out", tmp_path / "p")
    with pytest.raises(InputError, match="/dev/null: got 'not a regular file'"):
        read_samples(Path("/dev/null"))


def test_skipped_cases_are_named(invoke, machine, monkeypatch, tmp_path):
    held = [*families(machine), FakeFamily(machine, name="odd", op="odd", count=1, error=0.5)]
    monkeypatch.setattr(measuring, "FAMILIES", held)
    result = invoke("--device", "cpu", "--out", tmp_path / "p", "--json")
    printed = json.loads(result.stdout)
    assert printed["skipped"] == 1
    assert printed["skipped_cases"][0]["id"] == "odd/forward/float32/fake//m=1"
    assert "odd/forward/float32/fake//m=1: wrong: relative error 0.5" in result.stderr


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--device", "tpu"], "--device: got 'tpu'; allowed: one of cpu, cuda"),
        (["--device", "cpu", "--suite", "huge"], "--suite: got 'huge'; allowed: one of smoke, full"),
        (["--device", "cpu", "--budget", "8x"], "--budget: got '8x'; allowed: a time such as 180s"),
        (["--device", "cpu", "--budget", "0s"], "--budget: got '0s'"),
        (["--device", "cpu", "--seed", "-1"], "--seed: got -1; allowed: a whole number from 0"),
        (["--device", "cpu", "--from", "x.csv"], "either --device or --from"),
        (["--from", "x.csv", "--from", "./x.csv"], "--from: got 'x.csv'; allowed: each file once"),
        ([], "cpu or cuda to measure this machine"),
    ],
)
def test_wrong_options_name_themselves(invoke, tmp_path, options, field):
    with pytest.raises(InputError) as caught:
        invoke(*options, "--out", tmp_path / "p")
    assert field in str(caught.value)
    assert not (tmp_path / "p").exists()


DEVICE, TRACE = ("--device", "cpu"), ("--trace", "t.json")
NETWORKS, TABLES = (*DEVICE, "--suite", "tbd"), ("--from", "x.csv")
RUNS = ("--from", str(ROOT / "notebooks" / "data" / "ptdp.csv"))


def test_runs_that_cannot_be_used_are_told(invoke, tmp_path):
    """Also where too few are left: of one source nothing is fitted."""
    path = tmp_path / "runs.csv"
    with Path(RUNS[1]).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rows[0]["tp"] = "7"
    with path.open("w", encoding="utf-8", newline="") as file:
        made = csv.DictWriter(file, rows[0])
        made.writeheader()
        made.writerows(rows)
    with redirect_stderr(StringIO()) as told, pytest.raises(InputError, match="at least two sources"):
        _run_level([path], tmp_path / "p", None, False, Console(stderr=True, width=200))
    assert f"1 of {len(rows)} runs not used: plan.tp: got 7" in told.getvalue()


@pytest.mark.parametrize(
    ("mode", "option", "where"),
    [
        *((TRACE, option, "--device") for option in (("--suite", "smoke"), ("--budget", "9m"), ("--seed", "0"))),
        *((mode, flag, "--device") for mode in (TRACE, TABLES, RUNS) for flag in (("--resume",), ("--despite-load",))),
        *((mode, ("--no-check",), "--suite smoke or full") for mode in (NETWORKS, TRACE, TABLES)),
        (DEVICE, ("--base", "cpu"), "--trace, --suite tbd, logs of nccl-tests or runs"),
        (TRACE, ("--size", "full"), "--suite tbd"),
        *((mode, ("--date", "x"), "--from without tables of training runs") for mode in (DEVICE, TRACE, RUNS)),
        (RUNS, ("--only", "l4"), "--from without tables of training runs"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(tmp_path, mode, option, where):
    given = [*mode, *option, "--out", str(tmp_path / "p")]
    with pytest.raises(InputError, match=rf"{option[0]}: got .*; allowed: left out, or {where}$"):
        CliRunner().invoke(app, given, catch_exceptions=False)


def test_a_file_that_no_base_goes_with_is_named(tmp_path):
    table = tmp_path / "table.csv"
    for told in ("table.csv: got 'no such file'", "with --base logs of nccl-tests, or runs"):
        with pytest.raises(InputError, match=told):
            cli.calibrate(first=[table], base="h100-sxm-80gb", out=tmp_path / "p")
        table.write_text("m,n,k\n")


@pytest.mark.parametrize(("text", "seconds"), [("180s", 180), ("8m", 480), ("1.5h", 5400)])
def test_budgets(text, seconds):
    assert budget_s(text) == seconds


def test_a_file_is_no_folder(invoke, tmp_path):
    (tmp_path / "p").write_text("")
    with pytest.raises(InputError, match=r"--out: got .*a folder that exists or can be made"):
        invoke("--device", "cpu", "--out", tmp_path / "p" / "q")


def test_a_busy_machine_is_refused_and_nothing_is_left_behind(invoke, machine, tmp_path):
    machine.others = [0.9]
    result = invoke("--device", "cpu", "--out", tmp_path / "p", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "not measured: the machine is busy: others use 90\u00a0% of it" in result.stderr
    assert not (tmp_path / "p").exists()


def test_despite_load_measures_and_flags(invoke, machine, tmp_path):
    machine.others = [0.9]
    result = invoke("--device", "cpu", "--despite-load", "--out", tmp_path / "p", "--json")
    printed = json.loads(result.stdout)
    assert (printed["measured"], printed["flagged"]) == (9, 9)
    assert load_session(tmp_path / "p").despite_load


def test_samples_are_not_overwritten(invoke, tmp_path):
    invoke("--device", "cpu", "--out", tmp_path / "p")
    with pytest.raises(InputError, match=r"--resume goes on with one"):
        invoke("--device", "cpu", "--out", tmp_path / "p")


def test_resuming_keeps_the_session_and_measures_the_rest(invoke, machine, tmp_path):
    arguments = ("--device", "cpu", "--out", tmp_path / "p", "--json")
    first = json.loads(invoke(*arguments, "--budget", "1s").stdout)
    assert first["left"] == 9 - first["measured"] > 0
    machine.launched.clear()
    second = json.loads(invoke(*arguments, "--resume", "--budget", "1h").stdout)
    assert (second["measured"], second["left"], second["session"]) == (9, 0, first["session"])
    assert len(set(machine.launched)) == first["left"]
    assert load_session(tmp_path / "p").budget_s == 3601.0


def test_resuming_a_machine_that_slowed_down_measures_the_old_samples_again(invoke, machine, tmp_path):
    arguments = ("--device", "cpu", "--out", tmp_path / "p", "--json")
    first = json.loads(invoke(*arguments, "--budget", "1s").stdout)
    assert load_session(tmp_path / "p").sentinel_s == 0.01
    machine.launched.clear()
    machine.sentinels = [0.02]
    second = json.loads(invoke(*arguments, "--resume").stdout)
    assert first["measured"] < 4.5, "fewer than half: the new state is that of most"
    assert (second["flagged"], second["measured"], len(set(machine.launched))) == (0, 9, 9)
    assert load_session(tmp_path / "p").sentinel_s == 0.02


def test_a_session_that_goes_on_keeps_its_seed(invoke, tmp_path):
    arguments = ("--device", "cpu", "--out", tmp_path / "p", "--json")
    invoke(*arguments, "--budget", "1s", "--seed", "3")
    with pytest.raises(InputError, match="--seed: got 4; allowed: 3, as of the session in --out, or left out"):
        invoke(*arguments, "--resume", "--seed", "4")
    assert json.loads(invoke(*arguments, "--resume", "--seed", "3").stdout)["left"] == 0


def test_another_machines_session_is_not_resumed(invoke, machine, monkeypatch, tmp_path):
    invoke("--device", "cpu", "--out", tmp_path / "p", "--budget", "1s")
    other = FINGERPRINT.__class__(**{**vars(FINGERPRINT), "name": "Model 2", "memory_bytes": 5})
    monkeypatch.setattr(measuring, "open_bench", lambda device: Bench(other, machine.tools()))
    with pytest.raises(InputError, match=r"name, memory_bytes differ: name was Model 1, is Model 2"):
        invoke("--device", "cpu", "--out", tmp_path / "p", "--resume")


def test_samples_of_another_session_are_not_gone_on_with(invoke, tmp_path):
    for name in ("p", "q"):
        invoke("--device", "cpu", "--out", tmp_path / name, "--budget", "1s")
    held = (tmp_path / "q" / SAMPLES).read_bytes()
    (tmp_path / "p" / SAMPLES).write_bytes(held)
    with pytest.raises(InputError, match=r"samples of the session that session\.json is of"):
        invoke("--device", "cpu", "--out", tmp_path / "p", "--resume")
    assert (tmp_path / "p" / SAMPLES).read_bytes() == held


def test_there_must_be_something_to_resume(invoke, tmp_path):
    with pytest.raises(InputError, match=r"session\.json: got 'no such file'"):
        invoke("--device", "cpu", "--out", tmp_path, "--resume")


def test_an_interruption_leaves_whole_files(invoke, machine, monkeypatch, tmp_path):
    class Stopping(FakeFamily):
        def prepare(self, case, machine, seed):
            raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "FAMILIES", [*families(machine), Stopping(machine, name="z", op="z")])
    result = CliRunner().invoke(app, ["--device", "cpu", "--out", str(tmp_path / "p")])
    assert result.exit_code != 0
    assert "holds what was measured; --resume goes on" in result.stderr
    assert {path.name for path in (tmp_path / "p").iterdir()} == {SAMPLES, SESSION}
    read_samples(tmp_path / "p" / SAMPLES)
    assert load_session(tmp_path / "p").sentinel_s == 0.01


def test_without_a_gpu_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="--device: got 'cuda'; allowed: cpu; torch finds no CUDA device here"):
        open_bench("cuda")


def test_the_cpu_is_held_to_one_thread():
    before = torch.get_num_threads()
    try:
        bench = open_bench("cpu")
        assert torch.get_num_threads() == bench.fingerprint.threads == 1
        assert bench.tools.sentinel() > 0
    finally:
        torch.set_num_threads(before)


def test_links_are_samples_of_the_session(invoke, machine, monkeypatch, tmp_path):
    links = [Collective("all_reduce", 2, size, "gloo", (1e-3, 2e-3), 3, 0.0).row for size in (1024, 4096)]
    bench = Bench(FINGERPRINT, machine.tools(), lambda seconds: links)
    monkeypatch.setattr(measuring, "open_bench", lambda device: bench)
    invoke("--device", "cpu", "--out", tmp_path / "p")
    held = [row for row in read_samples(tmp_path / "p" / SAMPLES) if row["op"] == "collective"]
    assert [(row["direction"], row["t_s"], row["flagged"]) for row in held] == [("all_reduce", 1e-3, False)] * 2


def test_an_interruption_leaves_the_sentinel_that_samples_are_relative_to(invoke, machine, monkeypatch, tmp_path):
    machine.sentinels = [0.01, 0.01, 0.0106]

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "open_bench", lambda device: Bench(FINGERPRINT, machine.tools(), interrupted))
    with suppress(KeyboardInterrupt, SystemExit):
        invoke("--device", "cpu", "--out", tmp_path / "p")
    (ratio,) = {row["sentinel_ratio"] for row in read_samples(tmp_path / "p" / SAMPLES)}
    session = load_session(tmp_path / "p")
    assert (ratio, session.sentinel_s) == (1.0, pytest.approx(0.0106))
    assert (session.measured, session.left) == (9, 0)


def test_too_few_samples_say_why_and_what_to_do(invoke, monkeypatch, tmp_path):
    def refused(folder, note):
        raise InputError("samples", ["gemm/forward"], "at least 5 fitted samples of elementwise/any in float32")

    monkeypatch.setattr(measuring, "build_profile", refused)
    with pytest.raises(InputError, match=r"9 kernels measured, 0 of them disturbed, 0 left\): --resume measures on"):
        invoke("--device", "cpu", "--out", tmp_path / "p")
    told = r"[1-8] left\): the budget of 1 s ended first; --resume with more --budget measures on"
    with pytest.raises(InputError, match=told):
        invoke("--device", "cpu", "--out", tmp_path / "q", "--budget", "1s")


def test_what_rests_on_a_disturbed_machine_is_told(invoke, monkeypatch, tmp_path):
    held = load_profile("a100-sxm-80gb")
    models = [replace(m, n_train=8, n_disturbed=3) if m.op == "gemm" else m for m in held.models]
    monkeypatch.setattr(measuring, "build_profile", lambda folder, note: replace(held, models=models))
    told = invoke("--device", "cpu", "--out", tmp_path / "p").stderr
    assert "9 of 24 samples of gemm were taken while others disturbed the machine: --resume measures on" in told


def test_hold_outs_follow_the_fit(invoke, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(measuring.holdout, "hold_out", lambda *where, **how: asked.append(where) or [])
    result = invoke("--device", "cpu", "--out", tmp_path / "p", "--check", "--json")
    assert json.loads(result.stdout)["hold_out"] == []
    assert asked == [(tmp_path / "p", "cpu")]


def test_a_busy_machine_is_not_checked_and_the_reason_told(invoke, monkeypatch, tmp_path):
    def refused(*where, busy, **how):
        idle(lambda: "others use 70 % of the cores")

    monkeypatch.setattr(measuring.holdout, "hold_out", refused)
    result = invoke("--device", "cpu", "--out", tmp_path / "p", "--check")
    assert result.exit_code == 0
    assert "hold-outs not measured: others use 70 % of the cores" in result.stderr


def test_hold_outs_that_were_measured_are_told_where_one_fails(invoke, monkeypatch, tmp_path):
    def measured(*where, done, failed, **how):
        done(SimpleNamespace(case=SimpleNamespace(name="block"), data=lambda: {"name": "block"}))
        failed(SimpleNamespace(name="step"), ExecutionError("a process died"))
        idle(lambda: "others use 70 % of the cores")

    monkeypatch.setattr(measuring.holdout, "hold_out", measured)
    result = invoke("--device", "cpu", "--out", tmp_path / "p", "--check", "--json")
    assert json.loads(result.stdout)["hold_out"] == [{"name": "block"}]
    assert "hold-out step not measured: a process died" in result.stderr
