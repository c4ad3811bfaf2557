"""Runs tasks in this process, one after another: for small sweeps, and for debuggers."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sim.specs import InputError
from sim.sweep.closing import Closing
from sim.sweep.runners.base import TaskFailed


class Here(Closing):
    """The process itself as the only worker."""

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        for name, value, wrong in (("workers", workers, workers not in (None, 1)), ("address", address, address)):
            if wrong:
                raise InputError(name, value, "left out with runner here: it has one worker, this process")
        self.workers, self.losses = 1, 1

    def run(self, tasks: Iterable[Any], function: Callable[[Any], Any]) -> Iterator[Any]:
        """Yield the results of all tasks."""
        for task in tasks:
            try:
                found = function(task)
            except Exception as error:
                raise TaskFailed(f"task {task!r}: {type(error).__name__}: {error}") from error
            yield found

    def close(self) -> None:
        """Nothing is held."""
