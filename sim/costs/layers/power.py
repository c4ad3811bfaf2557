"""What a layer's matrix products lose where they draw more power than a device bears."""

from collections.abc import Sequence

from sim.costs import kernels
from sim.costs.algebra import Expr, maximum, minimum, symbol
from sim.costs.layers.ops import Op, total

POWER_SHARE = 2 / 3
"""Of an H200's layer, the share of products from which it draws more power than the device bears; products alone lose
all that `throttled` says. By blocks and steps of hidden 1536 to 12288 on H200s, of which products took 0.64 to 0.94
(2026-11-26 and -29)."""
OTHERS_POWER = 0.2
"""Power of all else in a layer over the limit, and how the power of products goes with the clock: clock ~ power ^
(1 / `POWER_EXPONENT`), between what a falling voltage (3) and one at its floor (1) give. Assumed; the exponent then
follows from `POWER_SHARE` and the 13.1 % that an H200's products lose alone."""
POWER_EXPONENT = 2.4


def throttled(ops: Sequence[Op], compute_s: Expr) -> Expr:
    """Return the share of their time by which a layer's products take longer under the power limit of the device.

    As much as large products do that follow each other (`throttled` of `kernels.FORMS`), as far as the layer is nothing
    else; where these lose more, less of a layer is enough to meet the limit. compute_s: of all its `ops`.
    """
    products = [op for op in ops if op.product]
    share = total(products, "seconds", "compute") / maximum(1e-12, compute_s)
    alone = symbol(kernels.parameter("gemm", "forward", "throttled"))
    enough = (1 - OTHERS_POWER) / ((1 - alone) ** -POWER_EXPONENT - OTHERS_POWER)
    above = minimum(1, maximum(0, (share - enough) / maximum(1e-12, 1 - enough)))
    lost = above * alone
    return lost / (1 - lost)
