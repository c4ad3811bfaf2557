"""What operations that share a device cost each other: the fluid model of Mist (EuroSys '25), 12 numbers.

A device has four streams. While it is active, stream i progresses at the rate 1 / (1 + sum of a_ij over the active
streams j): a_ij is how much slower j makes i. The matrix depends on the device and on the shape of the communicator
that the collectives cross, much more than on anything else. The event engine integrates the same rates
(`sim.engine.fluid`); here is the exact time of operations that start together.
"""

from collections.abc import Iterable, Sequence
from math import log
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sim.costs.algebra import Expr, minimum
from sim.specs.fields import InputError, real, spec, whole

STREAMS = ("compute", "collective", "h2d", "d2h")
"""The streams in the order of a matrix's rows and columns (and of `sim.engine.program.Stream`)."""

MOST = 100.0
Text = Annotated[str, Field(min_length=1, max_length=2_000, description="text")]


@spec
class Contention:
    """The fitted matrix of one communicator shape: `n_in` ranks in each of `n_out` nodes.

    matrix[i][j]: how much slower stream j makes stream i, both in the order of `STREAMS`, zero on the diagonal. mape:
    held-out error in percent. session: which measurements it was fitted to; those of two sessions do not mix.

    Raises:
        InputError: the matrix is not four rows of four such numbers.
    """

    n_in: Annotated[int, whole(1, 1_152)]
    n_out: Annotated[int, whole(1, 100_000)]
    matrix: list[list[float]]
    form: Literal["fluid-12"]
    mape: Annotated[float, real(0.0, 1e6)]
    n: Annotated[int, whole(0, 10_000_000)]
    session: Text
    source: Text

    def __post_init__(self) -> None:
        n = len(STREAMS)
        if [len(row) for row in self.matrix] != [n] * n:
            raise InputError("matrix", [len(row) for row in self.matrix], f"{n} rows of {n} numbers")
        for i, row in enumerate(self.matrix):
            for j, value in enumerate(row):
                if not 0 <= value <= (MOST if i != j else 0):
                    allowed = f"0 to {MOST:g}" if i != j else "0: a stream does not slow itself"
                    raise InputError(f"matrix.{i}.{j}", value, allowed)


def each_shape_once(held: Sequence[Contention]) -> None:
    """Raise InputError where two matrices are of one communicator shape: only one would be read."""
    places: dict[tuple[int, int], int] = {}
    for n, one in enumerate(held):
        first = places.setdefault((one.n_in, one.n_out), n)
        if first != n:
            allowed = f"one matrix for each n_in and n_out; contention.{first} is of the same"
            raise InputError(f"contention.{n}", f"n_in {one.n_in}, n_out {one.n_out}", allowed)


def nearest(held: Iterable[Contention], n_in: int, n_out: int) -> Contention | None:
    """Return the matrix of the shape nearest to `n_in` ranks in each of `n_out` nodes, on the same links, if any.

    Communicators inside a node and those over several are different links; among those on the same ones the ratios of
    the two numbers decide. One rank has none: what was measured of a device alone says nothing of collectives.
    """
    several = n_in * n_out > 1
    same = [c for c in held if (c.n_out > 1) == (n_out > 1) and (c.n_in * c.n_out > 1 or not several)]
    return min(same, key=lambda c: abs(log(c.n_in / n_in)) + abs(log(c.n_out / n_out)), default=None)


def makespan(alone: NDArray[np.float64], matrix: Any) -> NDArray[np.float64]:
    """Return the seconds until all of up to four operations that start together have ended.

    alone: [..., 4], seconds of each stream's operation by itself (0: none). matrix: [4, 4] as in `Contention`. Exact:
    between two ends all rates are constant, so there are at most four pieces.
    """
    slower = np.asarray(matrix, dtype=np.float64)
    left = np.ascontiguousarray(np.moveaxis(np.asarray(alone, dtype=np.float64), -1, 0))
    shape, left = left.shape[1:], left.reshape(len(STREAMS), -1)
    total = np.zeros(left.shape[1])
    for _ in STREAMS:
        active = left > 0
        slow = 1 + slower @ active.astype(np.float64)
        until = np.where(active, left * slow, np.inf)
        first = until.min(axis=0)
        first = np.where(first < np.inf, first, 0.0)
        total += first
        # What ends first ends exactly: rounding must not leave a crumb of it that others wait for.
        left = np.where(until > first, np.maximum(0.0, left - first / slow), 0.0)
    return total.reshape(shape)


def two_streams(a: Expr, b: Expr, a_by_b: Expr, b_by_a: Expr) -> Expr:
    """Return the seconds until operations of `a` and `b` seconds alone, started together, have both ended.

    The first to end takes min(a (1 + a_by_b), b (1 + b_by_a)); in that time the two do 1 / (1 + a_by_b) and
    1 / (1 + b_by_a) seconds of their work a second, and what is left of the other runs alone. With one slowdown s
    both ways this is max(a, b) + s min(a, b), as the closed forms of passes have it (`overlap_slowdown`).
    """
    first = minimum(a * (1 + a_by_b), b * (1 + b_by_a))
    return a + b + first * (1 - 1 / (1 + a_by_b) - 1 / (1 + b_by_a))


def contention_values(held: Sequence[Contention], n_in: Any, n_out: Any) -> dict[str, Any]:
    """Return how much the streams of a device slow each other, `<stream>_by_<other>`, by the `held` matrices.

    n_in, n_out: ranks in a node, and nodes, of the communicator whose collectives run beside compute. All are zero and
    contention_known is, where there is no such matrix: what runs side by side then slows each other alike.
    """
    if not held:
        n_in = n_out = 1
    if np.ndim(n_in) == np.ndim(n_out) == 0:  # of one plan: nothing to sort, which would take most of the time
        shapes, where = np.array([[n_in, n_out]]), np.zeros(1, dtype=np.int64)
    else:
        each = np.stack(np.broadcast_arrays(n_in, n_out), axis=-1).reshape(-1, 2)
        shapes, where = np.unique(each, axis=0, return_inverse=True)
    found = [nearest(held, int(a), int(b)) for a, b in shapes]
    n, shape = len(STREAMS), np.broadcast_shapes(np.shape(n_in), np.shape(n_out))
    tables = np.array([one.matrix if one else np.zeros((n, n)) for one in found]).reshape(-1, n, n)
    known = np.array([float(one is not None) for one in found])

    def of(values: NDArray[np.float64]) -> Any:
        return float(values[0]) if len(shapes) == 1 else values[where.ravel()].reshape(shape)

    pairs = ((i, j) for i in range(n) for j in range(n) if i != j)
    named = {f"{STREAMS[i]}_by_{STREAMS[j]}": of(tables[:, i, j]) for i, j in pairs}
    return named | {"contention_known": of(known)}


def rows(values: Sequence[float]) -> list[list[float]]:
    """Return the matrix of 12 numbers, those of each stream in turn by the other three."""
    it = iter(values)
    n = range(len(STREAMS))
    return [[0.0 if i == j else float(next(it)) for j in n] for i in n]
