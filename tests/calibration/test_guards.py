"""Busy machines are refused, drift is told, and SIGTERM ends like Ctrl-C."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration import guards
from calibration.guards import BusyError, OutOfTime, admit, drift, interruptible, moved, settled, within
from calibration.host import HostLoad, TeamLoad, cache_bytes, cpu_name, first_processor, host_instruments
from tests.calibration.fakes import FakeMachine


def test_an_idle_machine_is_admitted_after_one_second():
    machine = FakeMachine(others=[0.9, 0.02])
    admit(machine.tools())
    assert machine.now_s == 1.0


def test_a_short_burst_is_waited_for():
    machine = FakeMachine(others=[0.0, 0.5, 0.3, 0.0])
    admit(machine.tools())
    assert machine.now_s == 3.0


def test_a_busy_machine_is_refused_with_the_reason():
    with pytest.raises(BusyError, match=r"others use 80\u00a0% of it, at most 10\u00a0% .* --despite-load"):
        admit(FakeMachine(others=[0.8]).tools())


def test_the_sentinel_settles():
    assert settled(FakeMachine(sentinels=[0.03, 0.02, 0.0101, 0.01, 0.01]).tools()) == 0.01


def test_a_sentinel_that_never_settles_ends():
    machine = FakeMachine(sentinels=[0.5 + 0.1 * (n % 2) for n in range(50)])
    assert settled(machine.tools()) in (0.5, 0.6)
    assert 5.0 < machine.now_s < 7.0


def test_drift_is_the_reading_farther_from_the_reference():
    assert drift(1.0, 1.01, 0.95) == 0.95
    assert drift(2.0, 2.2, 1.99) == 1.1


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_drift_is_flagged_where_either_reading_moved(before, after):
    assert moved(drift(1.0, before, after)) == (abs(before - 1) > 0.03 or abs(after - 1) > 0.03)


def test_sigterm_interrupts_and_the_handler_is_put_back():
    was = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(5)
    assert signal.getsignal(signal.SIGTERM) is was


def test_the_end_of_the_time_interrupts_and_one_in_time_is_left_alone():
    with pytest.raises(OutOfTime), within(0.01):
        threading.Event().wait(5)
    with within(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_the_end_of_the_time_is_told_again_where_it_was_not_heard(monkeypatch):
    monkeypatch.setattr(guards, "AGAIN_S", 0.01)
    with pytest.raises(OutOfTime), within(0.01):
        with suppress(OutOfTime):
            threading.Event().wait(5)
        threading.Event().wait(5)


def test_other_threads_are_left_alone():
    done = []

    def work():
        with interruptible(), within(60):
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


class Counted(HostLoad):
    """The load of counters that the test sets: (all, busy, own) CPU seconds."""

    counters = (0.0, 0.0, 0.0)

    def _read(self):
        return self.counters


def test_load_is_what_others_used_of_all_cores():
    load = Counted()
    load.counters = (20.0, 12.0, 10.0)
    assert load.others() == pytest.approx(0.1)
    load.counters = (20.05, 12.05, 10.0)
    assert load.others() == pytest.approx(0.1), "too short to tell: the last figure"
    load.counters = (30.0, 12.0, 20.0)
    assert load.others() == 0.0


def test_the_real_load_is_a_share():
    load = HostLoad()
    sum(n * n for n in range(2_000_000))
    assert 0.0 <= load.others() <= 1.0


def test_processes_that_this_one_starts_are_no_others():
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    alone, team = HostLoad(), TeamLoad()
    own_s = [load._read()[2] for load in (alone, team)]
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline()
        assert team._read()[2] - own_s[1] > 0.25
        child.communicate(b"\n")
    assert team._read()[2] - own_s[1] > 0.25 > alone._read()[2] - own_s[0]


def test_the_real_sentinel_repeats():
    tools = host_instruments(1)
    readings = [tools.sentinel() for _ in range(3)]
    assert 1e-4 < min(readings) <= max(readings) < 10 * min(readings)


def test_this_cpu_has_a_name():
    vendor, name = cpu_name()
    assert vendor
    assert name


def test_sizes_of_caches(tmp_path):
    for index, size in enumerate(("32K", "1M", "24M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert cache_bytes(tmp_path) == {"index0": 32 * 2**10, "index1": 2**20, "index2": 24 * 2**20}
    assert cache_bytes(tmp_path / "none") == {}


def test_what_is_told_of_the_first_core(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("vendor_id\t: X\nflags\t\t: fpu avx2\n\nvendor_id\t: Y\n")
    assert first_processor(file) == {"vendor_id": "X", "flags": "fpu avx2"}
    assert first_processor(tmp_path / "none") == {}
