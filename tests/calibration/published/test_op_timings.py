"""Mist's timings of single operations: what is read, what is set aside, and the profile that follows."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from calibration.published.op_timings import HEADER, L4_IN_TRAINING
from calibration.published.public import Public
from calibration.published.tables import read_public
from sim.costs.profile import load_profile
from sim.specs import InputError
from tests.oracle import reference


@cache
def timings() -> Public:
    return read_public([reference("tuner/op_timings_l4.csv")])


def test_products_are_read_in_three_directions() -> None:
    """x[1, 2048, 2048] with weight[6144, 2048]: 0.986 ms forward, both gradients together 1.937 ms."""
    expected = {
        "forward": (2048, 6144, 2048, 0.986),
        "dgrad": (2048, 2048, 6144, 0.968),
        "wgrad": (6144, 2048, 2048, 0.968),
    }
    for direction, (m, n, k, milliseconds) in expected.items():
        found = timings().of(L4_IN_TRAINING, "gemm", direction)
        same = (found.inputs["m"] == m) & (found.inputs["n"] == n) & (found.inputs["k"] == k)
        assert 1e3 * found.seconds[same] == pytest.approx([milliseconds], rel=1e-3)


def test_only_the_session_at_the_sustained_clock_is_read() -> None:
    """Its products run at 54 TFLOP/s whatever their size; those of the backup at up to 86, beyond what 72 W sustain."""
    found = timings().of(L4_IN_TRAINING, "gemm", "forward")
    large = (found.inputs["batch"] == 1) & (found.size > 5e10)
    rates = found.size[large] / found.seconds[large]
    assert len(found) == 28 and 5.1e13 < rates.min() < rates.max() < 5.8e13


def test_the_softmax_in_place_is_timed_without_the_harness_copy() -> None:
    """18.29 ms less the identity's 9.07 ms at [128, 2048, 2048]."""
    found = timings().of(L4_IN_TRAINING, "softmax", "backward")
    assert 1e3 * found.seconds.max() == pytest.approx(18.29 - 9.07, abs=0.01)
    assert np.all(found.inputs["columns"] == 2048)


def test_a_shape_that_is_none_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_text(f'{HEADER}\ncache_NVIDIA_L4,torch.bmm,"input(16)",,1,1,0,1,1,0,here\n', "utf-8")
    with pytest.raises(InputError) as raised:
        read_public([path])
    assert raised.value.path == f"{path}:2.tensor_shapes"


def test_the_shipped_profile_of_l4_is_its_own() -> None:
    """Held-out errors just above what was reached: products 4.6 (2.4) %, attention 2.1 %, kernels over rows 1.1 %."""
    profile = load_profile("l4")
    limits = {"gemm": 4.8, "attention": 2.2, "softmax": 0.5, "cross_entropy": 1.1}
    held = {op: [m for m in profile.models if m.op == op] for op in limits}
    assert profile.base is None and not profile.estimate
    for op, limit in limits.items():
        assert held[op] and all(m.status == "fitted" for m in held[op])
        assert all(m.cross_validation is not None and m.cross_validation.mape < limit for m in held[op])
    gathered = profile.collectives["intra_efficiency_gather"] * 32e9
    assert gathered == pytest.approx(5.5e9, rel=0.02), "over the host, 5.6 GB/s a rank"
