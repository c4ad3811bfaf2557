"""What a layer's matrix products lose where they draw more power than a device bears."""

from collections.abc import Sequence

from sim.costs import kernels
from sim.costs.algebra import Expr, maximum, minimum, symbol
from sim.costs.layers.ops import Op, total

POWER_SHARE = 2 / 3
"""Of a layer's compute, the share of products from which it draws more power than a device bears; products alone lose
all that `throttled` says. By blocks and steps of hidden 1536 to 12288 on H200s, of which products took 0.64 to 0.94
(2026-11-26 and -29)."""


def throttled(ops: Sequence[Op], compute_s: Expr) -> Expr:
    """Return the share of their time by which a layer's products take longer under the power limit of the device.

    As much as large products do that follow each other (`throttled` of `kernels.FORMS`), as far as the layer is nothing
    else. compute_s: of all its `ops`.
    """
    products = [op for op in ops if op.product]
    share = total(products, "seconds", "compute") / maximum(1e-12, compute_s)
    above = minimum(1, maximum(0, (share - POWER_SHARE) / (1 - POWER_SHARE)))
    lost = above * symbol(kernels.parameter("gemm", "forward", "throttled"))
    return lost / (1 - lost)
