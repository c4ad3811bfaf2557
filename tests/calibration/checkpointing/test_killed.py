"""A training that is killed again and again: no sample lost or doubled, weights as if nothing had happened.

A dozen kills by default, a hundred under HYPOTHESIS_PROFILE=full, more than a third of them inside a phase of saving.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from random import Random

import pytest
import torch

from calibration.checkpointing.checkpointer import latest_valid, load
from calibration.checkpointing.engine import TorchSave
from calibration.checkpointing.training import history
from tests.calibration.checkpointing import driver
from tests.full import FULL
from tests.oracle import ROOT

INSIDE = ("write", "fsync", "rename", "remove", "snapshot")
KILLS = {"any time": 50, **dict.fromkeys(INSIDE, 10)} if FULL else {"any time": 2, **dict.fromkeys(INSIDE, 1)}
STEPS, EVERY = 40, 4
MOST_AFTER_S = 0.15
"""Until a kill at any time: about as long as a run needs for all of its steps."""


@pytest.fixture(scope="module")
def trainings():
    """Yield a driver."""
    command, env = [sys.executable, driver.__file__], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as made:
        yield made
        made.stdin.close()
        made.wait(60)


def run(trainings, folder, at=None, after_s=None, workers=0) -> int:
    """Run one training, killed inside a phase or after some seconds; return its status."""
    asked = {"folder": str(folder), "steps": STEPS, "every": EVERY, "workers": workers, "at": at}
    trainings.stdin.write(json.dumps(asked) + "\n")
    trainings.stdin.flush()
    pid = int(trainings.stdout.readline().removeprefix("pid "))
    if after_s is not None:
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
    for line in trainings.stdout:
        if line == "inside\n":
            os.kill(pid, signal.SIGKILL)
        elif line.startswith("ended "):
            return int(line.split()[1])
    raise AssertionError("the driver has ended")


def saved(folder):
    """Return the step of the latest valid checkpoint, 0 where there is none."""
    found = latest_valid(folder)
    return found.manifest.progress.step if found else 0


def weights(folder):
    """Return the last state's tensors, by name."""
    state = load(latest_valid(folder), TorchSave())
    moments = {f"{n}.{name}": one for n, held in state["optimizer"]["state"].items() for name, one in held.items()}
    return state["model"] | moments


def check(folder, whole) -> None:
    """Every sample once an epoch, and the weights of a run that nobody killed."""
    updates, expected = history(folder / "log"), history(whole / "log")
    assert updates == expected
    epochs = Counter((update.epoch, index) for update in updates for index in update.samples)
    assert set(epochs.values()) == {1}
    full_epochs = max(update.epoch for update in updates)
    assert all(len([1 for epoch, _ in epochs if epoch == e]) == driver.SAMPLES for e in range(full_epochs))
    ours, theirs = weights(folder), weights(whole)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_killed_at_random_nothing_is_lost_or_doubled(tmp_path, trainings):
    whole = tmp_path / "whole"
    whole.mkdir()
    assert run(trainings, whole) == 0 and saved(whole) == STEPS
    random, done, rounds, resumed = Random(None if FULL else 3), Counter(), 0, Counter()
    while any(done[kind] < n for kind, n in KILLS.items()):
        folder = tmp_path / f"round-{rounds}"
        folder.mkdir()
        rounds += 1
        status = -1
        while status:
            left = [kind for kind, n in KILLS.items() if done[kind] < n]
            kind, before = random.choice(left) if left else "end", saved(folder)
            at = (kind, random.randint(1, 3)) if kind in INSIDE else None
            after_s = random.uniform(0, MOST_AFTER_S) if kind == "any time" else None
            status = run(trainings, folder, at, after_s, workers=2 * (random.random() < 0.1))
            done[kind] += status == signal.SIGKILL
            after = saved(folder)
            assert before <= after, "a checkpoint that was there is found again, or a later one"
            resumed[after] += 1
        assert saved(folder) == STEPS
        check(folder, whole)
    sys.stdout.write(f"kills: {dict(done)} in {rounds} trainings; resumed at {dict(sorted(resumed.items()))}\n")
    assert sum(done[kind] for kind in INSIDE) >= (30 if FULL else 5) and sum(done.values()) >= (100 if FULL else 7)


@pytest.mark.slow
@pytest.mark.parametrize("phase", INSIDE)
def test_what_is_found_after_a_kill_inside(tmp_path, trainings, phase):
    """Killed inside its third checkpoint, the second is found; once it is renamed, the third."""
    writes = {"write": None}
    assert run(trainings, tmp_path, at=(phase, 3)) == signal.SIGKILL
    drafts = list(tmp_path.glob(".draft-*"))
    assert saved(tmp_path) == (3 * EVERY if phase == "remove" else 0 if phase in writes else 2 * EVERY)
    assert len(drafts) == (phase != "remove")
    assert run(trainings, tmp_path) == 0
    assert saved(tmp_path) == STEPS and not list(tmp_path.glob(".draft-*"))
