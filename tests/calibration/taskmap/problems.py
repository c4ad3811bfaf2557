"""Problems with the answers of torch: arrays, sizes, and what a kernel should return, flat."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from calibration.taskmap.contraction import DGRAD, FORWARD, WGRAD, Contraction
from calibration.taskmap.contraction import convolution as contraction


class Problem(NamedTuple):
    """What a kernel is called with, and the answer [rows, columns] in float64."""

    contraction: Contraction
    sizes: dict[str, int]
    a: Tensor
    b: Tensor
    wanted: Tensor

    @property
    def columns(self) -> int:
        return self.contraction.extents(self.sizes)[1]

    def close(self, found, rel=1e-5):
        """Return whether a flat result is the answer, to rounding."""
        wanted = self.wanted.flatten()
        error = (torch.as_tensor(found).double() - wanted).abs().max()
        return bool(error <= rel * wanted.abs().max())


def product(contraction: Contraction, m: int, n: int, k: int, seed: int = 0) -> Problem:
    """A product of matrices at random."""
    torch.manual_seed(seed)
    left = {FORWARD.name: (m, k), DGRAD.name: (m, k), WGRAD.name: (k, m)}[contraction.name]
    right = {FORWARD.name: (n, k), DGRAD.name: (k, n), WGRAD.name: (k, n)}[contraction.name]
    a, b = torch.randn(left), torch.randn(right)
    rows = a.T if contraction is WGRAD else a
    columns = b.T if contraction is FORWARD else b
    wanted = torch.matmul(rows.double(), columns.double())
    return Problem(contraction, {"m": m, "n": n, "k": k}, a, b, wanted)


def convolution(
    batch: int, channels: int, height: int, width: int, filters: int, kernel: int, stride: int, padding: int
) -> Problem:
    """A convolution at random."""
    torch.manual_seed(0)
    x, w = torch.randn(batch, channels, height, width), torch.randn(filters, channels, kernel, kernel)
    wanted = conv2d(x.double(), w.double(), stride=stride, padding=padding)
    made = contraction(kernel, stride, padding)
    sizes = dict(zip(made.sizes, (batch, channels, height, width, filters), strict=True))
    return Problem(made, sizes, x, w, wanted)


PROBLEMS = (
    product(FORWARD, 33, 29, 19),
    product(DGRAD, 17, 40, 23),
    product(WGRAD, 31, 21, 45),
    convolution(2, 3, 9, 7, 5, 3, 1, 1),
    convolution(1, 4, 8, 11, 6, 3, 2, 1),
    convolution(3, 2, 5, 5, 7, 1, 1, 0),
)
"""Odd shapes: no block divides them."""
