"""The clock of the engines counts whole nanoseconds: ticks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.specs.fields import InputError

TICK_S = 1e-9
MOST_S = 1e6
"""Longest operation."""
MOST_STEP_S = 1e9
"""Longest sum of all operations of a step: its ticks, also where what is shared slows them, have 64 bits."""
OUT_OF_PROPORTION = "sizes of the model or rates of the profile are out of proportion"


def to_ticks(seconds: float) -> int:
    """Return seconds as ticks, to the nearest, halves to even."""
    return round(seconds * 1e9)


def tick_array(seconds: Any) -> NDArray[np.int64]:
    """Return an array of the seconds of operations as ticks, rounded like `to_ticks`.

    Raises:
        InputError: one of more than `MOST_S`.
    """
    given = np.asarray(seconds)
    longest = np.abs(given).max(initial=0.0)
    if not longest <= MOST_S:
        raise InputError("step", f"an operation of {longest:.3g} s", f"at most {MOST_S:g} s: {OUT_OF_PROPORTION}")
    return np.rint(given * 1e9).astype(np.int64)
