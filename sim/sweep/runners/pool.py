"""Runs tasks on processes of this machine.

Every worker has a pipe of its own and no lock is shared, so that one that is killed at any moment harms nobody: its
pipe ends, another takes its place and its task. Workers are fresh interpreters, not forks or copies of the caller's
main module; when the caller dies their pipes end, and so do they.
"""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from sim.specs import InputError
from sim.sweep.closing import Closing
from sim.sweep.runners.base import MAX_LOSSES, TaskFailed, lost

MOST_WORKERS = 1_024
AHEAD = 2
"""Tasks that a worker holds: the next one waits in its pipe while it computes."""

PATIENCE_S = 5.0


@dataclass(eq=False)
class _Worker:
    """A process, this end of its pipe, and the tasks it has, the one it computes first."""

    process: "subprocess.Popen[bytes]"
    pipe: Connection
    tasks: deque[Any] = field(default_factory=deque)


class Pool(Closing):
    """`workers` processes, by default one a core, that give way to whatever else runs here."""

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        if address is not None:
            raise InputError("address", address, "left out with runner pool, which runs on this machine")
        if workers is not None and not 1 <= workers <= MOST_WORKERS:
            raise InputError("workers", workers, f"a whole number from 1 to {MOST_WORKERS}")
        self.workers = workers or os.cpu_count() or 1
        self.losses = MAX_LOSSES
        self.held: list[_Worker] = []

    def run(self, tasks: Iterable[Any], function: Callable[[Any], Any]) -> Iterator[Any]:
        """Yield the results of all tasks as they come."""
        waiting, again, losses = iter(tasks), deque[Any](), dict[Any, int]()
        self.close()

        def fill(worker: _Worker) -> None:
            while len(worker.tasks) < AHEAD:
                if not again:
                    again.extend(task for task in [next(waiting, NOTHING)] if task is not NOTHING)
                if not again:
                    return
                worker.tasks.append(again.popleft())
                worker.pipe.send(worker.tasks[-1])

        def restored(worker: _Worker) -> None:
            """Put another in the place of a worker that is dead, and its tasks back."""
            if worker.tasks:
                first = worker.tasks[0]
                losses[first] = losses.get(first, 0) + 1
                if losses[first] >= self.losses:
                    raise lost(first, self.losses)
            again.extend(worker.tasks)
            _ended(worker)
            self.held[self.held.index(worker)] = _started(function)

        self.held = [_started(function) for _ in range(self.workers)]
        while True:
            for worker in list(self.held):
                try:
                    fill(worker)
                except OSError:
                    restored(worker)
            busy = {worker.pipe: worker for worker in self.held if worker.tasks}
            if not busy and not again:
                return
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                try:
                    failure, found = worker.pipe.recv()
                except (EOFError, OSError):
                    restored(worker)
                    continue
                task = worker.tasks.popleft()
                if failure is not None:
                    raise TaskFailed(f"task {task!r}: {failure}")
                losses.pop(task, None)
                yield found

    def close(self) -> None:
        """End all workers."""
        for worker in self.held:
            _ended(worker)
        self.held = []


NOTHING = object()


def _started(function: Callable[[Any], Any]) -> _Worker:
    ours, theirs = Pipe()
    # One thread a worker: together they have all cores.
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    places = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sim.sweep.runners.worker", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **threads, **places},
        # Its own session: Ctrl-C is this process's to handle.
        start_new_session=True,
    )
    theirs.close()
    with suppress(OSError):  # one that died at once is noticed by its first task
        ours.send(function)
    return _Worker(process, ours)


def _ended(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.wait(PATIENCE_S)
