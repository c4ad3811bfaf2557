"""Throttled storage: one bandwidth for all processes, latencies side by side, waiting without work."""

import time
from multiprocessing import get_context

import pytest

from calibration.loading.throttled import Throttle, Throttled
from sim.specs.fields import InputError
from tests.calibration.loading.numbers import Numbers


def test_files_take_turns_at_the_bandwidth_and_wait_for_latency_side_by_side(tmp_path):
    throttle = Throttle(tmp_path / "cells", bytes_per_s=1000, latency_s=0.5)
    assert throttle.ready_ns(10**9, 100) == 10**9 + 600_000_000  # 0.1 s of transfer, 0.5 s of latency
    assert throttle.ready_ns(10**9, 100) == 10**9 + 700_000_000  # behind the first, its latency beside the first's
    assert throttle.ready_ns(5 * 10**9, 0) == 5 * 10**9 + 500_000_000  # storage was idle


def read_all(source, items):
    for item in items:
        source.read(item)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_the_bandwidth(tmp_path, method):
    source = Throttled(Numbers(40, size=1000), Throttle(tmp_path / "cells", bytes_per_s=100_000))
    context = get_context(method)
    processes = [context.Process(target=read_all, args=(source, range(20))) for _ in range(2)]
    begin = time.monotonic()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert time.monotonic() - begin >= 0.39  # 40 kB at 100 kB/s, less the tick of a sleep


def test_waiting_takes_no_core(tmp_path):
    source = Throttled(Numbers(20), Throttle(tmp_path / "cells", bytes_per_s=1e9, latency_s=0.01))
    begin, worked = time.monotonic(), time.process_time()
    read_all(source, range(20))
    assert time.process_time() - worked < (time.monotonic() - begin) / 4


@pytest.mark.parametrize(("rate", "latency", "path"), [(0, 0, "bytes_per_s"), (1, -1, "latency_s")])
def test_numbers_out_of_range(tmp_path, rate, latency, path):
    with pytest.raises(InputError) as error:
        Throttle(tmp_path / "cells", rate, latency)
    assert error.value.path == path
