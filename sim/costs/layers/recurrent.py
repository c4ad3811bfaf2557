"""Recurrent layers (LSTM, GRU): products over all time steps or step by step, and point-wise kernels between them.

What decides their time (EcoRNN, arXiv 1805.08899): by default a framework launches the inputs' product of every step,
each gate's function and each point-wise operation apart; cuDNN does the inputs of all steps in one product, and what
lies between two products in one kernel; EcoRNN's kernels also choose the layout, Y = X W^T or Y^T = W X^T.
`calibration.layers` has both the default and the fused layers. No recipe of 8 or 4 bits touches them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sim.costs import kernels, volume
from sim.costs.algebra import Expr, minimum, symbol
from sim.costs.kernels import element_bytes
from sim.costs.layers.ops import Op, Sizes, hidden, moved, product, repeated, unfused
from sim.costs.layers.structure import BlockKind
from sim.specs.blocks import GATES

apart = symbol("recurrent_apart")
"""1 where every operation of a step is launched by itself."""
either_layout = symbol("either_layout")
"""1 where the faster layout is taken."""
SLOTS = 4
"""Numbers that a fused kernel keeps of a step over the state's: an LSTM's gates; a GRU's, and the part of its new gate
that comes from the state."""


@dataclass(frozen=True)
class Between:
    """What lies between two products of a step: point-wise kernels launched by default, numbers that they read and
    write over the state's, and those of the one fused kernel."""

    launches: int
    moved: int
    fused: int


BETWEEN = {
    ("lstm", "forward"): Between(10, 34, 11),
    ("lstm", "backward"): Between(14, 47, 14),
    ("gru", "forward"): Between(10, 27, 9),
    ("gru", "backward"): Between(13, 44, 12),
}
"""Forward of the LSTM: the sum of both products; i, f, o, g; f c, i g, their sum; tanh c, o times it. Of the GRU: sum
and sigmoid of r and of z; r h, its sum with x, n; h - n, z times it, its sum with n. Backward what autograd launches
for these. Fused: every number once, backward with the gradients of output, state and cell."""

COLUMNS = {"forward": "dgrad", "dgrad": "wgrad", "wgrad": "forward"}
"""The product of samples lying in rows that has the same operands transposed as one of samples lying in columns: W X
none, W^T dY the first, dY X^T the second."""

SAVED = {"lstm": (8, 6), "gru": (9, 5)}
"""Numbers kept of a step for its backward over the state's, by default and fused: inputs, gates (`SLOTS`) and the
LSTM's cell; by default also tanh c, or h - n and all that the state's product gave, and states beside the output."""


def recurrent(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    """Yield a recurrent layer, its inputs as wide as its state."""
    steps, wide = size.seq, GATES[kind.mixer] * hidden
    samples = size.tokens / steps
    # Products of the inputs: of all steps in one, or one a step.
    together, times = apart * samples + (1 - apart) * size.tokens, apart * steps + 1 - apart
    parts = (("recurrent in", together, times), ("recurrent state", samples, steps))
    rows, columns = [], []
    for name, m, t in parts:
        for way, n, k in (("forward", wide, hidden), ("dgrad", hidden, wide)):
            rows.append(repeated(t, _product, name, way, way, m, n, k))
            with kernels.repeating(either_layout):
                columns.append(repeated(t, _product, name, way, COLUMNS[way], n, m, k).seconds)
        rows.append(repeated(times, _product, name, "wgrad", "wgrad", wide, hidden, together))
        with kernels.repeating(either_layout):
            turned = repeated(times, _product, name, "wgrad", COLUMNS["wgrad"], wide, hidden, together)
        columns.append(turned.seconds)
    # One layout holds for the whole layer: what the better one saves is spread over its products.
    whole = sum(op.seconds for op in rows)
    share = 1 - either_layout + either_layout * minimum(whole, sum(columns)) / whole
    yield from (replace(op, seconds=share * op.seconds) for op in rows)
    yield from (_between(kind, size, direction, samples) for direction in kernels.BOTH)
    yield _sums(size, samples, wide)
    if kind.dropout:
        dropped = volume.dropout(element_bytes) * size.tokens * hidden
        yield moved("recurrent dropout", "forward", dropped, "dropout", "forward")
        yield moved("recurrent dropout dgrad", "backward_input", dropped, "dropout", "backward")


def _product(name: str, way: str, kernel: str, m: Expr, n: Expr, k: Expr) -> Op:
    """Return a product of direction `way`, timed as one of direction `kernel`.

    Few rows or columns a time step leave most of a GPU idle in the large tiles that profiles know: the library then
    takes small ones.
    """
    seconds = kernels.product_seconds(kernel, m, n, k, plain=True, smallest_tile=kernels.SMALLEST_TILE)
    return replace(product(name, way, m, n, k, plain=True), seconds=seconds)


def _between(kind: BlockKind, size: Sizes, direction: str, samples: Expr) -> Op:
    """Return the point-wise kernels of all steps; torch.compile has nothing to fuse where they are one a step."""
    held, each = BETWEEN[kind.mixer, direction], element_bytes * samples * hidden
    moves = apart * unfused(held.moved * each / held.launches) + (1 - apart) * held.fused * each
    launches = size.seq * (apart * held.launches + 1 - apart)
    if direction == "forward":
        return repeated(launches, _gates, "recurrent gates", "forward", moves)
    return repeated(launches, _gates, "recurrent gates dgrad", "backward_input", moves)


def _gates(name: str, phase: str, moves: Expr) -> Op:
    time = symbol("memory_bound_slowdown") * kernels.seconds("elementwise", "any", bytes=moves)
    return Op(name, phase, "compute", time, 0, moves)


def _sums(size: Sizes, samples: Expr, wide: Expr) -> Op:
    """Return the sums that gradients of weights and biases need: once over all steps; by default every step adds those
    of two weights and two biases to the sums so far."""
    by_step = (6 * wide * hidden + 2 * samples * wide) / 4
    moves = element_bytes * (apart * by_step + (1 - apart) * size.tokens * wide)
    return repeated(apart * 4 * size.seq + 1 - apart, moved, "recurrent wgrad sums", "backward_weight", moves)


def saved_bytes(kind: BlockKind, size: Sizes) -> Expr:
    """Return what a layer keeps of a microbatch for its backward; fused, also the state and cell that it ends with."""
    default, fused = SAVED[kind.mixer]
    # Fused, its states are what the next layer keeps as inputs, unless these have been dropped out in between.
    numbers = apart * default + (1 - apart) * (fused + kind.dropout)
    first = (1 - apart) * (2 if kind.mixer == "lstm" else 1) * size.tokens / size.seq
    return element_bytes * hidden * (numbers * size.tokens + first)


def gradient_bytes(size: Sizes) -> Expr:
    """Return the gradients of all steps' sums of products, which only fused layers keep."""
    return (1 - apart) * element_bytes * SLOTS * size.tokens * hidden
