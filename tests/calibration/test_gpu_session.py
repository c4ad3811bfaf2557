"""The one script for a GPU: steps in order under limits, failures recorded, resumable, everything in one zip."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict, dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from calibration import gpu_session, measured, session
from calibration.folder import LOCK, alone
from calibration.gpu_session import (
    MISSING,
    RESULTS,
    STEPS,
    Place,
    Record,
    Step,
    command,
    in_process,
    load_state,
    pack,
    perform,
    separately,
    shared_out,
)
from calibration.kernels import registry
from calibration.session import Bench
from sim.costs.profile import load_profile
from sim.specs.fields import InputError
from tests.calibration.fakes import FINGERPRINT, FakeMachine, families


def nothing(place):
    return {}


def steps(*minutes):
    return [Step(f"s{n}", m, nothing) for n, m in enumerate(minutes)]


@pytest.fixture
def place(tmp_path):
    return Place("cpu", tmp_path, "smoke", limit_s=60.0)


class Runner:
    """Runs steps on a clock of its own; `takes` says how long each wants and `ends` how it ends."""

    def __init__(self, takes, ends=None):
        self.takes, self.ends, self.now_s, self.ran = takes, ends or {}, 0.0, []

    def __call__(self, step, place):
        spent = min(self.takes[step.name], place.limit_s)
        self.now_s += spent
        self.ran.append((step.name, place.limit_s))
        status = "timed out" if spent < self.takes[step.name] else self.ends.get(step.name, "done")
        return Record(status=status, seconds=spent, reason=self.ends.get(step.name, ""))

    def perform(self, held, place, minutes):
        found = perform(held, place, minutes, self, lambda: self.now_s)
        return {name: record.status for name, record in found.items()}


def test_steps_run_in_order_and_each_failure_is_passed_over(place):
    runner = Runner({"s0": 10, "s1": 10, "s2": 10}, {"s0": "failed", "s1": "missing"})
    assert runner.perform(steps(2, 2, 2), place, 10) == {"s0": "failed", "s1": "missing", "s2": "done"}
    assert [name for name, _ in runner.ran] == ["s0", "s1", "s2"]
    assert load_state(place.folder)["s0"].reason == "failed"


def test_each_step_has_its_limit(place):
    runner = Runner({"s0": 1e6, "s1": 5})
    assert runner.perform(steps(2, 3), place, 25) == {"s0": "timed out", "s1": "done"}
    assert runner.ran == [("s0", 120.0), ("s1", 180.0)]


def test_the_minutes_are_kept_and_the_next_call_goes_on(place):
    runner = Runner({"s0": 100, "s1": 1e6, "s2": 10})
    assert runner.perform(steps(2, 2, 2), place, 3) == {"s0": "done", "s1": "unfinished", "s2": "left"}
    assert runner.now_s <= 3 * 60 - gpu_session.CLOSING_S
    assert runner.perform(steps(2, 2, 2), place, 3) == {"s0": "done", "s1": "timed out", "s2": "done"}
    assert [name for name, _ in runner.ran] == ["s0", "s1", "s1", "s2"]
    assert load_state(place.folder)["s1"].seconds == pytest.approx(120.0)


def test_a_short_lease_leaves_time_for_plans_that_are_executed(place):
    runner = Runner(dict.fromkeys((step.name for step in STEPS), 1e6))
    for _ in range(2):
        runner.perform(shared_out(STEPS, 13.0), place, 6.5)
    ran = [name for name, limit_s in runner.ran]
    assert ran[: ran.index("hold_out")] == ["measure", "allocator", "contention", "profile"]
    assert runner.now_s <= 13 * 60
    assert shared_out(STEPS, 60.0) == list(STEPS)
    assert min(step.minutes for step in shared_out(STEPS, 3.0)) == 1.0


def test_what_would_gain_from_more_time_goes_on_until_its_own_time_is_used(place):
    runner = Runner({"s0": 35}, {"s0": "unfinished"})
    assert runner.perform(steps(2), place, 1.01) == {"s0": "unfinished"}
    assert runner.perform(steps(2), place, 5) == {"s0": "unfinished"}
    assert runner.perform(steps(2), place, 5) == {"s0": "done"}
    assert runner.perform(steps(2), place, 5) == {"s0": "done"}
    assert len(runner.ran) == 3


def test_what_failed_is_tried_again_by_the_next_call(place):
    runner = Runner({"s0": 5}, {"s0": "failed"})
    runner.perform(steps(2), place, 5)
    runner.ends = {}
    assert runner.perform(steps(2), place, 5) == {"s0": "done"}


def test_what_needs_a_step_is_done_again_after_it(place):
    held = [Step("s0", 2, nothing), Step("s1", 2, nothing, needs=("s0",))]
    runner = Runner({"s0": 5, "s1": 5}, {"s0": "failed"})
    for _ in range(3):
        runner.perform(held, place, 5)
        runner.ends = {}
    assert [name for name, _ in runner.ran] == ["s0", "s1", "s0", "s1"]


def test_hold_out_keeps_every_row_at_once(place, monkeypatch):
    class Row:
        def data(self):
            return {"error": 0.1}

    def hold_out(folder, device, steps, done, failed, resume):
        assert resume
        assert (folder, device, steps) == (place.profile, "cpu", 20)
        done(Row())
        assert json.loads((place.folder / "hold_out.json").read_text()) == {"result": [{"error": 0.1}]}
        done(Row())

    module = SimpleNamespace(hold_out=hold_out)
    monkeypatch.setattr(gpu_session, "import_module", {"calibration.execute.holdout": module}.__getitem__)
    assert gpu_session.hold_out(place) == [{"error": 0.1}] * 2
    module.hold_out = lambda *_, failed, **__: failed(SimpleNamespace(name="block h128"), RuntimeError("killed"))
    with pytest.raises(RuntimeError, match="block h128: killed"):
        gpu_session.hold_out(place)


@pytest.mark.parametrize("usable", [True, False])
def test_contention_is_measured_in_the_session_of_the_profile(place, monkeypatch, usable):
    place.profile.mkdir()
    (place.profile / "session.json").write_text('{"session": "abc"}')

    def measure(folder, session, seconds, device):
        assert (folder, session, seconds, device) == (place.profile, "abc", 60.0 - gpu_session.CLOSING_S, "cpu")
        return [1, 2, 3]

    modules = {
        "calibration.concurrent": SimpleNamespace(measure=measure),
        "calibration.contention": SimpleNamespace(fit=sum, usable=lambda made: usable),
    }
    monkeypatch.setattr(gpu_session, "import_module", modules.__getitem__)
    assert gpu_session.contention(place) == {"rows": 3, "fitted": 6 if usable else None}


def test_what_an_allocator_is_like_is_left_beside_the_samples(place, monkeypatch):
    found = {"replay": {"equal": True}}
    modules = {"calibration.memory": SimpleNamespace(FILE="memory.json", session=lambda device, keep: found)}
    monkeypatch.setattr(gpu_session, "import_module", modules.__getitem__)
    assert gpu_session.allocator(place) == found
    assert json.loads((place.profile / "memory.json").read_text()) == found


@pytest.mark.parametrize(
    ("step", "module"),
    [
        ("kernel_schedules", "calibration.taskmap.gpu_check"),
        ("recurrent_layers", "calibration.layers.lstm_check"),
        ("tempo_layers", "calibration.layers.tempo_check"),
    ],
)
def test_checks_keep_what_they_have_so_far(step, module, place, monkeypatch):
    def check(device, seconds, keep):
        assert (device, seconds) == ("cpu", 60.0 - gpu_session.CLOSING_S)
        keep({"complete": False})
        assert json.loads((place.folder / f"{step}.json").read_text()) == {"result": {"complete": False}}
        return {"complete": True}

    monkeypatch.setattr(gpu_session, "import_module", {module: SimpleNamespace(check=check)}.__getitem__)
    assert next(each for each in STEPS if each.name == step).run(place) == {"complete": True}


def test_workloads_go_on_with_what_is_there(place, monkeypatch):
    asked = []

    def run(request, bench, told):
        asked.append((request, bench))
        return {"rows": []}, 3

    def request(**given):
        return SimpleNamespace(**given)

    modules = {
        "calibration.workloads.suite": SimpleNamespace(Request=request, run=run),
        "calibration.session": SimpleNamespace(open_bench=lambda device: device),
    }
    monkeypatch.setattr(gpu_session, "import_module", modules.__getitem__)
    assert gpu_session.workloads(place) == {"results": {"rows": []}, "left": 3}
    ((held, bench),) = asked
    assert (held.out, held.size, held.resume, bench) == (place.profile, "tiny", True, "cpu")
    assert held.budget_s == 60.0 - gpu_session.CLOSING_S


def test_the_profile_comes_after_what_it_holds():
    names = [step.name for step in STEPS]
    (profile,) = (step for step in STEPS if step.name == "profile")
    assert set(profile.needs) == set(names[: names.index("profile")])


def test_a_wrong_state_file_is_one_error(place):
    (place.folder / "state.json").write_text('{"s0": {"status": "great"}}')
    with pytest.raises(InputError, match=r"state\.json: s0.status: got 'great'"):
        perform(steps(2), place, 5, separately)


@dataclass
class Found:
    path: Path
    error: float


def test_a_step_writes_its_result(place):
    step = Step("s", 1, lambda place: {"found": Found(Path("x"), 0.5), "limit": place.limit_s})
    assert in_process(step, place) == 0
    held = json.loads((place.folder / "s.json").read_text())
    assert held["result"] == {"found": {"path": "x", "error": 0.5}, "limit": 60.0}


def test_a_step_that_fails_says_where(place):
    def fail(place):
        raise ValueError("no such thing")

    assert in_process(Step("s", 1, fail), place) == 1
    held = json.loads((place.folder / "s.json").read_text())
    assert held["error"] == "ValueError: no such thing"
    assert "test_gpu_session.py" in held["where"]


def test_a_step_that_is_refused_says_why(place):
    """As of a profile folder that another process writes; what earlier calls said is not repeated."""
    for _ in range(2):
        with alone(place.profile):
            found = separately(Step("products", 1, nothing), replace(place, limit_s=60.0))
        assert found.status == "failed"
        assert re.fullmatch(r"exit status 2: error: --out: got '.*; allowed: one that no other .* does", found.reason)
    assert run(place, "import sys; sys.exit(3)").reason == "exit status 3"


@pytest.mark.parametrize("target", ["calibration.no_such_module", "calibration"])
def test_a_step_without_code_is_missing(place, target):
    step = Step("s", 1, lambda place: gpu_session.import_module(target).no_such_function())
    assert in_process(step, place) == MISSING


def run(place, code):
    return separately(Step("s", 1, nothing), place, lambda step, place: [sys.executable, "-c", code])


@pytest.mark.parametrize(("left", "status"), [(0, "done"), (2, "unfinished")])
def test_a_process_that_writes_its_result(place, left, status):
    result = json.dumps({"result": {"left": left}})
    code = f"import pathlib; pathlib.Path({str(place.folder / 's.json')!r}).write_text({result!r})"
    assert run(place, code).status == status


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(3)", "missing"), ("raise OSError", "failed")])
def test_how_a_process_ends(place, code, status):
    assert run(place, code).status == status
    assert ("OSError" in (place.folder / "s.log").read_text()) == (status == "failed")


def test_a_crash_is_a_failure(place):
    found = run(place, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (found.status, found.reason) == ("failed", "exit status -9")


def test_a_process_is_asked_to_end_at_its_limit(place):
    limited = Place("cpu", place.folder, "smoke", limit_s=0.5)
    begin = time.monotonic()
    found = run(limited, "import time; time.sleep(60)")
    assert found.status == "timed out"
    assert time.monotonic() - begin < 10


def test_a_process_that_does_not_listen_is_killed(place, monkeypatch):
    monkeypatch.setattr(gpu_session, "CLOSING_S", 0.3)
    limited = Place("cpu", place.folder, "smoke", limit_s=1.0)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    begin = time.monotonic()
    assert run(limited, code).status == "timed out"
    assert time.monotonic() - begin < 10


def test_the_command_of_a_step(place):
    made = command(STEPS[0], place)
    assert made[:3] == [sys.executable, "-m", "calibration.gpu_session"]
    assert made[3:5] == ["--device", "cpu"] and made[5:7] == ["--out", str(place.folder)]
    assert made[7:] == ["--suite", "smoke", "--only", "measure", "--limit", "60"]


def test_pack_holds_everything_that_has_room(tmp_path):
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "profile.json").write_text("{}")
    (tmp_path / "large.bin").write_bytes(os.urandom(50_000))
    assert pack(tmp_path) == []
    with zipfile.ZipFile(tmp_path / RESULTS) as archive:
        assert sorted(archive.namelist()) == ["large.bin", "profile/profile.json"]
    assert pack(tmp_path, most_bytes=20_000) == ["large.bin"]
    assert (tmp_path / RESULTS).stat().st_size <= 20_000


@pytest.fixture
def fake_session(monkeypatch):
    """A machine and a fit in place of the real ones, for steps that run in this process."""
    machine = FakeMachine()
    monkeypatch.setattr(session, "open_bench", lambda device: Bench(FINGERPRINT, machine.tools()))
    monkeypatch.setattr(registry, "FAMILIES", families(machine))
    monkeypatch.setattr(measured, "build_profile", lambda folder: load_profile("a100-sxm-80gb"))
    return machine


def test_the_whole_session_on_fakes(fake_session, monkeypatch, tmp_path):
    budgets_s = chain([1.0] * 3, repeat(100.0))

    def here(step, place):
        limit_s = gpu_session.CLOSING_S + next(budgets_s)
        code = in_process(step, Place(place.device, place.folder, place.suite, limit_s))
        held = json.loads((place.folder / f"{step.name}.json").read_text())
        left = code == 0 and held["result"].get("left")
        return Record(status="failed" if code else "unfinished" if left else "done", seconds=1.0)

    def absent(place):
        raise RuntimeError("not here")

    kept = [*(s for s in STEPS if s.name in ("measure", "profile")), Step("hold_out", 6.0, absent)]
    monkeypatch.setattr(gpu_session, "STEPS", kept)
    monkeypatch.setattr(gpu_session, "separately", here)
    arguments = ["--device", "cpu", "--suite", "smoke", "--out", str(tmp_path)]
    printed = json.loads(run_main(arguments).stdout)
    assert [held["status"] for held in printed["steps"].values()] == ["unfinished", "done", "failed"]
    assert json.loads(run_main(arguments).stdout)["steps"]["measure"]["status"] == "done"
    with zipfile.ZipFile(tmp_path / RESULTS) as archive:
        names = set(archive.namelist())
    assert {"state.json", "measure.json", "hold_out.json", "profile/samples.parquet", "profile/device.json"} <= names


def run_main(arguments):
    app = gpu_session.typer.Typer()
    app.command()(gpu_session.main)
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_measure_reports_counts(fake_session, place):
    place = replace(place, limit_s=100.0)  # on a CPU 40 s of it are for collectives and kernels side by side
    found = gpu_session.measure(place)
    assert (found["measured"], found["left"]) == (9, 0)
    assert gpu_session.measure(place)["session"] == found["session"]
    assert gpu_session.profile(place)["profiles"][0]["name"] == "a100-sxm-80gb"


def start(tmp_path, *arguments):
    return [sys.executable, "-m", "calibration.gpu_session", "--device", "cpu", "--out", str(tmp_path), *arguments]


@pytest.mark.parametrize(("options", "held"), [((), ""), (("--only", "measure"), "profile")])
def test_what_another_process_writes_is_refused_and_left_alone(fake_session, tmp_path, options, held):
    out = tmp_path / held
    told = InputError("--out", str(out), f"one that no other process writes; process {os.getpid()} does")
    with alone(out), pytest.raises(InputError, match=f"^{re.escape(str(told))}$"):
        run_main(["--device", "cpu", "--suite", "smoke", "--out", str(tmp_path), *options])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_session_and_its_step_keep_others_out(monkeypatch, tmp_path):
    def tried(place, folder):
        with pytest.raises(InputError, match="one that no other process writes"), alone(folder):
            pass
        return Record(status="done")

    monkeypatch.setattr(gpu_session, "STEPS", [Step("s", 1.0, lambda place: asdict(tried(place, place.profile)))])
    monkeypatch.setattr(gpu_session, "separately", lambda step, place: tried(place, place.folder))
    arguments = ["--device", "cpu", "--suite", "smoke", "--out", str(tmp_path)]
    assert json.loads(run_main(arguments).stdout)["steps"]["s"]["status"] == "done"
    assert run_main([*arguments, "--only", "s"]).exit_code == 0
    (tmp_path / LOCK).write_text("of a process that was killed")
    assert pack(tmp_path) == []
    with zipfile.ZipFile(tmp_path / RESULTS) as archive:
        assert sorted(archive.namelist()) == ["s.json", "state.json"]


def test_too_short_a_call_leaves_everything_for_the_next(tmp_path):
    done = subprocess.run(start(tmp_path, "--minutes", "0.1"), capture_output=True, text=True, check=True)
    assert {held["status"] for held in json.loads(done.stdout)["steps"].values()} == {"left"}
    assert (tmp_path / RESULTS).exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--minutes", "0"), ("--lease", "0"), ("--suite", "huge"), ("--device", "tpu"), ("--only", "x")],
)
def test_wrong_options_exit_2(tmp_path, option, value):
    done = subprocess.run(start(tmp_path / "d", option, value), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {option}: got ")


@pytest.mark.slow
def test_sigterm_ends_the_step_and_packs(tmp_path):
    code = (
        "import sys, time; from calibration import gpu_session as g; "
        "g.STEPS = (g.Step('s', 2.0, None),); "
        "slow = lambda s, p: [sys.executable, '-c', 'import time; time.sleep(60)']; "
        "run = g.separately; g.separately = lambda s, p: run(s, p, slow); "
        "g.typer.run(g.main)"
    )
    arguments = ["--device", "cpu", "--out", str(tmp_path)]
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.DEVNULL) as process:
        for _ in range(200):
            if (tmp_path / "s.log").exists():
                break
            time.sleep(0.1)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) != 0
    assert (tmp_path / RESULTS).exists()


USED = (
    *("calibration.gpu_session", "calibration.session", "calibration.errors", "calibration.kernels.registry"),
    *("calibration.measured", "calibration.execute", "calibration.concurrent", "calibration.memory"),
    "calibration.taskmap.gpu_check",
    "calibration.workloads.suite",
)


@pytest.mark.slow
def test_a_bare_machine_can_run_it():
    """Beside torch's usual company only pydantic and simpy are imported, by the modules of the steps too."""
    lacking = ("plotly", "ipywidgets", "anywidget", "jupyterlab", "traitlets", "nbformat", "pandas", "ray")
    code = (
        "import sys; from importlib import import_module; from importlib.util import find_spec; "
        f"sys.modules.update(dict.fromkeys({lacking})); "
        f"[import_module(name) for name in {USED} if find_spec(name)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
