"""Work in a process: results, progress, cancelling, and every way to end that is not a result."""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest

import sim
from sim.widgets import background
from sim.widgets.background import NICE, Job, events_job, tune_job
from sim.widgets.background_bar import BackgroundBar
from tests.report.conftest import CLUSTER, model
from tests.widgets import work

LONG = 120.0


class Heard:
    """A job and what it has said."""

    def __init__(self):
        self.results, self.errors, self.progress = [], [], []
        self.job = Job(self.results.append, self.errors.append, lambda *what: self.progress.append(what))

    def after(self, function, *arguments):
        """Start, wait for the end and return the results."""
        self.job.start(function, *arguments)
        assert self.job.wait(LONG)
        return self.results

    def until_progress(self):
        """Wait for the first progress and return it."""
        until = time.monotonic() + LONG
        while not self.progress and time.monotonic() < until:
            self.job.poll()
            time.sleep(0.01)
        return self.progress[0]


@pytest.fixture
def heard():
    one = Heard()
    yield one
    one.job.cancel()


@pytest.fixture(scope="module", autouse=True)
def _no_process_left():
    yield
    background.close()
    assert not [p for p in psutil.Process().children(recursive=True) if background.SERVE in " ".join(p.cmdline())]


def runs(pid):
    """Return whether the process runs; one whose end nobody has asked about yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def gone(pid, within_s=1.0):
    """Check that the process ends in time."""
    begin = time.monotonic()
    yield
    while runs(pid) and time.monotonic() < begin + LONG:
        time.sleep(0.01)
    assert time.monotonic() - begin < within_s


@pytest.mark.slow
def test_result_and_progress(heard):
    assert heard.after(work.double, 21) == [42]
    assert heard.progress[0] == ("doubling", 0, 3)
    assert heard.errors == []
    assert not heard.job.running


def test_a_process_serves_one_piece_of_work_after_the_other_and_gives_way(heard):
    heard.after(work.own)
    heard.after(work.own)
    assert heard.results[0] == heard.results[1] != os.getpid()
    assert heard.after(work.nice)[-1] >= min(19, os.nice(0) + NICE)


@pytest.mark.slow
def test_a_newer_start_drops_the_older_and_what_has_arrived_of_it(heard):
    first = heard.job.start(work.sleep, LONG)
    heard.until_progress()
    with gone(heard.job.pid):
        second = heard.job.start(work.double, 1)
    assert second > first
    until = time.monotonic() + LONG
    while heard.job._arrived.qsize() < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert heard.after(work.double, 2) == [4]
    assert heard.errors == []


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (work.refuse, "plan.tp: got 3; allowed: 1, 2, 4"),
        (work.fail, "KeyError: 'nowhere'"),
        (work.unpicklable, "lambda"),
        (lambda *, progress: None, "lambda"),
    ],
    ids=["refused", "failed", "unpicklable result", "not importable"],
)
def test_error_text(heard, function, text):
    assert heard.after(function) == []
    assert len(heard.errors) == 1
    assert text in heard.errors[0]
    assert heard.after(work.double, 1) == [2]


def test_results_come_on_the_event_loop():
    async def main():
        got = asyncio.get_running_loop().create_future()
        job = Job(got.set_result, got.set_exception)
        job.start(work.double, 4)
        return await asyncio.wait_for(got, LONG)

    assert asyncio.run(main()) == 8


@pytest.mark.slow
def test_a_step_and_a_search_come_back_whole(heard):
    (step,) = heard.after(events_job, model(), CLUSTER, sim.Plan(tp=2, pp=2, global_batch=8))
    assert (step.model, hash(step.model)) == (model(), hash(model()))
    assert sum(step.breakdown_s.values()) == pytest.approx(step.step_time_s)
    assert step.kernels
    found = heard.after(tune_job, model(), CLUSTER, 8, None, {"pp": [1, 2]}, "step_time", 3)[-1]
    assert len(found.plans) == 3
    assert found.unequal.again(CLUSTER, 0.0).found == []
    assert {what for what, _, _ in heard.progress} >= {"simulating events", "confirming", "ranking"}


@pytest.fixture
def bar():
    asked, got = [(work.double, (3,))], []
    one = BackgroundBar("Double", lambda: asked[0], got.append)
    one.next, one.got = asked, got
    yield one
    one.job.cancel()


def test_bar_goes_from_idle_over_running_to_done(bar):
    assert (bar.state, bar._cancel.disabled) == ("idle", True)
    bar._start.click()
    assert (bar.state, bar._cancel.disabled) == ("running", False)
    assert bar.job.wait(LONG)
    assert (bar.state, bar._cancel.disabled, bar.got) == ("done", True, [6])
    assert bar.message.startswith("done in ")


def test_cancel_ends_the_process_and_what_it_has_forked_and_says_nothing_more(bar, monkeypatch):
    forked = []
    monkeypatch.setattr(bar.job, "_on_progress", lambda what, done, of: forked.append(done))
    bar.next[0] = (work.fork, (LONG,))
    bar.start()
    while not forked:
        bar.job.wait(0.1)
    with gone(bar.job.pid), gone(forked[0]):
        bar._cancel.click()
    assert not bar.job.running
    assert bar.job.wait(0)
    bar.job.poll()
    bar.cancel()
    assert (bar.state, bar._cancel.disabled, bar.got) == ("cancelled", True, [])
    assert "cancelled after" in bar.message


@pytest.mark.slow
def test_bar_says_failures_and_escapes_them(bar, monkeypatch):
    bar.next[0] = (work.refuse, ())
    bar.start()
    assert bar.job.wait(LONG)
    assert bar.state == "failed"
    assert "plan.tp: got 3" in bar.message

    def refused():
        raise sim.InputError("plan", "<b>", "a plan")

    monkeypatch.setattr(bar, "_asked", refused)
    bar.start()
    assert bar.state == "failed"
    assert "&lt;b&gt;" in bar.message


def test_bar_says_what_the_receiver_of_the_result_raises(bar, monkeypatch):
    monkeypatch.setattr(bar, "_on_result", lambda result: 1 / 0)
    bar.start()
    assert bar.job.wait(LONG)
    assert (bar.state, bar.message) == ("failed", "failed: ZeroDivisionError: division by zero")


def test_bar_estimates_what_is_left_of_a_part(bar, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("sim.widgets.background_bar.monotonic", lambda: now[0])
    bar._begin = bar._part_begin = now[0]
    bar._state = "running"
    bar._progressed("confirming", 0, 20)
    now[0] += 4
    bar._progressed("confirming", 5, 20)
    assert bar.message == "confirming 5 of 20 · 4 s · 12 s left of this part"
    assert bar._bar.value == 0.25
    bar._progressed("sweeping", 900, 1000)  # it goes on where it was stopped
    now[0] += 10
    bar._progressed("sweeping", 950, 1000)
    assert bar.pace == 5
    assert bar.message == "sweeping 950 of 1000 · 14 s · 10 s left of this part"


def test_a_killed_process_is_one_clear_error(heard):
    heard.after(work.die)
    assert heard.errors == ["the background process ended: killed by SIGKILL, perhaps for want of memory"]
    assert not heard.job.running


@pytest.mark.slow
def test_the_process_ends_with_its_parent():
    code = (
        "import sys, time; from sim.widgets import background; background.warm_up(); "
        "print(background._spare[0].pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert runs(pid)
        parent.kill()
    with gone(pid, LONG):  # it may still be importing
        pass
