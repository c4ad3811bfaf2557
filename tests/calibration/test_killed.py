"""A calibration that is killed again and again: no sample lost, none measured twice, the same samples in the end.

A few kills by default, a hundred under HYPOTHESIS_PROFILE=full, some of them inside a write.
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

from calibration.store import SAMPLES, SESSION, load_session, read_samples
from tests.calibration import killed_driver
from tests.full import FULL
from tests.oracle import ROOT

KILLS = {"any time": 60, "open": 20, "os.rename": 20} if FULL else {"any time": 2, "open": 2, "os.rename": 2}
MOST_AFTER_S = 0.2
"""Until a kill at any time: about as long as a whole calibration of the fake machine."""

MOST_WRITES = 12


@pytest.fixture
def calibrations():
    """Yield a driver."""
    command, env = [sys.executable, killed_driver.__file__], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as made:
        yield made
        made.stdin.close()
        made.wait(60)


def run(driver, folder, at=None, after_s=None) -> tuple[int, list[str], set[str]]:
    """Run one calibration, killed at an event or after some seconds; return (status, ids measured, ids told safe)."""
    driver.stdin.write(json.dumps({"folder": str(folder), "at": at}) + "\n")
    driver.stdin.flush()
    pid = None
    measured, safe = [], set()
    for line in driver.stdout:
        kind, _, rest = line.strip().partition(" ")
        if kind == "pid":
            pid = int(rest)
            if after_s is not None:
                time.sleep(after_s)
                os.kill(pid, signal.SIGKILL)
        elif kind == "measured":
            measured.append(rest)
        elif kind == "safe":
            safe = set(json.loads(rest))
        elif kind == "ended":
            return int(rest), measured, safe
    raise AssertionError("the driver has ended")


def held(folder) -> dict[str, dict[str, object]]:
    """Return the rows of a folder by id, each there once; the session beside them is whole."""
    rows = read_samples(folder / SAMPLES) if (folder / SAMPLES).exists() else []
    if (folder / SESSION).exists():
        load_session(folder)
    by_id = {row["id"]: row for row in rows}
    assert len(by_id) == len(rows)
    return by_id


def timeless(rows):
    """Return rows without when, and in which session, they were measured."""
    return {name: {key: row[key] for key in row.keys() - {"at", "session"}} for name, row in rows.items()}


@pytest.mark.slow
def test_killed_at_random_no_sample_is_lost_or_measured_twice(tmp_path, calibrations):
    whole = tmp_path / "whole"
    whole.mkdir()
    assert run(calibrations, whole)[0] == 0
    expected = timeless(held(whole))
    assert len(expected) == len(killed_driver.OPS) * killed_driver.CASES
    random, done, rounds = Random(None if FULL else 2), Counter(), 0
    while any(done[kind] < n for kind, n in KILLS.items()):
        folder = tmp_path / f"round-{rounds}"
        folder.mkdir()
        rounds, status = rounds + 1, -1
        while status:
            before = held(folder)
            kind = random.choice([kind for kind, n in KILLS.items() if done[kind] < n] or ["end"])
            at = (kind, random.randint(1, MOST_WRITES)) if kind in ("open", "os.rename") else None
            after_s = random.uniform(0, MOST_AFTER_S) if kind == "any time" else None
            status, measured, safe = run(calibrations, folder, at, after_s)
            assert status in (0, signal.SIGKILL)
            done[kind] += status == signal.SIGKILL
            after = held(folder)
            assert not before.keys() & set(measured), "a sample that was safe was measured again"
            assert safe <= after.keys() <= before.keys() | set(measured)
            assert {name: after[name] for name in before} == before
        assert timeless(held(folder)) == expected
        assert {row["session"] for row in held(folder).values()} == {load_session(folder).session}
        assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}
    sys.stdout.write(f"kills: {dict(done)} in {rounds} calibrations\n")
    assert sum(done.values()) >= sum(KILLS.values())
