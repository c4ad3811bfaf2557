"""Links of a wide-area network that is played on one machine: how long a message is on its way."""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.specs.fields import InputError

Matrix = Sequence[Sequence[float]]
FASTEST, LONGEST_S = 1e15, 1e6


@dataclass(frozen=True)
class Links:
    """`bytes_per_s` and `latency_s` [K, K] of every link, from row to column."""

    bytes_per_s: Matrix
    latency_s: Matrix

    def carry_s(self, sender: int, receiver: int, sent_bytes: int) -> float:
        """Return the seconds from when a message is ready until it has arrived."""
        return self.latency_s[sender][receiver] + sent_bytes / self.bytes_per_s[sender][receiver]


def links(partitions: int, bytes_per_s: float | Matrix, latency_s: float | Matrix = 0.0) -> Links:
    """Return links of which every one has the number, or its own.

    Raises:
        InputError: a matrix has another size, or a number is out of range.
    """
    return Links(
        _matrix("bytes_per_s", bytes_per_s, partitions, 1.0, FASTEST),
        _matrix("latency_s", latency_s, partitions, 0.0, LONGEST_S),
    )


def _matrix(name: str, value: float | Matrix, k: int, low: float, high: float) -> Matrix:
    rows = [[float(value)] * k] * k if isinstance(value, int | float) else [list(map(float, row)) for row in value]
    if len(rows) != k or any(len(row) != k for row in rows):
        raise InputError(name, rows, f"a number, or {k} lists of {k} numbers")
    for number in (rows[i][j] for i in range(k) for j in range(k) if i != j):  # none is sent to oneself
        if not low <= number <= high:
            raise InputError(name, number, f"numbers from {low:g} to {high:g}")
    return rows
