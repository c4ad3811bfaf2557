"""What products of narrow rows cost is found from samples, and nothing is claimed where there are too few."""

from dataclasses import replace

import numpy as np
import pytest

from calibration.fit import predict
from calibration.narrow import apart, is_narrow, with_narrow
from calibration.samples import Samples
from sim.costs.kernels import few_channels, in_rows, narrow
from sim.costs.profile import load_profile

MODELS = {m.direction: m for m in load_profile("a100-sxm-80gb").models if m.op == "gemm"}
TRUTH = {"odd": 6.0, "odd_t0": 2e-6, "even": 3.0, "even_t0": 5e-7}


def samples(direction: str, n: int, step: int = 1) -> Samples:
    """Return products with rows of `step` times an odd number of elements, 3 % of noise on their times."""
    rng = np.random.default_rng(7)
    sizes = {name: step * (2 * rng.integers(50, 2000, n) + 1.0) for name in "mnk"} | {"batch": np.ones(n)}
    sizes["element"] = np.full(n, 2.0)
    marked = sizes | narrow(*in_rows(direction, sizes["m"], sizes["n"], sizes["k"]))
    seconds = predict("gemm-pnorm", marked, MODELS[direction].parameters | TRUTH) * np.exp(rng.normal(0, 0.03, n))
    return Samples("", "gemm", direction, sizes, seconds, tuple(map(str, range(n))), "matmul")


@pytest.mark.parametrize(("step", "kind"), [(1, "odd"), (2, "even"), (4, "even")])
def test_the_cost_of_narrow_rows_comes_back(step, kind):
    found = with_narrow(MODELS, {d: samples(d, 20, step) for d in MODELS})
    for direction, model in found.items():
        assert model.parameters[kind] == pytest.approx(TRUTH[kind], rel=0.05), direction
        assert model.held_out["narrow"].n == 60
        assert model.held_out["narrow"].mape < 5
        assert model.parameters.items() >= MODELS[direction].parameters.items()
        assert {"odd", "even"} & set(model.parameters) == {kind}


def test_too_few_samples_say_nothing():
    assert with_narrow(MODELS, {"forward": samples("forward", 7)}) == MODELS


FIRST = {"forward": {"few": 8.0, "few_k0": 60.0, "few_t0": 2e-5}, "wgrad": {"few": 5.0, "few_k0": 60.0, "few_t0": 2e-5}}


def first(direction: str, truth: dict[str, float], n: int = 20) -> Samples:
    """Return convolutions of 1 to 4 channels, 3 % of noise on their times."""
    rng = np.random.default_rng(7)
    places, outputs = 10 ** rng.uniform(3.5, 6.5, n), rng.choice([16.0, 32.0, 64.0, 96.0], n)
    channels = rng.choice([1.0, 3.0, 4.0], n)
    taps = channels * rng.choice([3.0, 7.0, 11.0], n) ** 2
    m, n_, k = (places, outputs, taps) if direction == "forward" else (outputs, taps, places)
    sizes = {"m": m, "n": n_, "k": k, "batch": np.ones(n), "element": np.full(n, 2.0), "channels": channels}
    seconds = predict("gemm-pnorm", sizes | few_channels(direction, m, n_, k, channels), PLAIN[direction] | truth)
    families = tuple(map(str, range(n)))
    return Samples("", "convolution", direction, sizes, seconds * np.exp(rng.normal(0, 0.03, n)), families, "aten")


PLAIN = {d: {**m.parameters, "m0": 0.0, "n0": 0.0, "k0": 0.0, "waves": 0.0} for d, m in MODELS.items()}
CONVOLUTIONS = {
    d: replace(m, op="convolution", parameters=PLAIN[d], domain={"k": [576.0, 4608.0]}) for d, m in MODELS.items()
}


def test_the_cost_of_few_channels_comes_back_and_stays_unknown_where_none_was_measured():
    found = with_narrow(CONVOLUTIONS, {d: first(d, truth) for d, truth in FIRST.items()})
    for direction, truth in FIRST.items():
        model = found[direction]
        assert model.parameters == PLAIN[direction] | {n: pytest.approx(x, rel=0.1) for n, x in truth.items()}
        assert (model.held_out["narrow"].n, model.held_out["narrow"].mape < 5) == (40, True)
    assert found["forward"].domain == {"k": [27, 4608]}  # 3 channels, 3 x 3
    assert found["dgrad"] == CONVOLUTIONS["dgrad"]


def test_few_channels_that_cost_nothing_are_no_term():
    assert with_narrow(CONVOLUTIONS, {d: first(d, {}) for d in FIRST}) == CONVOLUTIONS
    assert with_narrow(CONVOLUTIONS, {d: first(d, truth, 7) for d, truth in FIRST.items()}) == CONVOLUTIONS


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, False),
        ({"shape": {"m": 17.0, "n": 64.0, "k": 64.0}}, False),  # samples do not lie in rows
        ({"shape": {"m": 16.0, "n": 60.0, "k": 64.0}}, True),
        ({"shape": {"m": 16.0, "n": 64.0, "k": 63.0}}, True),
        ({"shape": {"m": 16.0, "n": 64.0, "k": 63.0}, "dtype": "float32"}, False),
        ({"shape": {"m": 17.0, "n": 64.0, "k": 63.0}, "direction": "wgrad", "layout": "NT"}, True),
        ({"shape": {"m": 16.0, "n": 64.0, "k": 63.0}, "direction": "wgrad", "layout": "NT"}, False),
        ({"shape": {"inputs": 3.0}, "op": "convolution"}, True),
        ({"shape": {"inputs": 9.0}, "op": "convolution"}, False),
        ({"shape": {"inputs": 3.0}, "op": "convolution", "dtype": "float32"}, False),
    ],
)
def test_which_samples_have_narrow_rows(changed, expected):
    row = {"op": "gemm", "direction": "forward", "dtype": "bfloat16", "layout": "TN"}
    assert is_narrow(row | {"shape": {"m": 16.0, "n": 64.0, "k": 64.0}} | changed) is expected


def test_few_channels_are_told_apart_where_samples_are_enough():
    product = {"op": "gemm", "layout": "TN", "dtype": "bfloat16", "shape": {"m": 16.0, "n": 60.0, "k": 64.0}}
    one = {"op": "convolution", "dtype": "bfloat16", "shape": {"inputs": 3.0}}
    both = [one | {"direction": direction} for direction in ("forward", "wgrad")]
    assert apart([product, *both * 7]) == [product]  # two parameters of both directions, and one of each
    assert apart([product, *both * 8]) == [product, *both * 8]


def test_what_an_h200_takes_for_narrow_rows_is_known_to_a_fifth():
    models = [m for m in load_profile("h200-sxm-141gb").models if (m.op, m.implementation) == ("gemm", "matmul")]
    for model in models:
        assert model.parameters["odd"] == pytest.approx(6.7, rel=0.02)
        assert model.parameters["even"] == pytest.approx(3.6, rel=0.02)
        assert model.held_out["narrow"].mape < 22
        assert model.held_out["narrow"].coverage90 > 0.85
    aligned = replace(models[0], parameters={n: v for n, v in models[0].parameters.items() if n not in TRUTH})
    assert aligned.seconds({"m": 4096.0, "n": 4096.0, "k": 4096.0, "batch": 1.0}) == models[0].seconds(
        {"m": 4096.0, "n": 4096.0, "k": 4096.0, "batch": 1.0}
    )
