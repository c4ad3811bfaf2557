"""`trainsim execute --learn`: the fit of corrections by hand and by property; what the command keeps and refuses."""

import json
from dataclasses import replace
from math import exp, log, pi
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from calibration.execute import cli, learn
from calibration.execute.learn import added, fit, leave_one_out, mean_errors, save
from calibration.execute.measure import Measured, processes
from calibration.execute.predict import predict
from calibration.folder import alone
from sim.costs.learned import FILE, Group, Learned, LearnedRun, read_learned
from sim.costs.profile import load_profile
from sim.specs import InputError
from tests.calibration.execute.cases import SMALL, cluster, job, profile
from tests.costs.test_products import with_mapped

RUN = CliRunner()
SHA = "0" * 64


def run(n: int, value: float, kind: str = "pipeline", ranks: int = 2) -> LearnedRun:
    """Return an executed plan whose log residual is `value`."""
    return LearnedRun(
        id=f"{n:016x}",
        date="2026-11-22",
        what="a plan",
        kind=kind,
        processes=ranks,
        precision="fp32",
        predicted_s=1.0,
        measured_s=exp(value),
    )


def test_one_group_is_drawn_to_none_by_its_own_error():
    logs = [0.1, 0.2, 0.3]
    variance = pi / 2 * 0.01 / 3
    weight = (0.04 - variance) / 0.04
    (one,) = fit([run(n, x) for n, x in enumerate(logs)])
    assert one.n == 3
    assert log(one.factor) == pytest.approx(weight * 0.2, rel=1e-4)
    assert one.scatter_log == pytest.approx(0.1)
    assert one.error_log == pytest.approx(variance**0.5, rel=1e-3)


def test_an_outlier_does_not_move_the_middle():
    (one,) = fit([run(n, x) for n, x in enumerate([0.2] * 6 + [2.0])])
    assert one.factor < exp(0.2)


def test_residuals_about_zero_teach_nothing():
    (one,) = fit([run(n, x) for n, x in enumerate([-0.2, 0.0, 0.2, 0.01])])
    assert one.factor == pytest.approx(1.0, abs=1e-3)


def test_more_plans_are_drawn_less():
    groups = [fit([run(n, 0.2 + 0.1 * (-1) ** n) for n in range(count)])[0] for count in (6, 12, 40)]
    assert groups[0].factor < groups[1].factor < groups[2].factor < exp(0.2)
    assert groups[0].error_log > groups[1].error_log > groups[2].error_log


def test_fewer_than_three_plans_of_a_group_have_no_correction():
    runs = [run(0, 0.3), run(1, 0.3), *(run(n, 0.1, "data parallel") for n in range(2, 5))]
    assert [one.group for one in fit(runs)] == [Group("data parallel", 2, "fp32")]
    assert fit([]) == fit(runs[:2]) == []


def test_groups_teach_each_other_nothing():
    far = [run(n, 2.0 + 0.01 * n, "tensor parallel") for n in range(10, 14)]
    near = [run(n, x) for n, x in enumerate([0.01, 0.2, -0.05])]
    assert fit(near)[0] in fit(near + far)


def test_groups_of_other_sizes_are_apart():
    runs = [run(n, 0.3, ranks=2 + 2 * (n % 2)) for n in range(6)]
    assert [one.processes for one in fit(runs)] == [2, 4]


def test_each_plan_is_left_out_of_what_predicts_it():
    runs = [run(n, x) for n, x in enumerate([0.2, 0.2, 0.2, 0.9])]
    left = leave_one_out(runs)
    assert left[3].factor == pytest.approx(fit(runs[:3])[0].factor)
    assert left[3].before == pytest.approx(exp(-0.9) - 1)
    assert left[3].after == pytest.approx(left[3].factor * exp(-0.9) - 1)
    assert {one.factor for one in leave_one_out(runs[:3])} == {1.0}  # two others are too few
    before, after = mean_errors(leave_one_out([run(n, 0.3 + 0.01 * n) for n in range(5)]))
    assert after < 2
    assert before > 20


LOGS = st.lists(st.floats(-2.5, 2.5), min_size=3, max_size=12)


@given(first=LOGS, second=LOGS)
def test_corrections_lie_between_none_and_the_middle_and_read_back(first, second, tmp_path_factory):
    runs = [run(n, x) for n, x in enumerate(first)]
    runs += [run(100 + n, x, "tensor parallel") for n, x in enumerate(second)]
    held = replace(Learned(profile_sha256=SHA), runs=runs, corrections=fit(runs))
    folder = tmp_path_factory.mktemp("p")
    save(held, folder)
    assert read_learned(folder, SHA) == held
    for one, logs in zip(held.corrections, (first, second), strict=True):
        low, high = sorted((0.0, median(logs)))
        assert low - 1e-4 <= log(one.factor) <= high + 1e-4
        assert one.interval80[0] <= one.factor <= one.interval80[1]


@given(logs=LOGS)
def test_slower_and_faster_are_alike_and_the_order_of_runs_is_nothing(logs):
    (one,) = fit([run(n, x) for n, x in enumerate(logs)])
    (other,) = fit([run(n, -x) for n, x in enumerate(logs)])
    (turned,) = fit([run(n, x) for n, x in enumerate(logs[::-1])])
    assert one.factor * other.factor == pytest.approx(1.0, rel=1e-4)
    assert (one.factor, one.interval80) == (turned.factor, turned.interval80)


def test_the_same_plan_again_takes_the_place_of_its_run():
    held = Learned(profile_sha256=SHA)
    for n in range(3):
        held, earlier = added(held, run(n, 0.2))
        assert earlier is None
    again, earlier = added(held, run(1, 0.3))
    assert earlier.log == pytest.approx(0.2)
    assert len(again.runs) == 3
    assert added(again, run(1, 0.3))[0] == again


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The profile of a made-up core."""
    return profile(tmp_path / "core")


@pytest.fixture
def slower(folder, monkeypatch):
    """Every plan takes 1.3 times as long as predicted without correction, and the machine is idle."""

    def measured(runs: Any, setting: Any) -> list[Measured]:
        del setting
        (one,) = runs
        told = predict(SMALL, cluster(folder, processes(one.plan)), one.plan)
        took = 1.3 * told.step_time_s / told.learned_factor
        seen = {"traffic": told.traffic, "order": told.order, "host_bytes": told.host_bytes}
        return [Measured(took, took, 10, (), told.peak_memory_bytes, told.bytes_sent, **seen)]

    monkeypatch.setattr(cli, "measure_all", measured)
    monkeypatch.setattr(cli, "others", lambda: None)
    monkeypatch.setattr(learn, "usable_cores", lambda: 2)


def execute(tmp_path: Path, folder: Path, *options: str, **given: object) -> Any:
    """Run the command on a pipeline of two processes and return its JSON."""
    path = job(tmp_path, folder, **{"pp": 2, "schedule": "1f1b", "dp": 1} | given)
    done = RUN.invoke(cli.app, [str(path), "--learn", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if "--json" in options else done.stdout


@pytest.mark.usefixtures("slower")
def test_three_plans_teach_a_correction_that_the_next_prediction_shows(tmp_path, folder):
    fitted = (folder / "profile.json").read_bytes()
    for schedule in ("1f1b", "gpipe"):
        told = execute(tmp_path, folder, "--json", schedule=schedule)
        assert told["learned"]["corrections"] == []
        assert told["errors"]["step_time_s"] == pytest.approx(1 / 1.3 - 1)
    told = execute(tmp_path, folder, "--json", schedule="zb-h1")["learned"]
    (one,) = told["corrections"]
    assert (one["n"], one["kind"], one["processes"]) == (3, "pipeline", 2)
    assert one["factor"] == pytest.approx(1.3, rel=0.01)
    told = execute(tmp_path, folder, "--json", schedule="gpipe", micro_batch=4)
    assert told["predicted"]["learned_factor"] == one["factor"]
    assert abs(told["errors"]["step_time_s"]) < 0.01
    assert told["errors"]["inside_interval"] is True
    left_out = told["learned"]["left_out_mape"]
    assert left_out["before"] == pytest.approx(100 * (1 - 1 / 1.3), rel=1e-3)
    assert left_out["after"] < 1
    assert (folder / "profile.json").read_bytes() == fitted
    held = load_profile(str(folder)).learned
    assert [run.what.split(", ")[-2] for run in held.runs] == ["1f1b", "gpipe", "zb-h1", "gpipe"]


@pytest.mark.usefixtures("slower")
def test_the_same_plan_twice_is_one_residual(tmp_path, folder):
    execute(tmp_path, folder)
    first = (folder / FILE).read_text()
    said = execute(tmp_path, folder)
    assert "takes the place of its run of" in said
    assert "1 of at least 3 executed plans of pipeline on 2 processes in fp32: no correction yet" in said
    assert "mean error 23.1 % without, 23.1 % with corrections" in said
    assert (folder / FILE).read_text() == first


@pytest.mark.usefixtures("slower")
def test_a_new_fit_of_the_profile_starts_anew(tmp_path, folder):
    execute(tmp_path, folder)
    data = json.loads((folder / "profile.json").read_text())
    (folder / "profile.json").write_text(json.dumps(data | {"date": "another day"}))
    told = execute(tmp_path, folder, "--json", schedule="gpipe")["learned"]
    assert (told["dropped"], told["executed_plans"]) == (1, 1)
    assert load_profile(str(folder)).learned.off == ""


def refused(path: Path, *options: str) -> str:
    """Return why the command learns nothing from a job; nothing is run."""
    done = RUN.invoke(cli.app, [str(path), "--learn", *options])
    assert isinstance(done.exception, InputError), done.output
    return str(done.exception)


@pytest.fixture
def unrun(monkeypatch):
    """Nothing may be run."""
    monkeypatch.setattr(cli, "measure_all", lambda *_: pytest.fail("it was run"))
    monkeypatch.setattr(cli, "others", lambda: None)


@pytest.mark.usefixtures("unrun")
def test_what_cannot_be_learned_from_is_refused_before_it_runs(tmp_path, folder, monkeypatch):
    path = job(tmp_path, folder)
    assert "left out with --learn" in refused(path, "--despite-load")
    held = json.loads(path.read_text())
    with_mapped(load_profile(str(folder)), folder)
    path.write_text(json.dumps(held | {"plan": held["plan"] | {"product_kernel": "task-mapped"}}))
    assert "product_kernel task-mapped" in refused(path)
    path.write_text(json.dumps(held))
    monkeypatch.setattr(learn, "usable_cores", lambda: 1)
    assert "2 processes" in refused(path)
    monkeypatch.setattr(learn, "usable_cores", lambda: 2)
    (folder / FILE).write_text('{"schema_version": 1}')
    assert "profile_sha256" in refused(path)
    (folder / FILE).unlink()
    data = json.loads((folder / "profile.json").read_text())
    (folder / "profile.json").write_text(json.dumps(data | {"fingerprint": {"name": "a core of long ago"}}))
    assert "a core of long ago" in refused(path)


@pytest.mark.usefixtures("unrun")
def test_a_folder_that_another_process_writes_is_refused_before_anything_runs(tmp_path, folder):
    with alone(folder):
        assert refused(job(tmp_path, folder)).startswith(f"--learn: got '{folder}'; allowed: one that no other process")


@pytest.mark.usefixtures("slower")
def test_no_other_process_writes_the_folder_from_the_run_to_the_lesson(tmp_path, folder, monkeypatch):
    def tried(*_):
        with pytest.raises(InputError, match="no other process writes"), alone(folder):
            pass

    measured, learned = cli.measure_all, cli.learn
    monkeypatch.setattr(cli, "measure_all", lambda *given: (tried(), measured(*given))[1])
    monkeypatch.setattr(cli, "learn", lambda *given: (learned(*given), tried())[0])
    execute(tmp_path, folder)
    assert sorted(path.name for path in folder.iterdir()) == [FILE, "profile.json"]


@pytest.mark.usefixtures("unrun")
def test_shipped_profiles_learn_nothing(tmp_path, folder):
    path = job(tmp_path, folder)
    held = json.loads(path.read_text())
    del held["cluster"]["profile"]
    path.write_text(json.dumps(held))
    assert "a profile folder of one's own" in refused(path)
