"""Processes that die, hang or lose whoever started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from calibration.execute.processes import ExecutionError, run_processes

BODY = """
import os, sys, time, json, threading
from pathlib import Path
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
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
    return [int(p.read_text()) for p in folder.glob("*.pid") if psutil.pid_exists(int(p.read_text()))]


def test_every_process_hands_back_its_result(tmp_path, monkeypatch):
    started(monkeypatch, tmp_path)
    body = "(folder / f'result-{rank}.json').write_text(json.dumps({'rank': rank}))"
    assert run_processes({"ranks": 2}, 20.0, worker(tmp_path, body)) == [{"rank": 0}, {"rank": 1}]
    assert not left(tmp_path)
    assert not list(tmp_path.glob("trainsim-*"))


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
    body = "from calibration.execute.worker import end_with_input\nend_with_input()"
    command = worker(tmp_path, body)
    code = f"from calibration.execute.processes import run_processes; run_processes({{'ranks': 2}}, 60.0, {command!r})"
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as starter:
        end = time.monotonic() + 60
        while len(list(tmp_path.glob("*.pid"))) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(left(tmp_path)) == 2
        starter.send_signal(signal.SIGKILL)
    while left(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left(tmp_path)
