"""A timeline with too many operations for bars, as cells of a picture."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
GOLDEN = (5**0.5 - 1) / 2
"""Its multiples, modulo 1, fill the unit interval evenly however many are taken."""


def raster(start: Ints, end: Ints, row: Ints, kind: Ints, rows: int, bins: int, total: int) -> Ints:
    """Return the operation that each bin of the span 0..total shows in each row, -1 for idle: [rows, bins].

    start, end, row, kind: one entry per operation, times in ticks from 0. Of a bin's time, sorted by kind and idle
    last, the point at a golden-ratio fraction is shown, so that over many bins a kind's area is its share of the row's
    time. Every kind of a row keeps a bin, unless there is none to give. Where operations overlap, they share the bin.
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
    _keep_rare(result, op, cell, held, row * (1 + kind.max(initial=0)) + kind)
    return result.reshape(rows, bins)


def _sampled(op: Ints, cell: Ints, held: NDArray[np.float64], cells: int, width: float) -> Ints:
    """Return the piece at each cell's fraction of its time; pieces lie in the order of their cells."""
    pieces, busy = np.bincount(cell, minlength=cells), np.bincount(cell, held, cells)
    wanted = np.arange(1, cells + 1) * GOLDEN % 1 * np.maximum(busy, width)
    until = np.cumsum(pieces)
    at = np.searchsorted(np.cumsum(held), np.cumsum(busy) - busy + wanted, side="right")
    at = np.clip(at, until - pieces, until - 1)
    return np.where(wanted < busy, np.append(op, -1)[at], -1)


def _keep_rare(result: Ints, op: Ints, cell: Ints, held: NDArray[np.float64], group: Ints) -> None:
    """Give every group of operations that has no cell the one of which it holds most and that another can miss."""
    shown = np.bincount(group[result[result >= 0]], minlength=group.max(initial=0) + 1)
    for missing in np.setdiff1d(group[op], np.flatnonzero(shown)).tolist():
        own = np.flatnonzero(group[op] == missing)
        for piece in own[np.argsort(-held[own], kind="stable")].tolist():
            before = result[cell[piece]]
            if before < 0 or shown[group[before]] > 1:
                shown[group[before]] -= before >= 0
                shown[missing] += 1
                result[cell[piece]] = op[piece]
                break
