"""Where the labels of points stand, so that none covers another or a point."""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

WIDTH, HEIGHT = 800.0, 300.0
"""Pixels of the plot for which labels are placed: in a wider one they stand further apart."""
LETTER, LINE = 7.0, 14.0
"""Pixels of a letter and of a line of text."""
MARKER, GAP = 4.5, 4.6
"""Half the pixels of a marker, and from its middle to its label, as plotly.js sets it for a marker of 9."""
STEP = 4.0
"""Pixels between the places of a line at which it is looked at."""
ACROSS = {"right": 1, "left": -1, "center": 0}
DOWN = {"top": -1, "bottom": 1, "middle": 0}
SPOTS = [(f"{v} {h}", ACROSS[h], DOWN[v]) for v, h in product(DOWN, ACROSS) if (v, h) != ("middle", "center")]
"""plotly's names of the places of a label, and in which direction each is; the first that is free is taken."""


class Point(NamedTuple):
    """Where a point lies (x above 0, of a logarithmic axis), its value with both ends of its whisker, its label."""

    x: float
    value: float
    low: float
    high: float
    text: str


def placed(lines: Sequence[Sequence[Point]]) -> list[list[str | None]]:
    """Return plotly's name of the place of every point's label, of each line; None where no place is free.

    What covers neither points nor labels is free; of free places that which whiskers and lines cross the least.
    """
    points = [point for line in lines for point in line]
    decades = [np.log10(p.x) for p in points]
    across = _scaled(decades, decades, WIDTH)
    ends = [end for p in points for end in (p.low, p.high)]
    held = ([getattr(p, end) for p in points] for end in ("value", "low", "high"))
    down, low, high = (HEIGHT - _scaled(each, ends, HEIGHT) for each in held)
    middles = np.column_stack([across, down])
    taken = np.hstack([middles - MARKER, middles + MARKER])
    along = np.linspace(0, 1, 99)
    drawn = [np.column_stack([np.full(99, x), a + (b - a) * along]) for x, a, b in zip(across, low, high, strict=True)]
    first = 0
    for line in lines:
        for one, other in pairwise(middles[first : first + len(line)]):
            drawn.append(np.linspace(one, other, 2 + int(np.hypot(*(other - one)) / STEP)))
        first += len(line)
    inked, found = np.vstack(drawn), list[str | None]()
    for point, (x, y) in zip(points, middles, strict=True):
        boxes = {name: _box(x, y, LETTER * len(point.text), h, v) for name, h, v in SPOTS}
        free = [name for name, box in boxes.items() if not _covers(box, taken)]
        best = min(free, key=lambda name: _crossings(boxes[name], inked), default=None)
        if best:
            taken = np.vstack([taken, boxes[best]])
        found.append(best)
    each = iter(found)
    return [[next(each) for _ in line] for line in lines]


def _scaled(values: Sequence[float], held: Sequence[float], pixels: float) -> np.ndarray:
    """Return values in pixels of an axis that shows `held`."""
    least, most = min(held), max(held)
    return np.asarray([pixels * (v - least) / ((most - least) or 1.0) for v in values])


def _box(x: float, y: float, wide: float, across: int, down: int) -> np.ndarray:
    """Return left, top, right and bottom of a label beside a point."""
    middle, half = np.array([x, y]), np.array([wide / 2, LINE / 2])
    middle += np.array([across, down]) * (GAP + half)
    return np.concatenate([middle - half, middle + half])


def _covers(box: np.ndarray, others: np.ndarray) -> bool:
    return bool(np.any((others[:, :2] < box[2:]).all(axis=1) & (others[:, 2:] > box[:2]).all(axis=1)))


def _crossings(box: np.ndarray, inked: np.ndarray) -> int:
    return int(((inked > box[:2]) & (inked < box[2:])).all(axis=1).sum())
