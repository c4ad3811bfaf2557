"""What kernels compute: sums of products C[i, j] = sum over k of A(i, k) B(k, j), and what is done to an element.

Matrix products of a linear layer (forward, gradient of the input, gradient of the weights) and convolutions (implicit
GEMM: the matrix of patches is only ever addressed, never stored) differ in nothing but where an element lies.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

Index = Any
"""A whole number, an array of them, or text."""
Sizes = Mapping[str, Index]


@dataclass(frozen=True)
class Place:
    """Where an element lies in its array; `inside` is false where there is none and 0 stands for it."""

    at: Index
    inside: Any = True


class Functions(Protocol):
    """What element-wise functions may call, of arrays or of text."""

    def erf(self, x: Any) -> Any:
        """Return the error function."""
        ...

    def largest(self, x: Any, y: Any) -> Any:
        """Return the larger of two values."""
        ...


@dataclass(frozen=True)
class Elementwise:
    """A function of one element: `apply(functions, x, vector)`; vector: the element of its own input, if it has one.

    vector: the name of an input with one element a column of C (epilogues alone).
    """

    name: str
    apply: Callable[[Functions, Any, Any], Any]
    vector: str = ""


BIAS = Elementwise("bias", lambda f, x, b: x + b, "bias")
GELU = Elementwise("gelu", lambda f, x, b: 0.5 * x * (1.0 + f.erf(x * 0.7071067811865476)))
RELU = Elementwise("relu", lambda f, x, b: f.largest(x, 0.0))


PRODUCT = ("m", "n", "k")
IMAGE = ("batch", "channels", "height", "width", "filters")
"""Names of the sizes of products and of convolutions."""


@dataclass(frozen=True)
class Contraction:
    """A sum of products of elements of arrays `a` and `b`; all functions take the sizes first.

    sizes: names of what a kernel is told when it is called. extents: rows and columns of C and the length of the sum.
    a: place of A(i, k); b: of B(k, j); c: address of C[i, j]. beside: the dimension, of A and of B, along which
    neighbours lie side by side.
    """

    name: str
    sizes: tuple[str, ...]
    extents: Callable[[Sizes], tuple[Index, Index, Index]]
    a: Callable[[Sizes, Index, Index], Place]
    b: Callable[[Sizes, Index, Index], Place]
    c: Callable[[Sizes, Index, Index], Index]
    beside: tuple[int, int]


def _product(name: str, beside: tuple[int, int]) -> Contraction:
    """Return a product of matrices."""
    return Contraction(
        name,
        PRODUCT,
        lambda s: (s["m"], s["n"], s["k"]),
        lambda s, i, k: Place(i * s["k"] + k if beside[0] else k * s["m"] + i),
        lambda s, k, j: Place(k * s["n"] + j if beside[1] else j * s["k"] + k),
        lambda s, i, j: i * s["n"] + j,
        beside,
    )


FORWARD = _product("forward", (1, 0))
"""y = x w^T: x [m, k], w [n, k]."""
DGRAD = _product("dgrad", (1, 1))
"""dx = dy w: dy [m, k], w [k, n]."""
WGRAD = _product("wgrad", (0, 1))
"""dw = dy^T x: dy [k, m], x [k, n]."""
PRODUCTS = {each.name: each for each in (FORWARD, DGRAD, WGRAD)}


@lru_cache(maxsize=64)
def convolution(kernel: int, stride: int = 1, padding: int = 0) -> Contraction:
    """Return a convolution with square kernels, `padding` on every side.

    x [batch, channels, height, width], w [filters, channels, kernel, kernel]; what divides an index is part of the
    kernel, not told to it, as division by a constant is none.
    """

    def outputs(s: Sizes) -> tuple[Index, Index]:
        if stride == 1:
            return s["height"] + (2 * padding - kernel + 1), s["width"] + (2 * padding - kernel + 1)
        reach = kernel - 2 * padding
        return (s["height"] - reach) // stride + 1, (s["width"] - reach) // stride + 1

    def patch(s: Sizes, i: Index, k: Index) -> Place:
        """Return the place of element k of the patch under output i."""
        high, wide = outputs(s)
        square = kernel * kernel
        sample, y, x = i // (high * wide), i // wide % high, i % wide
        down, across = k % square // kernel, k % kernel
        row, column = y * stride + down, x * stride + across
        inside = (
            (row >= padding) & (row < s["height"] + padding) & (column >= padding) & (column < s["width"] + padding)
        )
        corner = (sample * s["channels"] * s["height"] + y * stride) * s["width"] + x * stride
        beyond = (k // square * s["height"] + down) * s["width"] + across
        return Place(corner + beyond - (s["width"] * padding + padding), inside if padding else True)

    def pixel(s: Sizes, i: Index, j: Index) -> Index:
        """Return the address of output i of filter j: [batch, filters, height, width]."""
        high, wide = outputs(s)
        area = high * wide
        return (i // area * s["filters"] + j) * area + i % area

    def depth(s: Sizes) -> Index:
        return s["channels"] * (kernel * kernel)

    return Contraction(
        f"convolution {kernel}x{kernel}, stride {stride}, padding {padding}",
        IMAGE,
        lambda s: (s["batch"] * outputs(s)[0] * outputs(s)[1], s["filters"], depth(s)),
        patch,
        lambda s, k, j: Place(j * depth(s) + k),
        pixel,
        (0 if kernel == 1 else 1, 0),
    )
