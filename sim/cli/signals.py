"""What ends a command from outside: it tidies up as after Ctrl-C, and the processes that it forked leave that to it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)
_inside: list[bool] = []


@contextmanager
def ended_tidily() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt inside; what is ignored, as under nohup, stays ignored."""
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread only
        yield
        return
    taken = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _interrupt)
    _inside.append(True)
    try:
        yield
    finally:
        _inside.pop()
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _forked() -> None:
    """Ctrl-C reaches every process of a terminal: those that were forked would each print where they were."""
    if _inside:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forked)
