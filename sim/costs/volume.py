"""Bytes that memory-bound kernels read and write, per element of what they work on.

`e` is the element size in bytes, 2 (16 bit) or 4 (fp32), a number or an expression. These are what layers count and
what calibration fits times to. Each tensor is read or written once; a dropout mask takes one byte.
"""

from sim.costs.algebra import Expr

FP32 = 4


def norm(direction: str, e: Expr) -> Expr:
    """Return the bytes per element: x read, y written; backward dy and x read, dx written."""
    return (2 if direction == "forward" else 3) * e


def composite_norm(direction: str, e: Expr) -> Expr:
    """Return the bytes per element of an RMS norm made of PyTorch's element-wise kernels, in fp32 in between.

    Forward: cast, square, mean, two products, cast. Backward, by autograd: cast; both gradients of both products, each
    reduced where it belongs to a vector; the square's; their sum; cast.
    """
    casts, product, binary, mean = 2 * (e + FP32), 2 * FP32, 3 * FP32, FP32
    if direction == "forward":
        return casts + product + mean + 2 * product
    return casts + 2 * (product + binary + mean) + 2 * product + binary


softmax = norm
"""Of stored scores: x read, y written; backward dy and y read, dx written."""


def activation(direction: str, e: Expr, gated: bool) -> Expr:
    """Return the bytes per output element of GELU (x; backward dy, x, dx) or SwiGLU (two x; backward two dx)."""
    if gated:
        return (3 if direction == "forward" else 5) * e
    return (2 if direction == "forward" else 3) * e


def clamp(direction: str, e: Expr) -> Expr:
    """Return the bytes per element of a gated MLP's first product whose halves Megatron-Core clamps and joins again
    (`weighted_bias_quick_geglu_impl`, 0.16.1): x read, halves written, read, joined.

    Backward: of the half with two bounds both compared, masks joined, dy chosen by them; of the other with one; joined.
    """
    return 4 * e if direction == "forward" else (7 * e + 8) / 2 + 2 * e


def dropout(e: Expr) -> Expr:
    """Return the bytes per element of a dropout of its own, in either direction."""
    return 2 * e + 1


def residual(direction: str, e: Expr, dropped: bool) -> Expr:
    """Return the bytes per element of bias + dropout + add: two reads, a write and (`dropped`) the mask.

    Backward: the gradients of both inputs meet, and the dropped one is masked.
    """
    if not dropped:
        return 3 * e
    return 3 * e + (1 if direction == "forward" else dropout(e))


def weighted_bias(direction: str, e: Expr) -> Expr:
    """Return the bytes per element of x + p b, of a weight p in fp32 for each row, as Megatron-Core adds the biases of
    experts' outputs (`TEGroupedMLP._apply_bias`, 0.16.1): product, sum and joined rows in fp32, then cast.

    Backward: the cast's gradient, that of x (cast, joined), and product and sum for each of b and p.
    """
    return 6 * FP32 + 2 * e if direction == "forward" else 8 * FP32 + 4 * e


def cross_entropy(direction: str, e: Expr) -> Expr:
    """Return the bytes per logit of a softmax cross-entropy in fp32; 16-bit logits are cast to it (read e, write 4).

    Forward: read for the maximum, exponentials read and written; backward: softmax read, gradient written, and cast.
    The terms in 4 - e are the casts, which fp32 does without.
    """
    return 3 * FP32 + 3 * (FP32 - e) if direction == "forward" else 2 * FP32 + (FP32 - e)


def fused_cross_entropy(e: Expr) -> Expr:
    """Return the bytes per logit, in either direction, of one kernel on the logits as they are (flash-attention's
    `xentropy`): read for the maximum and for the sum; backward read again, and overwritten with the gradient.

    Mist's, on an L4, takes 3.9 bytes' time backward (`calibration.published.op_timings`).
    """
    return 2 * e


def embedding(direction: str, e: Expr) -> Expr:
    """Return the bytes per looked-up element: row read and written; backward gradient read, fp32 sum updated."""
    return 2 * e if direction == "forward" else e + 2 * FP32


def rope(e: Expr) -> Expr:
    """Return the bytes per element of rotating queries and keys, in either direction."""
    return 2 * e


ADAM_STATES = 24
"""Per parameter: fp32 weight and two moments, each read and written."""


def adam(e: Expr, master: Expr, gradient: Expr) -> Expr:
    """Return the bytes per parameter of an Adam kernel: states, gradient (`gradient` bytes) read, weight written.

    `master`: bytes of the fp32 master copy that a 16-bit weight has beside it, 0 for weights that are fp32 themselves
    and so one of the states.
    """
    return ADAM_STATES + e * master / FP32 + gradient
