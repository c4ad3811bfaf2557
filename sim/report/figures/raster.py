"""A timeline with too many operations for bars, as cells of a picture."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
GOLDEN = (5**0.5 - 1) / 2
"""Its multiples, modulo 1, fill the unit interval evenly however many are taken."""
RARE = 100
"""One bin in so many of a row is kept for each kind."""


def raster(start: Ints, end: Ints, row: Ints, kind: Ints, rows: int, bins: int, total: int) -> Ints:
    """Return the operation that each bin of the span 0..total shows in each row, -1 for idle: [rows, bins].

    start, end, row, kind: one entry per operation, times in ticks from 0. Of a bin's time, sorted by kind and idle
    last, the point at a golden-ratio fraction is shown, so that over many bins a kind's area is its share of the row's
    time. A kind too rare for that keeps the bins that it touches, up to 1 % of the row's and where they can be spared.
    Where operations overlap, they share the bin.
    """
    width = total / bins
    first = np.clip(np.floor(start / width).astype(np.int64), 0, bins - 1)
    last = np.clip(np.ceil(end / width).astype(np.int64) - 1, first, bins - 1)
    count = np.where(end > start, last - first + 1, 0)
    op = np.repeat(np.arange(len(start)), count)
    bin_ = first[op] + np.arange(len(op)) - np.repeat(np.cumsum(count) - count, count)
    cell = row[op] * bins + bin_
    held = np.maximum(np.minimum(end[op], (bin_ + 1) * width) - np.maximum(start[op], bin_ * width), 0.0)
    order = np.lexsort((op, kind[op], cell))
    op, cell, held = op[order], cell[order], held[order]
    result = _sampled(op, cell, held, rows * bins, width)
    _keep_rare(result, op, cell, row * (1 + kind.max(initial=0)) + kind, max(1, bins // RARE))
    return result.reshape(rows, bins)


def _sampled(op: Ints, cell: Ints, held: NDArray[np.float64], cells: int, width: float) -> Ints:
    """Return the piece at each cell's fraction of its time; pieces lie in the order of their cells."""
    pieces, busy = np.bincount(cell, minlength=cells), np.bincount(cell, held, cells)
    wanted = np.arange(1, cells + 1) * GOLDEN % 1 * np.maximum(busy, width)
    until = np.cumsum(pieces)
    at = np.searchsorted(np.cumsum(held), np.cumsum(busy) - busy + wanted, side="right")
    at = np.clip(at, until - pieces, until - 1)
    return np.where(wanted < busy, np.append(op, -1)[at], -1)


def _keep_rare(result: Ints, op: Ints, cell: Ints, group: Ints, least: int) -> None:
    """Give each group of operations `least` cells of those that it touches, unless others need them more."""
    shown = np.bincount(group[result[result >= 0]], minlength=group.max(initial=0) + 1)
    for own in np.unique(group[op]).tolist():
        if shown[own] >= least:
            continue
        touched = np.flatnonzero(group[op] == own)
        for piece in touched[np.argsort(np.arange(len(touched)) * GOLDEN % 1)].tolist():  # far apart from the first on
            before = result[cell[piece]]
            if shown[own] < least and (before < 0 or shown[group[before]] > shown[own] + 1):
                shown[group[before]] -= before >= 0
                shown[own] += 1
                result[cell[piece]] = op[piece]
