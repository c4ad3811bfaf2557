"""Numbers that processes share: no change is lost, and nobody waits for a dead process."""

import os
import signal
import time
from multiprocessing import get_context

import pytest

from calibration.loading.cells import Cells


def count(cells, times):
    for _ in range(times):
        with cells.locked() as values:
            values[0] += 1


def hold(cells):
    with cells.locked() as values:
        values[1] = os.getpid()
        time.sleep(60)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_change_is_lost(tmp_path, method):
    cells = Cells(tmp_path / "cells", 2)
    processes = [get_context(method).Process(target=count, args=(cells, 500)) for _ in range(2)]
    for process in processes:
        process.start()
    count(cells, 500)
    for process in processes:
        process.join()
    assert cells.read() == [1500, 0]
    assert Cells(tmp_path / "cells", 2).read() == [1500, 0]  # what is there is taken over


def test_a_killed_process_holds_nothing_up(tmp_path):
    cells = Cells(tmp_path / "cells", 2)
    process = get_context("fork").Process(target=hold, args=(cells,))
    process.start()
    while not (tmp_path / "cells").read_bytes()[8:].strip(b"\0"):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    count(cells, 1)
    assert cells.read() == [1, process.pid]
    process.join()
