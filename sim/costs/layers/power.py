"""What a layer's matrix products lose where they draw more power than a device bears."""

from collections.abc import Sequence

from sim.costs import kernels
from sim.costs.algebra import Expr, maximum, minimum, symbol
from sim.costs.layers.ops import Op, total

POWER_SHARES = 0.62, 0.78
"""Of a layer's compute, the share of products below which what stands between them lets a chip recover from those that
draw more power than it bears, and above which nothing does: blocks and steps of hidden 2048 to 12288 on an H200, of
which products took 0.52 to 0.87 (2026-11-26 and -29)."""


def throttled(ops: Sequence[Op], compute_s: Expr) -> Expr:
    """Return the share of their time by which a layer's products take longer under the power limit of the device.

    As much as products of their size do that follow each other (`throttled` of `kernels.FORMS`), where they are nearly
    all of the layer. compute_s: of all its `ops`.
    """
    products = [op for op in ops if op.product]
    forward = [op.flop for op in products if op.phase == "forward"]
    size = sum(flop**2 for flop in forward) / maximum(1, sum(forward))
    low, high = POWER_SHARES
    share = total(products, "seconds", "compute") / maximum(1e-12, compute_s)
    near = minimum(1, maximum(0, (share - low) / (high - low)))
    most, flop = (symbol(kernels.parameter("gemm", "forward", name)) for name in ("throttled", "throttled_flop"))
    lost = near * most * size / (size + flop)
    return lost / (1 - lost)
