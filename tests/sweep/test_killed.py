"""Sweeps whose driver or workers are killed: nothing acknowledged is lost, nothing is there twice.

A few kills by default, a hundred under HYPOTHESIS_PROFILE=full, a third of them inside a write.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
import pytest

from sim.specs import InputError
from sim.sweep.grid import Grid
from sim.sweep.run import SweepStopped, sweep
from sim.sweep.runners import MAX_LOSSES
from sim.sweep.store import Store
from tests.contracts.runner import rows
from tests.full import FULL
from tests.oracle import ROOT
from tests.sweep import driver
from tests.sweep.conftest import BASE, QUICK

KILLS = {"before": 20, "inside": 20, "any time": 20, "worker": 40} if FULL else {"inside": 1, "worker": 1}
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


@dataclass
class Round:
    """One driver until its end. acknowledged: blocks that it said were safe."""

    path: Path
    runner: str
    how: str = "never"
    after: int = 0
    acknowledged: list[int] = field(default_factory=list)

    def __enter__(self):
        command = [sys.executable, driver.__file__, self.path, self.runner, self.how, str(self.after)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENV)
        return self

    def __exit__(self, *_):
        self.process.kill()
        for line in self.process.stdout:
            self.heard(line)
        self.process.wait()
        self.process.stdout.close()

    def heard(self, line: str) -> str:
        if line.startswith("ack ") and line.endswith("\n"):
            self.acknowledged.append(int(line.split()[1]))
        return line

    def until(self, wanted) -> bool:
        """Read on until a line is wanted; False at the driver's end."""
        return any(wanted(self.heard(line)) for line in self.process.stdout)


def killed(path: Path, kind: str, left: int, random: Random) -> tuple[list[int], int]:
    """Run a driver that is killed, or whose workers are; return what it acknowledged and how often anyone was."""
    after = random.randint(1, 6)
    if kind == "before":
        with Round(path, "here", "before", after) as one:
            one.until(lambda line: False)
            return one.acknowledged, int(one.process.wait() == -signal.SIGKILL)
    if kind == "inside":
        with Round(path, "here", "inside", after) as one:
            inside = one.until(lambda line: line == "committing\n")
            time.sleep(random.uniform(0, 3e-3))
            one.process.kill()
            return one.acknowledged, int(inside and one.process.wait() == -signal.SIGKILL)
    if kind == "any time":
        with Round(path, "pool") as one:
            time.sleep(random.uniform(0, 6))
            one.process.kill()
            return one.acknowledged, int(one.process.wait() == -signal.SIGKILL)
    with Round(path, "pool") as one:
        times = 0
        for _ in range(min(left, MAX_LOSSES - 2)):
            seen = len(one.acknowledged) + after
            if not one.until(lambda line, seen=seen: len(one.acknowledged) >= seen):
                break
            workers = psutil.Process(one.process.pid).children()
            if workers:
                time.sleep(random.uniform(0, 0.02))
                with suppress(psutil.NoSuchProcess):  # the driver had done, and ended it
                    random.choice(workers).kill()
                    times += 1
        one.until(lambda line: False)
        assert one.process.wait() == 0
        return one.acknowledged, times


@pytest.mark.slow
@pytest.mark.usefixtures("anew")
def test_no_acknowledged_block_is_lost_or_doubled(tmp_path, monkeypatch):
    monkeypatch.setattr("sim.sweep.writer.BLOCK_ROWS", {"analytic": driver.ROWS})
    grid, path = Grid(**BASE, axes=QUICK), tmp_path / "killed.db"
    sweep(grid, tmp_path / "whole.db", "here")
    whole, done = rows(tmp_path / "whole.db"), Counter()
    random = Random(None if FULL else 1)
    safe: set[int] = set()
    while any(done[kind] < n for kind, n in KILLS.items()):
        kind = random.choice([kind for kind, n in KILLS.items() if done[kind] < n])
        acknowledged, times = killed(path, kind, KILLS[kind] - done[kind], random)
        done[kind] += times
        assert not safe & set(acknowledged), "a block that was safe was computed again"
        safe |= set(acknowledged)
        if path.exists() and path.stat().st_size:
            try:
                held = {number for number, _, _ in rows(path)}
            except InputError:  # killed before the store was made
                assert not safe
                continue
            assert safe <= held
            assert len(held - safe) <= 1, "only what was being acknowledged may be there beyond"
            safe = held
        if len(safe) == len(whole):
            assert rows(path) == whole
            for each in tmp_path.glob("killed.db*"):
                each.unlink()
            safe = set()
    sweep(grid, path, "here", resume=True)
    assert rows(path) == whole
    with Store(path) as store:
        assert store.counts.left == 0
        assert store.db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    sys.stdout.write(f"kills: {dict(done)}\n")
    assert sum(done.values()) >= sum(KILLS.values())
    assert done["before"] + done["inside"] >= (30 if FULL else 1)


@pytest.mark.slow
def test_an_interrupt_ends_with_one_message_and_resumes(small, tmp_path, monkeypatch):
    monkeypatch.setattr("sim.sweep.writer.BLOCK_ROWS", {"analytic": 64})

    def interrupt(now):
        raise KeyboardInterrupt

    path = tmp_path / "runs.db"
    monkeypatch.setattr("sim.sweep.run.PROGRESS_EVERY_S", 0.0)
    with pytest.raises(SweepStopped) as stop:
        sweep(small, path, "here", progress=interrupt)
    assert str(stop.value) == f"interrupted; 64 of 540 configurations are safe in {path}: go on with --resume"
    assert sweep(small, path, "here", resume=True).counts.left == 0


@pytest.mark.slow
def test_control_c_at_the_shell(tmp_path):
    """The program itself, its workers and one line; then it goes on."""
    grid, store = tmp_path / "grid.yaml", tmp_path / "runs.db"
    axes = "{plan.tp: [2, 4, 8], plan.micro_batch: [1, 2, 4, 8], plan.pp: [1, 2, 4], plan.zero: [0, 1]}"
    base = "{device: h100-sxm-80gb, nodes: 4}"
    grid.write_text(f"model: llama3-8b\ncluster: {base}\nplan: {{global_batch: 256}}\naxes: {axes}\nengine: events\n")
    command = [sys.executable, "-m", "sim", "sweep", grid, "--store", store, "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV) as run:
        deadline = time.monotonic() + 60
        while not (store.exists() and _some(store)) and time.monotonic() < deadline:
            time.sleep(0.02)
        workers = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=30)
        assert run.returncode == 1
    last = said.strip().splitlines()
    assert "stopped: interrupted;" in said and "go on with --resume" in " ".join(last)
    assert "Traceback" not in said
    assert not any(w.is_running() and w.status() != psutil.STATUS_ZOMBIE for w in workers)
    assert sweep(Grid.load(grid), store, "here", resume=True).counts.left == 0


def _some(path: Path) -> bool:
    try:
        with Store(path) as store:
            return store.counts.done > 0
    except InputError:  # it is being made
        return False
