"""Where a sweep runs. One line adds a runner, and it passes `tests/contracts/runner.py`."""

from collections.abc import Callable, Mapping

from sim.specs import InputError
from sim.sweep.runners.base import MAX_LOSSES, Runner, TaskFailed, WorkerLost
from sim.sweep.runners.here import Here
from sim.sweep.runners.pool import Pool
from sim.sweep.runners.ray import Ray

RUNNERS: Mapping[str, Callable[[int | None, str | None], Runner]] = {
    "pool": Pool,
    "ray": Ray,
    "here": Here,
}
"""By name, of workers (None: one a core) and the address of a cluster (None: none)."""


def runner(name: str, workers: int | None = None, address: str | None = None) -> Runner:
    """Return the runner `name`; raises InputError with the known names, or for what it does not take."""
    if name not in RUNNERS:
        raise InputError("runner", name, "one of " + ", ".join(RUNNERS))
    return RUNNERS[name](workers, address)


__all__ = ["MAX_LOSSES", "RUNNERS", "Here", "Pool", "Ray", "Runner", "TaskFailed", "WorkerLost", "runner"]
