"""Measuring: what is pinned and given back, what is predicted of slow storage, the search of k, the command."""

import json
import os
from dataclasses import replace
from time import sleep
from unittest.mock import Mock

import pytest
import torch
import typer
from typer.testing import CliRunner

from calibration.checkpointing import evidence, measure
from calibration.checkpointing.checkpointer import Checkpointer, CheckpointError
from calibration.checkpointing.cli import measure_command
from calibration.checkpointing.engine import TorchSave
from calibration.checkpointing.frequency import Effort, profiled
from calibration.checkpointing.iterator import Order, ResumableLoader
from calibration.checkpointing.measure import Scale, measured, offered, opened, point, quick, recovered, sizes_of
from calibration.checkpointing.results import Setting, read_evidence
from calibration.checkpointing.store import Store
from calibration.checkpointing.training import Run, Tokens, Trainee
from sim.specs.fields import InputError
from tests.calibration.checkpointing.test_results import case
from tests.full import full, fully

SHORT = Scale(alone_s=0.02, saving_s=0.02, effort=Effort(1, 0.02), search=False)
app = typer.Typer()
app.command()(measure_command)
SLOW, OTHER = evidence.INTERFERENCE
SHARED = Setting(backend="disk", api="torch.save", cores="shared", megabytes=1)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Fewer rounds, and the allocator of the test's own process left as it is."""
    monkeypatch.setattr(measure, "ROUNDS", 1)
    monkeypatch.setattr(measure, "BUDGET", 0.5)  # reached with few steps between saves
    monkeypatch.setattr(measure, "keep_freed_memory", lambda: True)


@pytest.mark.slow
def test_slow_storage_is_predicted(tmp_path):
    """Saving each step to storage that takes several of them: profile, point and recovery on sleeping storage."""
    sizes = sizes_of(1)
    loader = ResumableLoader(Tokens(1000, sizes), Order(samples=1000, batch=1))
    with Checkpointer(tmp_path, TorchSave(store=Store(bytes_per_s=5e6))) as checkpointer:
        run = Run(Trainee(sizes), loader, checkpointer)
        times = profiled(run, Effort(2, 0.05))
        found = point(run, times, 1, SHORT)
        assert found.predicted_percent > 100
        assert found.predicted_percent / 5 < found.measured_percent < 5 * found.predicted_percent
        back = recovered(run, times, 2)
    assert back.predicted_s / 5 < back.measured_s < 5 * back.predicted_s


@pytest.mark.parametrize(("longest_s", "rounds"), [(1e9, 3), (0.0, 1)])
def test_no_round_begins_after_the_longest_time(monkeypatch, longest_s, rounds):
    monkeypatch.setattr(measure, "ROUNDS", 3)
    quickly = Mock(step=lambda: sleep(1e-4))
    found = point(quickly, case({1: 1.0}).times, 1, replace(SHORT, alone_s=0.0, saving_s=0.0, longest_s=longest_s))
    assert len(found.rounds) == quickly.checkpointer.wait.call_count == rounds


@fully
def test_a_case_has_what_predictions_stand_beside(tmp_path):
    before = torch.get_num_threads(), os.sched_getaffinity(0)
    told = []
    setting = Setting(backend="folder", folder=str(tmp_path), api="async_save", cores="shared", megabytes=1)
    found = measured(setting, SHORT, told=told.append)
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == before
    assert not list(tmp_path.iterdir()), "what was written is removed"
    assert 1e6 < found.times.state_bytes < 2e6
    ks = [one.steps_between for one in found.points]
    assert found.k("checkfreq", measure.BUDGET) in ks and found.k("checkfreq-rule", measure.BUDGET) in ks
    assert found.at_predicted.steps_between == found.recovery.steps_between
    assert len(told) == 1 + len(ks) and told[0].startswith(f"{tmp_path}, async_save, 1 MB, on the trainer's core: step")


@pytest.mark.parametrize(
    ("picked", "best", "tried"), [(4, 4, [4, 3]), (4, 2, [4, 3, 2, 1]), (4, 6, [4, 5, 6]), (1, 1, [1])]
)
def test_the_search_ends_at_the_best(picked, best, tried):
    asked = []

    def within(k):
        asked.append(k)
        return k >= best

    measure._around(picked, within)
    assert asked == tried


@pytest.mark.parametrize("megabytes", [1, 50, 400])
def test_sizes_are_of_the_state(megabytes):
    with torch.device("meta"):
        parameters = sum(p.numel() for p in measure.Trainee(sizes_of(megabytes)).model.parameters())
    assert 12 * parameters == pytest.approx(megabytes * 1e6, rel=0.35)


def test_bad_input(tmp_path, monkeypatch):
    gone = Setting(backend="folder", folder=str(tmp_path / "gone"), api="torch.save", cores="shared", megabytes=1)
    with pytest.raises(InputError, match="an existing folder that can be written"), opened(gone):
        pass
    with pytest.raises(InputError, match="free bytes, of which it has"), opened(
        Setting(backend="folder", folder=str(tmp_path), api="torch.save", cores="shared", megabytes=100_000)
    ):  # fmt: skip
        pass
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert measure.cores_here() == "shared"
    with pytest.raises(InputError, match="this process has one core"), opened(
        Setting(backend="disk", api="torch.save", cores="own", megabytes=1)
    ):  # fmt: skip
        pass


def test_quick_is_short(monkeypatch):
    monkeypatch.setattr(measure, "measured", lambda setting, scale: (setting, scale))
    setting, scale = quick(megabytes=3)
    assert (setting.backend, setting.api, setting.megabytes, scale.search) == ("disk", "torch.save", 3, False)
    assert scale.alone_s < Scale().alone_s and scale.saving_s < Scale().saving_s


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch):
    asked = []

    def canned(setting, scale, told):
        asked.append((setting, scale.steps))
        return replace(case({1: 50, 2: 6, 6: 3}), setting=setting)

    monkeypatch.setattr("calibration.checkpointing.cli.measured", canned)
    runner, command = CliRunner(), ["--folder", str(tmp_path), "--size", "7", "--steps", "5"]
    found = runner.invoke(app, [*command, "--json", "--backend", "dcp", "--out", str(tmp_path / "m.json")])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told == json.loads((tmp_path / "m.json").read_text())
    (one,) = told["measurements"]
    assert (one["api"], one["folder"], one["megabytes"]) == ("async_save", str(tmp_path), 7)
    assert one["k"] == {"predicted": 6, "rule": 3, "measured": 6}
    assert one["overhead_percent"] == {"measured": 3, "predicted": 3}
    assert one["recovery_s"] == {"measured": 1.0, "predicted": 1.1}
    assert one["goodput"].keys() == {"measured", "predicted"} and one["load"] == 0
    assert asked[0][1] == 5
    (name, reached), here = *told["storage"].items(), runner.invoke(app, command)
    assert name == str(tmp_path) and reached["read_bytes_per_s"] > 0 < reached["write_bytes_per_s"]
    assert f"{tmp_path} as storage of a job: {{read_bytes_per_s: " in here.stdout
    asked.clear()
    shown = runner.invoke(app, [])
    assert shown.exit_code == 0 and "least k within 3.5\u00a0%" in shown.stderr
    assert [setting.backend for setting, _ in asked] == offered()
    assert "disk, torch.save, 50 MB" in shown.stdout and "6, 3, 6" in shown.stdout


def test_a_disk_that_fills_up_is_one_line(tmp_path, monkeypatch):
    def full(*_, **__):
        raise CheckpointError("step 1 is not saved: No space left on device; none is saved")

    monkeypatch.setattr("calibration.checkpointing.cli.measured", full)
    found = CliRunner().invoke(app, ["--folder", str(tmp_path), "--json"])
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.endswith("error: step 1 is not saved: No space left on device; none is saved\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "pickle"], "--backend: got 'pickle'; allowed: one of save, dcp"),
        (["--steps", "0"], "--steps: got 0; allowed: a whole number from 1"),
        (["--size", "0"], "--megabytes: got 0; allowed: a whole number from 1"),
        (["--out", "/gone/m.json"], "--out: got '/gone/m.json'; allowed: a file in an existing folder"),
    ],
)
def test_wrong_options(options, said):
    found = CliRunner().invoke(app, options)
    assert isinstance(found.exception, InputError) and said in str(found.exception)


def test_evidence_goes_on_where_it_was(tmp_path, monkeypatch):
    settings, done = [SHARED, Setting(backend="disk", api="async_save", cores="shared", megabytes=1)], []
    monkeypatch.setattr(evidence, "settings", lambda: settings)
    monkeypatch.setattr(evidence, "INTERFERENCE", {})

    def counted(setting, told):
        done.append(setting)
        return replace(case({1: 50, 6: 3}), setting=setting)

    monkeypatch.setattr(evidence, "measured", counted)
    out = tmp_path / "e.json"
    assert evidence.gather(out, 1e-9, str).cases == [] and not done
    monkeypatch.setattr(evidence, "settings", lambda: settings[:1])
    evidence.gather(out, 60.0, str)
    monkeypatch.setattr(evidence, "settings", lambda: settings)
    assert [case.setting for case in evidence.gather(out, 60.0, str).cases] == settings == done
    assert [case.setting for case in read_evidence(out).cases] == settings


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SLOW, full(OTHER)])
def test_adaptation_says_when_others_interfered(monkeypatch, kind):
    _, interfering = evidence.INTERFERENCE[kind]
    monkeypatch.setattr(evidence, "INTERFERENCE", {kind: (SHARED, interfering)})
    for name, count in (("QUIET", 1), ("INTERFERED", 2), ("AFTER", 1)):
        monkeypatch.setattr(evidence, name, count)
    found = evidence.adaptation(kind)
    assert [moment.interfered for moment in found.moments] == [False, True, True, False]
    assert [moment.at_s for moment in found.moments] == sorted(moment.at_s for moment in found.moments)


def test_everything_is_measured():
    found = evidence.settings()
    assert len(found) == len(set(map(repr, found)))
    assert {one.backend for one in found} == set(offered())
    assert {one.cores for one in found} == {"own", "shared"}
