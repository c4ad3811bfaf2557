"""Processes whose parent is killed."""

import subprocess
import sys

import psutil
import pytest

from tests.oracle import ROOT

FORKED = """
import os, time
if os.fork() == 0:
    from sim.tuner.orphans import end_with_parent
    end_with_parent()
    print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_process_ends_soon_after_its_parent_was_killed():
    with subprocess.Popen([sys.executable, "-c", FORKED], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        child.wait(10)
    assert not child.is_running()
