"""Configurations by number: any range of a grid or a sample is made from its numbers alone, never the whole.

In a full grid the last axis turns fastest. Samples come from a keyed permutation and keyed random numbers, both
functions of the configuration's number, so that a block is the same whatever blocks there are beside it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log, prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Method = Literal["random", "latin-hypercube"]


@dataclass(frozen=True)
class Axis:
    """A field of the job with its values, or, without `values`, all numbers from `low` to `high` (samples only).

    log: equal factors are equally likely; whole: whole numbers alone.
    """

    path: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> "Axis":
        """Return the axis that `data` gives."""
        return cls(**{**data, "values": tuple(data["values"])})

    def data(self) -> dict[str, Any]:
        """Return the axis as plain data."""
        return {**vars(self), "values": list(self.values)}

    def at(self, share: NDArray[np.float64]) -> tuple[Any, ...]:
        """Return the values that have these shares (0 to below 1) of a range below them."""
        if self.whole:
            low, high = (log(x) if self.log else x for x in (self.low, self.high + 1))
            found = low + share * (high - low)
            return tuple(
                np.clip(np.floor(np.exp(found) if self.log else found), self.low, self.high).astype(int).tolist()
            )
        if self.log:
            return tuple(np.clip(self.low * np.exp(share * log(self.high / self.low)), self.low, self.high).tolist())
        return tuple(np.clip(self.low + share * (self.high - self.low), self.low, self.high).tolist())


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one axis in some configurations: `values[index[row]]`."""

    values: tuple[Any, ...]
    index: Ints

    def of(self, rows: Any) -> "Column":
        """Return the column of some rows alone."""
        return Column(self.values, self.index[rows])

    def used(self) -> "Column":
        """Return the same column with nothing but the values that it uses, in their order."""
        here = np.zeros(len(self.values), dtype=bool)
        here[self.index] = True
        place = np.cumsum(here) - 1
        return Column(tuple(self.values[k] for k in np.flatnonzero(here).tolist()), place[self.index])

    def numbers(self) -> NDArray[np.float64]:
        """Return the values as numbers; those that are none are NaN."""
        return np.array([float(v) if isinstance(v, int | float) else np.nan for v in self.values])[self.index]


@dataclass(frozen=True)
class Numbering:
    """All combinations of the axes, or a sample of `count` of them."""

    axes: tuple[Axis, ...]
    method: Method | None = None
    count: int = 0
    seed: int = 0

    @property
    def size(self) -> int:
        """Configurations, filters aside."""
        return self.count if self.method else prod(len(axis.values) for axis in self.axes)

    def columns(self, start: int, stop: int) -> dict[str, Column]:
        """Return the values of the configurations from `start` to before `stop`, by the axis' path."""
        return self.at(np.arange(start, stop, dtype=np.int64))

    def at(self, numbers: Ints) -> dict[str, Column]:
        """Return the values of some configurations, by the axis' path."""
        return self._sampled(numbers) if self.method else self._combined(numbers)

    def _combined(self, numbers: Ints) -> dict[str, Column]:
        found: dict[str, Column] = {}
        for axis in reversed(self.axes):
            numbers, index = np.divmod(numbers, len(axis.values))
            found[axis.path] = Column(axis.values, index)
        return dict(reversed(found.items()))

    def _sampled(self, numbers: Ints) -> dict[str, Column]:
        found = {}
        for k, axis in enumerate(self.axes):
            key = 2 * k + 1
            share = uniform(numbers, self.seed, key)
            if self.method == "latin-hypercube":
                stratum = permuted(numbers, self.count, self.seed, key + 1)
                if axis.values:  # every value as often as any other, give or take one
                    found[axis.path] = Column(axis.values, stratum * len(axis.values) // self.count)
                    continue
                share = (stratum + share) / self.count
            if axis.values:
                found[axis.path] = Column(axis.values, (share * len(axis.values)).astype(np.int64))
            else:
                found[axis.path] = Column(axis.at(share), np.arange(len(numbers)))
        return found


def distinct(columns: Iterable[Column], rows: int) -> tuple[Ints, Ints]:
    """Return one row of every combination of values, and of every row the index of its combination."""
    code = np.zeros(rows, dtype=np.int64)
    for column in columns:
        code = np.unique(code * len(column.values) + column.index, return_inverse=True)[1].ravel()
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    return first, index.ravel()


def mixed(values: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Return 64 well mixed bits of every value under a key (SplitMix64's finisher, Steele et al., OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        x = values * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key & 0xFFFFFFFFFFFFFFFF)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))


def _key(seed: int, stream: int) -> int:
    both = np.array([seed & 0xFFFFFFFFFFFFFFFF, stream], dtype=np.uint64)
    first, second = mixed(both, 0x5851F42D4C957F2D).tolist()
    return int(first) ^ (int(second) >> 1)


def uniform(numbers: Ints, seed: int, stream: int) -> NDArray[np.float64]:
    """Return a number from 0 to below 1 for each of `numbers`."""
    return np.asarray((mixed(mixed(numbers.astype(np.uint64), _key(seed, stream)), stream) >> np.uint64(11)) * 2.0**-53)


def permuted(numbers: Ints, count: int, seed: int, stream: int) -> Ints:
    """Return where a permutation of 0 .. count - 1 takes each of `numbers`.

    A Feistel network of four rounds over the next even number of bits, walked until the result is below `count`
    (Black and Rogaway, CT-RSA 2002).
    """
    half = np.uint64(max(1, (max(count - 1, 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    found = numbers.astype(np.uint64)
    left = np.arange(len(found))
    while len(left):
        x = found[left]
        high, low = x >> half, x & mask
        for turn in range(4):
            high, low = low, high ^ (mixed(low, _key(seed, stream) + turn) & mask)
        found[left] = high << half | low
        left = left[found[left] >= count]
    return found.astype(np.int64)


def spaced(low: float, high: float, count: int, logarithmic: bool, whole: bool) -> tuple[float, ...]:
    """Return `count` numbers from `low` to `high`, equal steps (or factors) apart; fewer where whole ones coincide."""
    if count == 1:
        return (round(low) if whole else low,)
    steps = (k / (count - 1) for k in range(count))
    values = [low * exp(s * log(high / low)) if logarithmic else low + s * (high - low) for s in steps]
    values[0], values[-1] = low, high
    return tuple(dict.fromkeys(round(v) for v in values)) if whole else tuple(values)
