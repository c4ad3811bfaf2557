"""Sweeps: grids of configurations, run on all cores or on many machines, kept in a store that survives.

The package itself is a function, so that `sim.sweep(grid, store)` runs a grid, whoever imported what before.
"""

import sys
from types import ModuleType
from typing import Any

from sim.sweep.grid import Grid
from sim.sweep.run import Progress, SweepStopped, sweep
from sim.sweep.store import Counts, Store

__all__ = ["Counts", "Grid", "Progress", "Store", "SweepStopped", "sweep"]


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Progress:
        return sweep(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
