"""Work for the tests of background processes: what a process can import."""

import os
import signal
import time
from multiprocessing import get_context

from sim.specs import InputError


def double(value, *, progress):
    """Return twice the value, in three steps."""
    for done in range(3):
        progress("doubling", done, 3)
    return 2 * value


def sleep(seconds, *, progress):
    """Sleep, and say so first."""
    progress("sleeping", os.getpid(), 0)
    time.sleep(seconds)


def fork(seconds, *, progress):
    """Sleep in a process of its own and wait for it."""
    child = get_context("fork").Process(target=time.sleep, args=(seconds,))
    child.start()
    progress("forked", child.pid, 0)
    child.join()


def refuse(*, progress):
    """Refuse as the house does."""
    raise InputError("plan.tp", 3, "1, 2, 4")


def fail(*, progress):
    """Fail as bugs do."""
    raise KeyError("nowhere")


def unpicklable(*, progress):
    """Return what no pipe takes."""
    return lambda: None


def die(*, progress):
    """End as the kernel's memory killer ends processes."""
    os.kill(os.getpid(), signal.SIGKILL)


def nice(*, progress):
    """Return by how much the process gives way."""
    return os.nice(0)


def own(*, progress):
    """Return the process's number."""
    return os.getpid()
