"""Processes that die, hang or lose whoever started them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from calibration.execute.measure import MOST_STEPS, Run, Setting, prepare
from calibration.execute.processes import ENVIRONMENT, ExecutionError, bound, run_processes
from sim.plans.files import plain
from sim.plans.torch_csv import schedule_csv
from sim.schedules import Shape, build
from sim.specs import InputError
from tests.calibration.execute.cases import SMALL, plan
from tests.full import fully

BODY = """
import os, sys, time, json, threading
from pathlib import Path
folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
(folder.parent / f"{os.getppid()}-{rank}.pid").write_text(str(os.getpid()))
"""


def worker(folder: Path, body: str) -> list[str]:
    """Return the command of a process that does `body`."""
    path = folder / "worker.py"
    path.write_text(BODY + body)
    return [sys.executable, str(path)]


def started(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put the folders of runs into `folder`."""
    monkeypatch.setattr("tempfile.tempdir", str(folder))


def left(folder: Path) -> list[int]:
    """Return the processes that still run."""
    written = [text for p in folder.glob("*.pid") if (text := p.read_text())]  # empty: it is just being written
    return [int(text) for text in written if psutil.pid_exists(int(text))]


def test_every_process_hands_back_its_result(tmp_path, monkeypatch):
    started(monkeypatch, tmp_path)
    body = "(folder / f'result-{rank}.json').write_text(json.dumps({'rank': rank}))"
    assert run_processes({"ranks": 2}, 20.0, worker(tmp_path, body)) == [{"rank": 0}, {"rank": 1}]
    assert not left(tmp_path)
    assert not list(tmp_path.glob("trainsim-*"))


def test_what_a_process_writes_for_a_while_goes_with_the_run(tmp_path, monkeypatch):
    """Compiled kernels, say: it ends without cleaning up, or is killed."""
    started(monkeypatch, tmp_path)
    body = "import tempfile; (folder / 'result-0.json').write_text(json.dumps({'left': tempfile.mkdtemp()}))"
    (found,) = run_processes({"ranks": 1}, 20.0, worker(tmp_path, body))
    assert Path(found["left"]).parents[1] == tmp_path and not Path(found["left"]).exists()


def test_a_result_of_the_most_steps_is_read(tmp_path):
    longest = f"dict.fromkeys(('seconds', 'losses'), [-1.2345678901234567e-100] * {MOST_STEPS + 3})"
    body = f"(folder / f'result-{{rank}}.json').write_text(json.dumps({longest}))"
    (found,) = run_processes({"ranks": 1}, 20.0, worker(tmp_path, body))
    assert len(found["losses"]) == MOST_STEPS + 3


def test_the_death_of_one_ends_the_other_and_is_told_with_its_last_words(tmp_path, monkeypatch):
    started(monkeypatch, tmp_path)
    monkeypatch.setattr("calibration.execute.processes.GRACE_S", 0.2)
    command = worker(tmp_path, "time.sleep(60 * (1 - rank)); sys.exit('out of cheese')")
    with pytest.raises(ExecutionError, match="process 1 of 2 died with exit code 1: out of cheese"):
        run_processes({"ranks": 2}, 30.0, command)
    assert not left(tmp_path)


def test_a_killed_process_is_told_with_its_signal(tmp_path, monkeypatch):
    started(monkeypatch, tmp_path)
    command = worker(tmp_path, "os.kill(os.getpid(), 9)")
    with pytest.raises(ExecutionError, match="process 0 of 1 was ended by signal 9: it said nothing"):
        run_processes({"ranks": 1}, 30.0, command)


def test_a_process_that_hangs_is_ended(tmp_path, monkeypatch):
    started(monkeypatch, tmp_path)
    with pytest.raises(ExecutionError, match=r"process 0 has not ended after 0\.5 s"):
        run_processes({"ranks": 2}, 0.5, worker(tmp_path, "time.sleep(60)"))
    assert not left(tmp_path)


def test_the_worker_ends_with_whoever_started_it(tmp_path):
    """The starter is killed without a chance to clean up."""
    body = "from calibration.execute.process import end_with_input\nend_with_input()"
    command = worker(tmp_path, body)
    code = f"from calibration.execute.processes import run_processes; run_processes({{'ranks': 2}}, 60.0, {command!r})"
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as starter:
        end = time.monotonic() + 60
        while len(left(tmp_path)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(left(tmp_path)) == 2
        starter.send_signal(signal.SIGKILL)
    while left(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left(tmp_path)


def test_whoever_was_ended_is_told_before_whoever_missed_it(tmp_path, monkeypatch):
    started(monkeypatch, tmp_path)
    body = "os.kill(os.getpid(), 9) if rank else (time.sleep(0.5), sys.exit('Connection closed by peer'))"
    with pytest.raises(ExecutionError, match="process 1 of 2 was ended by signal 9"):
        run_processes({"ranks": 2}, 30.0, worker(tmp_path, body))


def test_the_last_lines_are_told(tmp_path, monkeypatch):
    started(monkeypatch, tmp_path)
    with pytest.raises(ExecutionError, match=r"exit code 1: two \| three \| four$"):
        run_processes({"ranks": 1}, 30.0, worker(tmp_path, "sys.exit('one\\ntwo\\nthree\\nfour')"))


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path, monkeypatch):
    started(monkeypatch, tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"--port: got {port}; allowed: a port of 127\.0\.0\.1 that nobody uses"):
            run_processes({"ranks": 1}, 20.0, worker(tmp_path, ""), port=port)
    assert not list(tmp_path.glob("*.pid"))


def test_they_meet_at_the_port_that_was_asked_for(tmp_path, monkeypatch):
    started(monkeypatch, tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    body = "(folder / f'result-{rank}.json').write_text(json.dumps({'at': os.environ['MASTER_PORT']}))"
    assert run_processes({"ranks": 1}, 20.0, worker(tmp_path, body), port=port) == [{"at": str(port)}]


def test_a_port_whose_last_connection_was_just_closed_is_used_again():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with bound(port) as first, socket.create_connection(("127.0.0.1", port)) as client:
        first.accept()[0].close()  # whoever closes first keeps the port in TIME-WAIT
        assert client.recv(1) == b""
    bound(port).close()


def test_an_interrupt_ends_the_processes(tmp_path):
    command = worker(tmp_path, "time.sleep(60)")
    code = f"from calibration.execute.processes import run_processes; run_processes({{'ranks': 2}}, 60.0, {command!r})"
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL) as starter:
        end = time.monotonic() + 60
        while len(left(tmp_path)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        starter.send_signal(signal.SIGINT)
    assert not left(tmp_path)
    assert not list(tmp_path.glob("trainsim-*"))


@pytest.mark.slow
def test_a_rank_that_dies_in_training_is_told_and_the_others_are_ended(tmp_path, monkeypatch):
    """The real worker: rank 1 leaves in the middle of a step, rank 0 waits for its message."""
    started(monkeypatch, tmp_path)
    given = plan(pp=2, schedule="1f1b")
    run = {"what": "step", "model": plain(SMALL), "plan": plain(given), "order": "o.csv", "steps": 10, "seed": 0}
    body = """
from calibration.execute import process, trainer, worker
steps = []
def step(self):
    steps.append(1)
    sys.exit('out of cheese') if rank == 1 and len(steps) > 2 else None
    return real(self)
real, trainer.Trainer.step = trainer.Trainer.step, step
process.whole(folder, worker.main)
"""
    orders = {"o.csv": schedule_csv(build("1f1b", Shape(2, 4)))}
    with pytest.raises(ExecutionError, match=r"process 1 of 2 died with exit code 1: .*out of cheese"):
        run_processes({"ranks": 2, "device": "cpu", "runs": [run]}, 60.0, worker(tmp_path, body), orders)
    assert not left(tmp_path)


@fully
def test_the_worker_runs_under_torchrun(tmp_path):
    said = prepare(Run(SMALL, plan(dp=2)), Setting(), tmp_path).split()
    assert said[0] == "torchrun"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--rdzv-endpoint",
        "127.0.0.1:0",
        "--rdzv-backend",
        "c10d",
    ]
    command += said[1:]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, env=environment, check=True, timeout=120)
    errors = [json.loads((tmp_path / f"result-{r}.json").read_text())["runs"][0]["gradient_error"] for r in (0, 1)]
    assert max(errors) < 1e-5
