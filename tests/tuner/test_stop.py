"""Ctrl-C once leaves out what is left, twice ends all."""

import signal
import time

import pytest

import sim
from sim.tuner import ranking
from sim.tuner.stop import Stop


def interrupt(*_):
    raise KeyboardInterrupt


def test_after_the_first_interruption_all_is_left_out():
    stop = Stop()
    assert stop.unless("a", lambda: 1, 0) == 1
    assert not stop.pressed and not stop.late
    asked = (("b", interrupt), ("c", lambda: 1), ("c", lambda: 1))
    assert [stop.unless(what, make, 0) for what, make in asked] == [0, 0, 0]
    assert stop.pressed and stop.left_out == ["b", "c"]


def test_a_second_interruption_is_raised():
    stop = Stop(["a"])
    with pytest.raises(KeyboardInterrupt):
        stop.press("b")


@pytest.fixture
def alarm():
    """Press Ctrl-C so many seconds after the call."""
    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of Python 3.12 on: other threads run
def test_an_interruption_waits_for_no_process(monkeypatch, alarm):
    monkeypatch.setattr(ranking, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(ranking, "_seconds", lambda asked: time.sleep(15))
    step = sim.simulate(sim.models["llama3-8b"], sim.Cluster.of("h100-sxm-80gb"), sim.Plan(tp=8, global_batch=8))
    begin = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        alarm(0.5)
        next(ranking._contended([step]))
    assert time.perf_counter() - begin < 5
