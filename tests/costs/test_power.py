"""What layers of little else than large products lose under a device's power limit."""

import pytest

from sim.costs.algebra import Interpreted
from sim.costs.layers.ops import Op
from sim.costs.layers.power import H200_LOSES as ALONE
from sim.costs.layers.power import POWER_SHARE, throttled

LIMIT = {"gemm_forward_throttled": ALONE}


def longer(share: float, **limit: float) -> float:
    """Return by how much two equal products take longer that are `share` of a second of compute."""
    ops = [Op(name, "forward", "compute", share / 2, 1e12, product=True) for name in ("up", "down")]
    ops.append(Op("norm", "forward", "compute", 1 - share))
    return float(Interpreted({"longer": throttled(ops, 1.0)})(LIMIT | limit)["longer"])


def test_products_lose_what_they_lose_alone_as_far_as_the_layer_is_nothing_else():
    assert longer(1.0) == pytest.approx(1 / (1 - ALONE) - 1)
    assert longer((1 + POWER_SHARE) / 2) == pytest.approx(1 / (1 - ALONE / 2) - 1, rel=2e-3)
    assert longer(POWER_SHARE) == pytest.approx(0, abs=1e-3) and longer(0.1) == 0.0
    assert longer(1.0, gemm_forward_throttled=0.0) == 0.0


def test_less_of_a_layer_meets_the_limit_where_products_lose_more():
    begins = {lost: min(s for s in range(100) if longer(s / 100, gemm_forward_throttled=lost)) for lost in (0.05, 0.18)}
    assert 0.5 < begins[0.18] / 100 < POWER_SHARE < begins[0.05] / 100 < 0.95
