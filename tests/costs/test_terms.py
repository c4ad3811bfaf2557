"""Optional terms of the forms: off by default, and what they add where they are on."""

import numpy as np
import pytest

from calibration.fit import predict
from sim.costs import kernels
from sim.costs.algebra import Interpreted, ceiling, compile_expressions, symbol
from sim.costs.layers.ops import norm, residual
from sim.costs.profile import load_profile
from sim.costs.usage import RATES, TIMES

GEMM = {"rate": 1e14, "bandwidth": 1e12, "t0": 0.0, "p": 1.0, "m0": 0.0, "n0": 0.0, "k0": 0.0}
TILES = {"waves": 1.0, "tile_m": 128.0, "tile_n": 256.0, "units": 100.0}
BIG = {"bandwidth": 1e17}


def products(m: float, n: float, k: float) -> dict[str, np.ndarray]:
    return {"m": np.array([m]), "n": np.array([n]), "k": np.array([k]), "batch": np.ones(1)}


def test_whole_waves_take_the_time_of_their_tiles() -> None:
    x = products(128 * 10, 256 * 10 + 1, 4096)  # 110 tiles: two waves of 100
    work = 200 * 128 * 256
    assert predict("gemm-pnorm", x, GEMM | BIG | TILES)[0] == pytest.approx(2 * work * 4096 / 1e14, rel=1e-3)


def test_a_full_wave_adds_nothing() -> None:
    x = products(1280, 2560, 4096)
    assert predict("gemm-pnorm", x, GEMM | TILES) == pytest.approx(predict("gemm-pnorm", x, GEMM))


def test_short_products_are_faster_and_long_ones_are_not() -> None:
    boost = {"boost": 0.5, "boost_flop": 1e12}
    small, large = products(128, 128, 128), products(1e5, 1e5, 1e5)
    for x, factor in ((small, 1.5), (large, 1.0)):
        plain, faster = (predict("gemm-pnorm", x, GEMM | BIG | more) for more in ({}, boost))
        assert plain / faster == pytest.approx(factor, rel=1e-2)


def test_long_products_alone_are_throttled_and_short_ones_are_not() -> None:
    throttled = {"throttled": 0.2, "throttled_flop": 1e12}
    for x, factor in ((products(128, 128, 128), 1.0), (products(1e4, 1e4, 5e3), 1.1), (products(1e5, 1e5, 1e5), 1.25)):
        plain, slower = (predict("gemm-pnorm", x, GEMM | BIG | more) for more in ({}, throttled))
        assert slower / plain == pytest.approx(factor, rel=2e-2)


SERIAL = {"serial": 2e-9, "serial_k": 2e3, "serial_hidden": 0.1}


def test_few_results_are_summed_up_in_turn_and_many_meanwhile() -> None:
    for k, longer in ((20.0, 4e-8), (2e3, 4e-6), (2e6, 4e-6)):
        plain, slower = (predict("gemm-pnorm", products(1, 1, k), GEMM | more)[0] for more in ({}, SERIAL))
        assert slower - plain == pytest.approx(longer - 0.1 * (plain - GEMM["t0"]), rel=1e-6)
    x = products(8192, 8192, 8192)
    assert predict("gemm-pnorm", x, GEMM | SERIAL) == pytest.approx(predict("gemm-pnorm", x, GEMM))


def test_bytes_of_results_may_cost_more_than_those_of_operands() -> None:
    x = products(1e4, 1e4, 1.0)
    moved = 2 * (2e4 + 1e8 * np.array([1.0, 1.3])) / 1e12
    slow = {"rate": 1e30, "t0": 0.0}
    told = [predict("gemm-pnorm", x, GEMM | slow | {"written": more})[0] for more in (0.0, 0.3)]
    assert told == pytest.approx(moved, rel=1e-9)


@pytest.mark.parametrize("form", ["gemm-pnorm", "memory-bound", "row-wise"])
def test_what_is_not_in_a_cache_comes_later(form: str) -> None:
    held = (
        GEMM if form == "gemm-pnorm" else {"bandwidth": 1e12, "t0": 0.0} | ({"c0": 0.0} if form == "row-wise" else {})
    )
    for size, later in ((1e3, 0.0), (1e6, 5e-7), (1e9, 1e-6)):
        x = products(size / 4, 1, 1) | {"bytes": np.array([size]), "columns": np.ones(1)}
        x["bytes"] = np.array([2 * (size / 4 + 1 + size / 4)]) if form == "gemm-pnorm" else x["bytes"]
        plain, cold = (predict(form, x, held | more)[0] for more in ({}, {"cold": 1e-6, "cold_bytes": 1e6}))
        assert cold - plain == pytest.approx(later, abs=2e-12)


def test_fused_attention_goes_on_key_by_key_and_needs_a_wave_of_blocks() -> None:
    held = {"rate": 1e14, "t0": 1e-6, "s0": 0.0, "r0": 0.0}
    x = {"flop": np.full(2, 1e10), "seq": np.full(2, 1e3), "rows": np.array([1e3, 1e5])}
    assert predict("attention-saturating", x, held | {"serial": 1e-8}) == pytest.approx(1e-6 + 1e-5 + 1e-4)
    assert predict("attention-saturating", x, held | {"least": 4e3}) == pytest.approx([1e-6 + 4e-4, 1e-6 + 1e-4])


def test_heads_may_be_padded() -> None:
    x = {"flop": np.full(2, 1e10), "seq": np.full(2, 1e3), "rows": np.full(2, 1e5), "head_dim": np.array([64.0, 96.0])}
    held = {"rate": 1e14, "t0": 0.0, "s0": 0.0, "r0": 0.0, "padded": 1.0}
    assert predict("attention-saturating", x, held) == pytest.approx([1e-4, 1e-4 * 128 / 96])


def test_a_step_knows_no_boost_and_no_cache() -> None:
    time = kernels.seconds("gemm", "forward", m=8, n=8, k=8, batch=1)
    names = {s.name for s in time.free_symbols}
    assert "gemm_forward_waves" in names
    assert not any(term in name for name in names for term in ("boost", "throttled", "cold"))
    held = load_profile("h200-sxm-141gb")
    fitted = held.read["gemm", "forward"].parameters
    assert held.values["gemm_forward_t0"] == fitted["t0"] + fitted["cold"] > fitted["t0"]


def test_long_rows_are_read_again() -> None:
    rows = {"bandwidth": 1e12, "t0": 0.0, "c0": 0.0, "spill": 0.5, "c1": 4096.0}
    x = {"bytes": np.full(3, 1e9), "columns": np.array([512.0, 4096.0, 65536.0])}
    assert predict("row-wise", x, rows) == pytest.approx([1e-3, 1.25e-3, 1.5e-3], rel=1e-6)


def test_rows_wait_in_turn_where_they_are_known() -> None:
    norm = {"bandwidth": 1e12, "t0": 1e-6, "c0": 0.0, "row_serial": 4e-9, "serial_rows": 3e3, "column_serial": 1e-9}
    x = {"bytes": np.array([3e6, 1.0]), "columns": np.array([1.0, 16384.0]), "rows": np.array([1e3, 1.0])}
    told = predict("row-wise", x, norm) - 1e-6
    assert told == pytest.approx([np.hypot(3e-6, 3e-6), np.hypot(16.384e-6, 4e-9)], rel=1e-3)
    without = {name: value for name, value in norm.items() if "serial" not in name}
    unknown = {name: value for name, value in x.items() if name != "rows"}
    for form in ("row-wise", "memory-bound"):
        held = {name: value for name, value in without.items() if form == "row-wise" or name != "c0"}
        assert (predict(form, x, held) == predict(form, unknown, held)).all()  # profiles without the terms: to the bit


def test_layers_tell_the_rows_of_kernels_that_depend_on_them() -> None:
    for op in (*norm("norm", 128 * symbol("tokens")), *residual("residual", 128 * symbol("tokens"), dropout=True)):
        names = {s.name for s in op.seconds.free_symbols}
        assert any(name.endswith("_row_serial") for name in names) == (op.name != "residual"), op.name
        assert any(name.endswith("_column_serial") for name in names) == ("norm" in op.name), op.name


def test_small_transfers_come_from_the_cache() -> None:
    held = {"bandwidth": 1e10, "t0": 0.0, "cached": 0.75, "b1": 1e6}
    found = predict("memory-bound", {"bytes": np.array([1e3, 1e9])}, held)
    assert found == pytest.approx([0.25e-7, 0.1], rel=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0, 3.0, 2.5, 2**20])
def test_ceiling_ignores_rounding(value: float) -> None:
    x = symbol("x")
    for function in (compile_expressions({"y": ceiling(x)}), Interpreted({"y": ceiling(x)})):
        assert float(function({"x": value * (1 + 1e-13)})["y"]) == np.ceil(value)


def test_every_form_is_homogeneous() -> None:
    """Rates halved and the floor doubled double the time: shares of a step rest on it."""
    rng = np.random.default_rng(0)
    for form in kernels.FORMS.values():
        x = {name: 10 ** rng.uniform(2, 6, 20) for name in {*form.inputs, "rows"}}
        p = form.complete({name: 10 ** rng.uniform(0, 0.8) for name in form.parameters})
        p |= {name: 1e-4 for name in TIMES if name in p and name != "t0"}
        slow = {n: v / 2 if n in RATES else 2 * v if n in TIMES else v for n, v in p.items()}
        assert predict(form.id, x, slow) == pytest.approx(2 * predict(form.id, x, p))


def test_what_an_optimizer_moves_hides_behind_its_issue() -> None:
    held = {"bandwidth": 1e12, "t0": 2e-4}
    for size, plain, beside in ((1e8, 3e-4, 2e-4), (1e9, 1.2e-3, 1e-3)):
        found = [predict("memory-bound", {"bytes": np.array([size])}, held | {"hidden": h})[0] for h in (0.0, 1.0)]
        assert found == pytest.approx([plain, beside])
