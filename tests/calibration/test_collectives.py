"""Measured collectives: real ranks on the loopback interface, their end whatever happens, and the fit."""

import json
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from calibration import collectives
from calibration.collectives import FITTED, OPERATIONS, Measured, fit, measure, predict
from calibration.fit import Free
from sim.specs import InputError

RATE = 1e10
TRUTH = {
    "intra_efficiency_reduce": 0.3,
    "intra_efficiency_gather": 0.5,
    "intra_alpha": 1e-4,
    "intra_alpha_rank": 2e-5,
    "intra_own": 0.4,
    "intra_fill_s": 3e-4,
    "intra_fill_bytes": 1e5,
}


def toy(ranks=(2, 4), sizes=tuple(4**k for k in range(5, 14))):
    """Return collectives of a machine that the model describes."""
    made = [Measured(o, n, s, "gloo", (1.0,), 1, 0.0) for n in ranks for o in OPERATIONS for s in sizes]
    return [replace(m, seconds=(float(t),)) for m, t in zip(made, predict(made, RATE, TRUTH), strict=True)]


def test_known_parameters_are_found_again():
    found = fit(toy(), RATE)
    for name, value in TRUTH.items():
        assert found.parameters[name] == pytest.approx(value, rel=0.05)
    assert found.parameters["inter_alpha"] == 0
    assert max(found.errors[name].mape for name in FITTED) < 2


def test_two_ranks_alone_leave_what_needs_more_out():
    found = fit(toy(ranks=(2,)), RATE)
    assert found.parameters["intra_alpha_rank"] == 0
    assert "intra_own" not in found.parameters
    assert max(found.errors[name].mape for name in FITTED) < 10


def test_too_few_sizes_are_refused():
    with pytest.raises(InputError, match="at least three sizes"):
        fit(toy(sizes=(1024, 4096)), RATE)


def test_a_row_has_the_columns_of_a_sample():
    row = Measured("all_reduce", 2, 4096, "gloo", (3e-4, 2e-4, 4e-4), 5, 0.0).row
    assert (row["op"], row["direction"], row["t_s"], row["n"], row["launches"]) == (
        "collective",
        "all_reduce",
        2e-4,
        3,
        5,
    )
    assert json.loads(row["shape"]) == {"n": 2, "n_in": 2, "size": 4096}
    assert Measured("p2p", 2, 8, "nccl", (3e-4, 2e-4, 4e-4), 5, 0.0).t_s == 3e-4


@pytest.mark.slow
def test_two_processes_on_the_loopback_interface():
    """All operations, correct; no socket beyond 127.0.0.1; no process left."""
    found, others = [], set(psutil.Process().children(recursive=True))  # of other tests: multiprocessing's trackers
    thread = threading.Thread(target=lambda: found.append(measure(budget_s=20, sizes=(1024, 65536))))
    thread.start()
    addresses, children = set(), set()
    while thread.is_alive():
        for child in set(psutil.Process().children(recursive=True)) - others:
            children.add(child)
            try:
                addresses |= {c.laddr.ip for c in child.net_connections("inet") if c.laddr}
            except psutil.Error:  # it has just ended
                continue
        time.sleep(0.05)
    thread.join()
    samples, skipped = found[0]
    assert {s.operation for s in samples} | set(skipped) == set(OPERATIONS)
    assert "all_reduce" not in skipped
    assert all(s.error == 0 and 0 < s.t_s < 1 for s in samples)
    assert all(len(s.seconds) >= 25 for s in samples)
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert children
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_ranks_that_do_not_end_are_ended(monkeypatch):
    monkeypatch.setattr(collectives, "STARTUP_S", 0.01)
    monkeypatch.setattr(collectives, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    others = set(psutil.Process().children(recursive=True))
    with pytest.raises(InputError, match=r"not ended after 0\.01 s"):
        measure(budget_s=0.0)
    assert not psutil.wait_procs(set(psutil.Process().children(recursive=True)) - others, timeout=5)[1]


def test_a_rank_that_fails_says_why():
    with pytest.raises(InputError, match="no_such_operation"):
        measure(budget_s=5.0, operations=("no_such_operation",), sizes=(1024,))


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(InputError, match="at least 2"):
        measure(ranks=1)
    with pytest.raises(InputError, match="CUDA devices here"):
        measure(ranks=64, backend="nccl")


def test_starts_are_inside_their_ranges():
    for free in (*collectives.FREE.values(), *collectives.RANKS_FREE.values()):
        assert isinstance(free, Free)
        assert np.log(free.low) < np.log(free.start) < np.log(free.high)
