"""What an interior point method needs of its cones: positive numbers, and second-order cones of three rows."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sim.cluster.state import Floats, Ints

MIRROR = np.array([1.0, -1.0, -1.0])


@dataclass(frozen=True, eq=False)
class Scaling:
    """A symmetric matrix W (c, c): `alone` (positive,) on its diagonal, then `blocks` (round, 3, 3)."""

    alone: Floats
    blocks: Floats

    def times(self, values: Floats) -> Floats:
        """Return W times values (c,)."""
        threes = values[len(self.alone) :].reshape(-1, 3, 1)
        return np.concatenate([self.alone * values[: len(self.alone)], (self.blocks @ threes).ravel()])

    def squared(self) -> Floats:
        """Return the entries of W times W, in the order of `places`."""
        return np.concatenate([self.alone**2, (self.blocks @ self.blocks).ravel()])

    def places(self) -> tuple[Ints, Ints]:
        """Return row and column of the entries."""
        first = len(self.alone) + 3 * np.arange(len(self.blocks))[:, None, None] + np.zeros((3, 3), dtype=np.int64)
        diagonal, three = np.arange(len(self.alone)), np.arange(3)
        row, column = first + three[:, None], first + three
        return np.concatenate([diagonal, row.ravel()]), np.concatenate([diagonal, column.ravel()])


@dataclass(frozen=True, eq=False)
class Cones:
    """`positive` rows that are at least 0, then `round` times three: the first at least the length of the others."""

    positive: int
    round: int

    @property
    def degree(self) -> int:
        """How many numbers say how far from the border a point is."""
        return self.positive + self.round

    @property
    def unit(self) -> Scaling:
        """Return the scaling that changes nothing."""
        return Scaling(np.ones(self.positive), np.tile(np.eye(3), (self.round, 1, 1)))

    @cached_property
    def axes(self) -> Floats:
        """Return the middle of the cones (c,): what moves every height by 1."""
        return np.concatenate([np.ones(self.positive), np.tile([1.0, 0.0, 0.0], self.round)])

    def heights(self, values: Floats) -> Floats:
        """Return how far above the border (degree,) each cone's part of `values` (c,) is."""
        alone, threes = self._split(values)
        return np.concatenate([alone, threes[:, 0] - np.hypot(threes[:, 1], threes[:, 2])])

    def together(self, values: Floats) -> Floats:
        """Return values (c,) with the sum of each three for all of its three."""
        alone, threes = self._split(values)
        return np.concatenate([alone, np.repeat(threes.sum(axis=1), 3)])

    def product(self, one: Floats, other: Floats) -> Floats:
        """Return the Jordan product (c,)."""
        (a, u), (b, v) = self._split(one), self._split(other)
        first = (u * v).sum(axis=1, keepdims=True)
        return np.concatenate([a * b, np.hstack([first, u[:, :1] * v[:, 1:] + v[:, :1] * u[:, 1:]]).ravel()])

    def quotient(self, above: Floats, below: Floats) -> Floats:
        """Return the w (c,) whose product with `below` is `above`."""
        (a, u), (b, v) = self._split(above), self._split(below)
        inner = (u[:, 1:] * v[:, 1:]).sum(axis=1)
        first = (v[:, 0] * u[:, 0] - inner) / (v * v * MIRROR).sum(axis=1)
        rest = (u[:, 1:] - first[:, None] * v[:, 1:]) / v[:, :1]
        return np.concatenate([a / b, np.hstack([first[:, None], rest]).ravel()])

    def room(self, at: Floats, by: Floats) -> float:
        """Return how many times `by` (c,) leads from `at` to the border."""
        (a, u), (b, v) = self._split(at), self._split(by)
        nearest = float(np.min(b / a, initial=0.0))
        return min(-1 / nearest if nearest < 0 else np.inf, float(np.min(_to_border(u, v), initial=np.inf)))

    def scaling(self, s: Floats, z: Floats) -> "Scaling":
        """Return the symmetric W with W z = s / W: Nesterov and Todd's."""
        (a, u), (b, v) = self._split(s), self._split(z)
        squares = [(each * each * MIRROR).sum(axis=1) for each in (u, v)]
        if min(float(np.min(one, initial=np.inf)) for one in squares) <= 0:
            raise ArithmeticError("a step ended on the border of a cone")
        lengths = [np.sqrt(one) for one in squares]
        x, y = u / lengths[0][:, None], v / lengths[1][:, None]
        gamma = np.sqrt((1 + (x * y).sum(axis=1)) / 2)
        w = (x + y * MIRROR) / (2 * gamma[:, None])
        blocks = np.zeros((self.round, 3, 3))
        blocks[:, 0], blocks[:, :, 0] = w, w
        blocks[:, 1:, 1:] = w[:, 1:, None] * w[:, None, 1:] / (1 + w[:, :1, None]) + np.eye(2)
        return Scaling(np.sqrt(a / b), blocks * np.sqrt(lengths[0] / lengths[1])[:, None, None])

    def _split(self, values: Floats) -> tuple[Floats, Floats]:
        return values[: self.positive], values[self.positive :].reshape(-1, 3)


def _to_border(at: Floats, by: Floats) -> Floats:
    """Return the least positive t (k,) at which at + t by (k, 3) leaves its second-order cone; inf if never."""
    a, b, c = ((one * other * MIRROR).sum(axis=1) for one, other in ((by, by), (at, by), (at, at)))
    under = b * b - a * c
    leaves = (under >= 0) & ((a < 0) | (b < 0))
    root = np.sqrt(np.where(leaves, under, 0.0))
    near = np.where(b < 0, c, -b - root) / np.where(b < 0, root - b, np.where(leaves, a, 1.0))
    return np.where(leaves, near, np.inf)
