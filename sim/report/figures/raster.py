"""A timeline with too many operations for bars, as cells of a picture."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def raster(
    start: Ints, end: Ints, row: Ints, rows: int, bins: int, total: int, least: NDArray[np.float64] | None = None
) -> Ints:
    """Return, per row and bin of the span 0..total, the operation that holds most of the bin, or -1.

    start, end, row: one entry per operation, times in ticks from 0. A bin is idle (-1) only if no operation
    touches it, or those that do hold less of it than `least` of its row. Result [rows, bins].
    """
    width = total / bins
    first = np.clip(np.floor(start / width).astype(np.int64), 0, bins - 1)
    last = np.clip(np.ceil(end / width).astype(np.int64) - 1, first, bins - 1)
    count = np.where(end > start, last - first + 1, 0)
    op = np.repeat(np.arange(len(start)), count)
    cell = first[op] + np.arange(len(op)) - np.repeat(np.cumsum(count) - count, count)
    overlap = np.minimum(end[op], (cell + 1) * width) - np.maximum(start[op], cell * width)
    place = row[op] * bins + cell
    order = np.lexsort((overlap, place))
    op, place = op[order], place[order]
    largest = np.flatnonzero(np.diff(place, append=-1))  # the last entry of every cell
    result = np.full(rows * bins, -1)
    result[place[largest]] = op[largest]
    if least is not None:
        held = np.bincount(place, overlap[order], rows * bins) / width
        result[held < np.repeat(least, bins)] = -1
    return result.reshape(rows, bins)
