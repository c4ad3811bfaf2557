"""The clock of the engines counts whole nanoseconds: ticks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

TICK_S = 1e-9


def to_ticks(seconds: float) -> int:
    """Return seconds as ticks, to the nearest, halves to even."""
    return round(seconds * 1e9)


def tick_array(seconds: Any) -> NDArray[np.int64]:
    """Return an array of seconds as ticks, rounded like `to_ticks`."""
    return np.rint(np.asarray(seconds) * 1e9).astype(np.int64)
