"""What layers of little else than large products lose under a device's power limit."""

import pytest

from sim.costs.algebra import Interpreted
from sim.costs.layers.ops import Op
from sim.costs.layers.power import POWER_SHARES, throttled

LIMIT = {"gemm_forward_throttled": 0.2, "gemm_forward_throttled_flop": 1e12}


def longer(share: float, flop: float = 4e12, **limit: float) -> float:
    """Return by how much two equal products take longer that are `share` of a second of compute."""
    ops = [Op(name, "forward", "compute", share / 2, flop, product=True) for name in ("up", "down")]
    ops.append(Op("norm", "forward", "compute", 1 - share))
    return float(Interpreted({"longer": throttled(ops, 1.0)})(LIMIT | limit)["longer"])


def test_products_lose_the_share_that_their_size_loses_where_nothing_stands_between_them():
    low, high = POWER_SHARES
    assert longer(high) == longer(1.0) == pytest.approx(1 / (1 - 0.2 * 4 / 5) - 1)
    assert longer(low) == longer(0.1) == 0.0
    assert 0 < longer((low + high) / 2) < longer(high)
    assert longer(1.0, flop=1e9) < 1e-3
    assert longer(1.0, gemm_forward_throttled=0.0) == 0.0
