"""Layers that keep fewer bytes for the backward pass (Tempo, arXiv 2210.10246): what they save less, and do more.

With e bytes an element a layer of a transformer saves less: 4 s b h (e - 1) by its GELU, which keeps its output, as the
product after it does in any case, and a byte that says on which side of its minimum the input was; 2 s b h e by its
LayerNorms, whose backward pass reads the output, which the product after each keeps; a s^2 b e by attention on stored
scores, which makes the output of its dropout again.

Time is that of fused kernels, which memory bounds: the byte is written and read, and the dropout runs again. The table
of GELU's derivative (32 KB) stays in a cache beside the multiprocessor, and to normalise again is arithmetic on what
the backward pass reads in any case: the output in place of the input.
"""

from dataclasses import replace

from sim.costs.algebra import Expr, symbol
from sim.costs.kernels import element_bytes
from sim.costs.layers.ops import Op, Sizes, hidden, moved, native, sequence_parallel
from sim.costs.layers.structure import BlockKind

tempo = symbol("tempo")
"""1 where these layers stand in the place of the usual ones (`Plan.tempo`)."""
MEAN_BYTES = 4
SIDE_BYTES = 1

shared = (1 - symbol("low_precision")) * (1 - native * sequence_parallel)
"""1 where a product keeps its input as the norm before it has made it: not in 8 or 4 bits, nor gathered from
tensor-parallel ranks (PyTorch)."""


def of_norms(kind: BlockKind, size: Sizes, norms: int | None = None) -> Expr:
    """Return the bytes that `norms` (all) of a layer's LayerNorms save less: the inputs of those in front of a product,
    all means."""
    if kind.root_mean_square:
        return 0
    halves = 1 if kind.parallel else (kind.mixer != "none") + (kind.mlp != "none") + kind.cross
    norms = kind.norms if norms is None else norms
    rows, fed = size.norm_tokens, min(norms, halves)
    return tempo * (shared * fed * element_bytes * hidden + norms * MEAN_BYTES) * rows


def of_activation(kind: BlockKind, size: Expr) -> Expr:
    """Return the bytes that a GELU of `size` elements saves less."""
    return 0 if kind.gated or kind.relu else tempo * (element_bytes - SIDE_BYTES) * size


def of_dropout() -> Expr:
    """Return the bytes a score that the core of attention with dropout saves less."""
    return tempo * element_bytes


def again(kind: BlockKind) -> Expr:
    """Return 1 where the input of a layer that recomputes is not among what it then saves: that of its first norm."""
    return 0 if kind.root_mean_square or not kind.norms else tempo * shared


def side(kind: BlockKind, size: Expr) -> Expr:
    """Return what a GELU of `size` elements moves more, in either direction."""
    return 0 if kind.gated or kind.relu else tempo * SIDE_BYTES * size


def dropout_again(moves: Expr) -> Op:
    """Return the dropout that the backward pass runs again, which moves so many bytes."""
    op = moved("attention dropout again", "backward_input", tempo * moves, "dropout", "forward")
    return replace(op, seconds=tempo * op.seconds)
