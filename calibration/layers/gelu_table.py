"""The derivative of GELU as a function of its output, in a table, and what else kernels of GELU are made with.

GELU falls to its one minimum and rises after it, so that the output and one bit, on which side of the minimum the input
was, give the input back, and the derivative is a function of the output on either side. As a function of
u = sqrt(y - minimum) it has no singularity at the minimum, and a table with straight lines between its entries will do.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.optimize and scipy.special at their first use
import torch
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray
from torch import Tensor

ENTRIES = 4_096
"""Of the table of either side."""
FLAT = 6.0
"""Input from which on the derivative is 1, to 4e-8."""
HALVINGS = 100
LOWEST = -40.0
"""Input below which GELU is 0 in any precision."""
NEAR, SLOPE, FARTHEST, DEGREE = 1.25, 0.3, 14.0, 8
"""Of the normal distribution's series: where the first ends, how the second bends t, where that ends, degree of both.
"""


class Table(NamedTuple):
    """derivatives [side, entry] at equal steps of u, left of the minimum first; steps [side] a unit of u; input and
    output of the minimum."""

    derivatives: NDArray[np.float64]
    steps: NDArray[np.float64]
    at: float
    minimum: float


def _gelu(x: Any) -> Any:
    return x * scipy.special.ndtr(x)


def _derivative(x: Any) -> Any:
    return scipy.special.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


@lru_cache
def table() -> Table:
    """Return the table, in double precision."""
    at = float(scipy.optimize.brentq(_derivative, -1.0, 0.0, xtol=1e-15))
    minimum = float(_gelu(at))
    ends = np.sqrt(np.array([0.0, _gelu(FLAT)]) - minimum)
    outputs = np.linspace(0.0, ends, ENTRIES, axis=1) ** 2 + minimum
    sides = [_derivative(_input(y, at, far)) for y, far in zip(outputs, (LOWEST, FLAT + 1), strict=True)]
    sides[0][-1] = 0.0  # y = 0 is reached by no input
    return Table(np.stack(sides), (ENTRIES - 1) / ends, at, minimum)


@lru_cache
def entries(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the derivatives of both sides, one after the other, [2 x ENTRIES]."""
    return torch.as_tensor(table().derivatives.ravel(), dtype=dtype, device=device)


def _input(outputs: NDArray[np.float64], at: float, far: float) -> NDArray[np.float64]:
    """Return the inputs between the minimum and `far` with these outputs."""
    low, high = np.full_like(outputs, at), np.full_like(outputs, far)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        less = _gelu(middle) < outputs
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    return low


@lru_cache
def series() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return two series of the normal distribution, coefficients constant first, both exact to 2e-7.

    P(X < x) is 1 / 2 + x (a0 + a1 x^2 + a2 x^4 ...) for |x| < NEAR, and P(X > t) is exp(-t^2 / 2) (b0 + b1 q + ...)
    with q = 1 / (1 + SLOPE t) for t >= 0. Interpolated between Chebyshev's points.
    """

    def near(square: NDArray[np.float64]) -> NDArray[np.float64]:
        x = np.sqrt(square)
        return np.asarray((scipy.special.ndtr(x) - 0.5) / x)

    def tail(q: NDArray[np.float64]) -> NDArray[np.float64]:
        t = (1 / q - 1) / SLOPE
        return np.asarray(scipy.special.erfcx(t / np.sqrt(2)) / 2)

    ends = ((near, [0.0, NEAR**2]), (tail, [1 / (1 + SLOPE * FARTHEST), 1.0]))
    found = [Chebyshev.interpolate(each, DEGREE, domain).convert(kind=Polynomial).coef for each, domain in ends]
    return tuple(found[0].tolist()), tuple(found[1].tolist())
