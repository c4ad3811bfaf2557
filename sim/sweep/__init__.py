"""Sweeps: grids of configurations, run on all cores or on many machines, kept in a store that survives.

The package itself is a function, so that `sim.sweep(grid, store)` runs a grid, whoever imported what before. Names are
imported when first used: a worker's start waits for nothing that its tasks do not need.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.sweep.grid import Grid
    from sim.sweep.run import Progress, SweepStopped, sweep
    from sim.sweep.store import Counts, Store

_HOME = {
    "Counts": "sim.sweep.store",
    "Grid": "sim.sweep.grid",
    "Progress": "sim.sweep.run",
    "Store": "sim.sweep.store",
    "SweepStopped": "sim.sweep.run",
    "sweep": "sim.sweep.run",
}

__all__ = ["Counts", "Grid", "Progress", "Store", "SweepStopped", "sweep"]


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> "Progress":
        return import_module("sim.sweep.run").sweep(*arguments, **named)  # type: ignore[no-any-return]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sim.sweep' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


sys.modules[__name__].__class__ = _Callable
