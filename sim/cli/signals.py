"""What ends a command from outside: it tidies up as after Ctrl-C, and the processes that it forked leave that to it."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 0.05
"""After which an interrupt that was lost is raised again: whatever lost it has returned."""
_inside: list[bool] = []


@contextmanager
def ended_tidily() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt inside; what is ignored, as under nohup, stays ignored.

    One that is raised in a destructor, as torch's loaders end their workers in, would be printed by Python and
    forgotten: it is raised again. Whatever else fails in one after that is of workers that were ended too.
    """
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread only
        yield
        return
    came: list[int] = []
    again: list[threading.Timer] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    def unraisable(lost: "sys.UnraisableHookArgs") -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            number = came[-1] if came else signal.SIGINT
            again.append(threading.Timer(AGAIN_S, signal.pthread_kill, [threading.main_thread().ident, number]))
            again[-1].daemon = True
            again[-1].start()
        elif not came:
            told(lost)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
    taken = [number for number, held in before.items() if held in (signal.SIG_DFL, signal.default_int_handler)]
    for number in taken:
        signal.signal(number, interrupt)
    told, sys.unraisablehook = sys.unraisablehook, unraisable
    _inside.append(True)
    try:
        yield
    except Exception as error:
        if _interrupted(error):
            raise KeyboardInterrupt from None
        raise
    finally:
        _inside.pop()
        for timer in again:
            timer.cancel()
        sys.unraisablehook = told
        for number in taken:
            signal.signal(number, before[number])


def _interrupted(error: BaseException) -> bool:
    """Return whether an error is of what failed while an interrupt was dealt with."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__context__
    return seen is not None


def _forked() -> None:
    """Ctrl-C reaches every process of a terminal: those that were forked would each print where they were."""
    if _inside:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forked)
