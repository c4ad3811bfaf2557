"""cuDNN's attention on GB200 and GB300: the shipped profiles against the published times."""

import numpy as np
import pytest

from calibration.fit import predict
from calibration.published.blackwell import GB300_PRODUCTS, MS, THROTTLED, attention, samples
from calibration.published.models import ATTENTION_DIRECTIONS
from sim.costs.profile import load_profile
from sim.specs.catalog import device


@pytest.mark.parametrize("way", ATTENTION_DIRECTIONS)
@pytest.mark.parametrize("name", ["gb200", "gb300", "gb200-2026", "gb300-2026"])
def test_shipped_profiles_meet_the_published_times(name: str, way: str) -> None:
    rows = samples(name.split("-", maxsplit=1)[0], way)
    held = load_profile(name).model_of(("attention", way))
    off = np.abs(predict(held.form, rows.inputs, held.parameters) / rows.seconds - 1)
    assert len(off) >= 19 and off.mean() < 0.075 and off.max() < 0.21
    assert held.status == "fitted" and held.cross_validation.mape < 10


@pytest.mark.parametrize("name", ["b200-2026", "b300-2026"])
def test_others_run_them_at_the_rates_of_their_products(name: str) -> None:
    like = "gb200" if name.startswith("b200") else "gb300"
    own, theirs = load_profile(name), attention(like)
    for way in ATTENTION_DIRECTIONS:
        found, base = own.model_of(("attention", way)), theirs["attention", way]
        assert 0.85 < found.parameters["rate"] / base.parameters["rate"] < 1
        assert found.parameters["d0"] == base.parameters["d0"] and found.status == "scaled"
    assert own.model_of(("gemm", "forward")).parameters["throttled"] == THROTTLED[like]


@pytest.mark.parametrize("name", sorted(MS))
def test_narrow_heads_and_windows_lose_most(name: str) -> None:
    """FLOP/s forward at 4,096 tokens: heads of 128 columns, of 64 with 1,024 keys, with 128."""
    rows = samples(name, "forward")
    of_4096 = [n for n, family in enumerate(rows.family) if family.endswith(", 4096")]
    wide, _, short, narrow = (rows.inputs["flop"] / rows.seconds)[of_4096]
    assert wide > 2 * short > 6 * narrow


def test_a_gb300_gains_what_its_power_limit_allows() -> None:
    own, base = (device(n).power_w.value - device(n).idle_power_w.value for n in ("gb300", "gb200"))
    assert pytest.approx((own / base) ** 0.5, rel=5e-3) == GB300_PRODUCTS
    assert THROTTLED["gb300"] < THROTTLED["gb200"]
