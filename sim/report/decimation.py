"""Fewer points for a curve, with its extremes kept."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sim.engine.memory import MemoryTimeline

Ints = NDArray[np.int64]


def lasting(held: MemoryTimeline, points: int) -> Ints:
    """Return at most `points` instants of a memory timeline, the peak and every bucket's extremes among them.

    Of equal instants only the last one lasts.
    """
    last = np.flatnonzero(np.diff(held.at_ns, append=held.at_ns[-1] + 1))
    kept = last[decimate(held.total[last], points - 1)]
    return np.unique([*kept, held.peak_index])


def decimate(values: NDArray[np.float64] | Ints, points: int) -> Ints:
    """Return indices of at most `points` values that keep every bucket's smallest and largest one."""
    n = len(values)
    if n <= points:
        return np.arange(n)
    edges = np.linspace(0, n, max(1, (points - 2) // 2) + 1).astype(np.int64)
    kept = [0, n - 1]
    for a, b in pairwise(edges.tolist()):
        kept += [a + int(np.argmin(values[a:b])), a + int(np.argmax(values[a:b]))]
    return np.unique(kept)
