"""What kernels compute: sums of products C[i, j] = sum over k of A(i, k) B(k, j), and what is done to an element.

Matrix products of a linear layer (forward, gradient of the input, gradient of the weights) and convolutions (implicit
GEMM: the matrix of patches is only ever addressed, never stored) differ in nothing but where an element lies.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    apply: Callable[[Any, Any, Any], Any]
    vector: str = ""


BIAS = Elementwise("bias", lambda f, x, b: x + b, "bias")
GELU = Elementwise("gelu", lambda f, x, b: 0.5 * x * (1.0 + f.erf(x * 0.7071067811865476)))
RELU = Elementwise("relu", lambda f, x, b: f.largest(x, 0.0))


@dataclass(frozen=True)
class Contraction:
    """A sum of products of elements of arrays `a` and `b`; all functions take the sizes first.

    sizes: names of what a kernel is told when it is called. extents: rows and columns of C and the length of the sum.
    a: place of A(i, k); b: of B(k, j); c: address of C[i, j].
    """

    name: str
    sizes: tuple[str, ...]
    extents: Callable[[Sizes], tuple[Index, Index, Index]]
    a: Callable[[Sizes, Index, Index], Place]
    b: Callable[[Sizes, Index, Index], Place]
    c: Callable[[Sizes, Index, Index], Index]


def _product(name: str, a_by_row: bool, b_by_row: bool) -> Contraction:
    """Return a product of matrices; by_row: whether a row's elements lie side by side."""
    return Contraction(
        name,
        ("m", "n", "k"),
        lambda s: (s["m"], s["n"], s["k"]),
        lambda s, i, k: Place(i * s["k"] + k if a_by_row else k * s["m"] + i),
        lambda s, k, j: Place(k * s["n"] + j if b_by_row else j * s["k"] + k),
        lambda s, i, j: i * s["n"] + j,
    )


FORWARD = _product("forward", a_by_row=True, b_by_row=False)
"""y = x w^T: x [m, k], w [n, k]."""
DGRAD = _product("dgrad", a_by_row=True, b_by_row=True)
"""dx = dy w: dy [m, k], w [k, n]."""
WGRAD = _product("wgrad", a_by_row=False, b_by_row=True)
"""dw = dy^T x: dy [k, m], x [k, n]."""

_CONVOLUTION = ("batch", "channels", "height", "width", "filters", "kernel", "stride", "padding")


def _outputs(s: Sizes) -> tuple[Index, Index]:
    """Return the height and width of a convolution's output."""
    reach = s["kernel"] - 2 * s["padding"]
    return (s["height"] - reach) // s["stride"] + 1, (s["width"] - reach) // s["stride"] + 1


def _patch(s: Sizes, i: Index, k: Index) -> Place:
    """Return the place of element k of the patch under output i: [batch, channels, height, width]."""
    high, wide = _outputs(s)
    square = s["kernel"] * s["kernel"]
    sample, y, x = i // (high * wide), i // wide % high, i % wide
    row = y * s["stride"] + k % square // s["kernel"]
    column = x * s["stride"] + k % s["kernel"]
    inside = (
        (row >= s["padding"])
        & (row < s["height"] + s["padding"])
        & (column >= s["padding"])
        & (column < s["width"] + s["padding"])
    )
    plane = sample * s["channels"] + k // square
    at = (plane * s["height"] + row - s["padding"]) * s["width"] + column - s["padding"]
    return Place(at, inside)


def _pixel(s: Sizes, i: Index, j: Index) -> Index:
    """Return the address of output i of filter j: [batch, filters, height, width]."""
    high, wide = _outputs(s)
    area = high * wide
    return (i // area * s["filters"] + j) * area + i % area


CONVOLUTION = Contraction(
    "convolution",
    _CONVOLUTION,
    lambda s: (
        s["batch"] * _outputs(s)[0] * _outputs(s)[1],
        s["filters"],
        s["channels"] * s["kernel"] * s["kernel"],
    ),
    _patch,
    lambda s, k, j: Place(j * (s["channels"] * s["kernel"] * s["kernel"]) + k),
    _pixel,
)
"""Square kernels: x [batch, channels, height, width], w [filters, channels, kernel, kernel]; padding on every side."""
CONTRACTIONS = {each.name: each for each in (FORWARD, DGRAD, WGRAD, CONVOLUTION)}
