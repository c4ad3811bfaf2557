"""What a layer's matrix products lose where they draw more power than a device bears."""

from collections.abc import Sequence
from math import log

from sim.costs import kernels
from sim.costs.algebra import Expr, maximum, minimum, symbol
from sim.costs.layers.ops import Op, total

POWER_SHARE = 2 / 3
"""Of an H200's layer, the share of products from which it draws more power than the device bears; products alone lose
all that `throttled` says. By blocks and steps of hidden 1536 to 12288 on H200s, of which products took 0.64 to 0.94
(2026-11-26 and -29)."""
H200_LOSES = 0.131
"""What an H200's products lose alone (`throttled` of its profile)."""
OTHERS_POWER = 0.2
"""Power of all else in a layer over the limit: assumed."""
POWER_EXPONENT = round(log((1 - OTHERS_POWER) / POWER_SHARE + OTHERS_POWER) / -log(1 - H200_LOSES), 1)
"""Power of products ~ clock ^ this, by both: 2.4, between a voltage in proportion (3) and one at its floor (1)."""


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
