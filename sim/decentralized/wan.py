"""The network between partitions: bandwidth and latency of every link, what they share, and how they change.

Rates are whole bytes/s and the clock counts ticks of 1 ns, so that what a link carries is a whole number of 1e-9 bytes:
no transfer is rounded but to the tick in which it ends.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from sim.engine.clock import to_ticks
from sim.specs.fields import InputError, real, spec, whole

BYTES_PER_S = 1.25e7
"""Assumption: 100 Mbit/s between two partitions."""
LATENCY_S = 0.05
"""Assumption: one way between two continents."""
MOST_PARTITIONS = 64
MOST_CHANGES = 10_000
FASTEST, LONGEST_S = 1e15, 1e6


def tuples(value: Any) -> Any:
    """Return lists and arrays as tuples, which can neither change nor be taken for one number."""
    if isinstance(value, np.ndarray):
        return tuples(value.tolist())
    return tuple(map(tuples, value)) if isinstance(value, list | tuple) else value


Matrix = Annotated[
    float | tuple[tuple[float, ...], ...],
    BeforeValidator(tuples),
    Field(description="a number, or a list of K lists of K numbers: from partition (row) to partition (column)"),
]
PerPartition = Annotated[
    float | tuple[float, ...],
    BeforeValidator(tuples),
    Field(description="a number, or a list of a number for each partition"),
]


@spec
class Change:
    """From `at_s` on a link has `factor` of its bandwidth; partitions that are left out mean all of them."""

    at_s: Annotated[float, real(0.0, 1e9, "s")]
    source: Annotated[int, whole(0, MOST_PARTITIONS - 1, "a partition")] | None = None
    target: Annotated[int, whole(0, MOST_PARTITIONS - 1, "a partition")] | None = None
    factor: Annotated[float, real(1e-6, 1e6)]


@spec
class Wan:
    """K partitions and a link from each to each other one.

    `bytes_per_s` and `latency_s` (one way) hold for every link, or stand in a matrix (K, K), row: from, column: to; the
    diagonal is not read. Links share nothing, unless all that a partition sends has `uplink_bytes_per_s` together:
    then its messages share it equally, as far as their links are fast enough. `changes` come in any order; the latest
    one holds.

    Raises:
        InputError: a number is out of range, a matrix has another size, or a change names no partition.
    """

    partitions: Annotated[int, whole(2, MOST_PARTITIONS)] = 5
    bytes_per_s: Matrix = BYTES_PER_S
    latency_s: Matrix = LATENCY_S
    uplink_bytes_per_s: PerPartition | None = None
    changes: Annotated[
        tuple[Change, ...], BeforeValidator(tuples), Field(max_length=MOST_CHANGES, description="a list of changes")
    ] = field(default=())

    def __post_init__(self) -> None:
        _checked_matrix("bytes_per_s", self.bytes_per_s, self.partitions, 1.0, FASTEST, "B/s")
        _checked_matrix("latency_s", self.latency_s, self.partitions, 0.0, LONGEST_S, "s")
        if self.uplink_bytes_per_s is not None:
            checked_row("uplink_bytes_per_s", self.uplink_bytes_per_s, self.partitions, 1.0, FASTEST, "B/s")
        for n, change in enumerate(self.changes):
            for name in ("source", "target"):
                if (getattr(change, name) or 0) >= self.partitions:
                    allowed = f"a partition from 0 to {self.partitions - 1}"
                    raise InputError(f"changes.{n}.{name}", getattr(change, name), allowed)

    @cached_property
    def latency_ticks(self) -> tuple[tuple[int, ...], ...]:
        """Ticks (K, K) from when the last byte of a message has left to when it has arrived."""
        return tuple(tuple(map(to_ticks, row)) for row in _rows(self.latency_s, self.partitions))

    @cached_property
    def uplinks(self) -> tuple[int | None, ...]:
        """What each partition (K,) sends at most, in bytes/s; None where nothing is shared."""
        if self.uplink_bytes_per_s is None:
            return (None,) * self.partitions
        return tuple(map(round, row_of(self.uplink_bytes_per_s, self.partitions)))

    @cached_property
    def _rates(self) -> tuple[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], ...]:
        """By link (K, K): the ticks at which its rate changes, and its rates before the first and from each on."""
        base = _rows(self.bytes_per_s, self.partitions)
        ordered = sorted(self.changes, key=lambda change: change.at_s)

        def link(i: int, j: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
            own = [c for c in ordered if c.source in (None, i) and c.target in (None, j)]
            rates = [base[i][j], *(c.factor * base[i][j] for c in own)]
            return tuple(to_ticks(c.at_s) for c in own), tuple(max(1, round(rate)) for rate in rates)

        each = range(self.partitions)
        return tuple(tuple(link(i, j) for j in each) for i in each)

    @property
    def calm(self) -> "Wan":
        """The same network as it is before anything changes."""
        return replace(self, changes=())

    def rate(self, source: int, target: int, tick: int) -> int:
        """Return the bytes/s of a link from a tick on."""
        ticks, rates = self._rates[source][target]
        return rates[bisect_right(ticks, tick)]

    def next_change(self, source: int, targets: Sequence[int], tick: int) -> int | None:
        """Return the tick after `tick` at which the first of some links from `source` changes, None if none does."""
        found: list[int] = []
        for target in targets:
            ticks = self._rates[source][target][0]
            found += ticks[(at := bisect_right(ticks, tick)) : at + 1]
        return min(found, default=None)


def shares(rates: Sequence[int], uplink: int | None) -> list[int]:
    """Return the bytes/s of each message over links of these rates that share an uplink: equal, but for slow links."""
    if uplink is None:
        return list(rates)
    found, left = [0] * len(rates), uplink
    for n, message in enumerate(sorted(range(len(rates)), key=rates.__getitem__)):
        found[message] = max(1, min(rates[message], left // (len(rates) - n)))
        left -= found[message]
    return found


def row_of(value: PerPartition, partitions: int) -> tuple[float, ...]:
    """Return a number for every partition (K,)."""
    return value if isinstance(value, tuple) else (value,) * partitions


def checked_row(name: str, value: PerPartition, partitions: int, low: float, high: float, unit: str) -> None:
    """Refuse numbers of partitions that are out of range, or as many as there are no partitions."""
    _checked(name, row_of(value, partitions), partitions, low, high, unit)


def _rows(value: Matrix, partitions: int) -> tuple[tuple[float, ...], ...]:
    return value if isinstance(value, tuple) else ((value,) * partitions,) * partitions


def _checked_matrix(name: str, value: Matrix, partitions: int, low: float, high: float, unit: str) -> None:
    rows = _rows(value, partitions)
    if len(rows) != partitions:
        raise InputError(name, rows, f"a number, or {partitions} lists: one for every partition")
    for n, row in enumerate(rows):
        _checked(f"{name}.{n}" if isinstance(value, tuple) else name, row, partitions, low, high, unit, skipped=n)


def _checked(
    name: str, row: Sequence[float], partitions: int, low: float, high: float, unit: str, skipped: int = -1
) -> None:
    if len(row) != partitions:
        raise InputError(name, tuple(row), f"{partitions} numbers: one for every partition")
    for n, number in enumerate(row):
        if n != skipped and not low <= number <= high:  # what a partition sends to itself is not read
            raise InputError(name, number, f"numbers from {low:g} to {high:g} {unit}")
