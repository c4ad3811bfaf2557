"""What a runner of tasks must be."""

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

MAX_LOSSES = 5
"""Times that a task may lose its worker before it is the task that is to blame."""


class WorkerLost(RuntimeError):  # noqa: N818 - what happened, as a person would say it
    """A task whose workers keep dying."""


class TaskFailed(RuntimeError):  # noqa: N818
    """A task that raised in its worker."""


@runtime_checkable
class Runner(Protocol):
    """Runs a function of one argument on many tasks, in any order.

    `run` takes tasks as workers come free, a bounded number ahead, and yields each task's result once; a task whose
    worker dies is run again, until it has lost `losses` workers. Leaving the context ends all workers.

    Raises:
        WorkerLost: a task has lost so many workers.
        TaskFailed: the function raised.
    """

    workers: int
    losses: int

    def run(self, tasks: Iterable[Any], function: Callable[[Any], Any]) -> Iterator[Any]:
        """Yield the results of all tasks as they come."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def lost(task: object, times: int) -> WorkerLost:
    """Return the error of a task that has lost its worker so many times."""
    return WorkerLost(f"task {task!r} has lost {times} workers: killed, perhaps for want of memory")
