"""What keeps a measurement honest: is the machine idle, has it drifted, and what happens when it is interrupted."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import isclose
from types import FrameType

from calibration.instruments import Instruments
from sim.units import percent

MOST_DRIFT = 0.03
"""A sentinel that moved by more flags its samples (spec: 3 %)."""

MOST_OTHERS = 0.1
"""Share of the machine that others may use: a desktop's background, but no second computation on a core."""

TRIES = 3
WINDOW_S = 1.0
SETTLED = 0.01
WARMING_S = 5.0

AGAIN_S = 10.0
"""Seconds after which the end of the time is told once more: what is raised in a library's callback or a finalizer is
dropped; and processes need a moment to end."""


class BusyError(Exception):
    """The machine is in use by others: a measurement would be of them too."""


def admit(tools: Instruments) -> None:
    """Return when the machine is idle.

    Raises:
        BusyError: others used more than `MOST_OTHERS` of it in each of three windows of a second.
    """
    share = 0.0
    tools.load.others()
    for _ in range(TRIES):
        tools.sleep(WINDOW_S)
        share = tools.load.others()
        if share <= MOST_OTHERS:
            return
    raise BusyError(
        f"the machine is busy: others use {percent(share)} of it, at most {percent(MOST_OTHERS)} leave meaningful "
        "times; end what runs beside, or measure all the same with --despite-load (the results then say so)"
    )


def busy_words(share: float) -> str:
    """Return what is told of times beside which others used `share` of the machine (0 to 1), empty of an idle one."""
    return f"; the machine was busy: others used {percent(share)} of it" if share > MOST_OTHERS else ""


def settled(tools: Instruments) -> float:
    """Return the sentinel's seconds once two readings agree within 1 % (clocks and caches are warm), or after 5 s."""
    begin, last = tools.now(), tools.sentinel()
    while tools.now() - begin < WARMING_S:
        reading = tools.sentinel()
        if isclose(reading, last, rel_tol=SETTLED):
            return min(reading, last)
        last = reading
    return last


def drift(reference_s: float, before_s: float, after_s: float) -> float:
    """Return the sentinel's ratio to its reference, before or after a batch: the one farther from 1."""
    return max(before_s / reference_s, after_s / reference_s, key=lambda ratio: abs(ratio - 1))


def moved(ratio: float) -> bool:
    """Return whether a sentinel ratio tells that the machine is not as it was."""
    return abs(ratio - 1) > MOST_DRIFT


class OutOfTime(BaseException):
    """The time is over. Not an Exception: a compiler that runs inside takes those for failures of its own."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise OutOfTime inside once the seconds have passed; without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt inside, so that both ways of stopping a measurement end whole."""
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread only
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
