"""Tasks for runners; a module of its own, so that workers import nothing else."""

import os
import signal
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path


def squared(task: int) -> int:
    return task * task


def niceness(task: int) -> int:
    return os.nice(0)


def broken(task: int) -> int:
    if task == 3:
        raise ValueError("no such number")
    return task


@dataclass(frozen=True)
class DiesOnce:
    """Its worker is killed, without any farewell, the first time that each of some tasks is tried."""

    folder: str
    tasks: tuple[int, ...]

    def __call__(self, task: int) -> int:
        mark = Path(self.folder, str(task))
        if task in self.tasks and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return task * task


def always_dies(task: int) -> int:
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return task


def where(seconds: float) -> str:
    """Return the node of a Ray cluster that ran this, so long."""
    time.sleep(seconds)
    return str(import_module("ray").get_runtime_context().get_node_id())
