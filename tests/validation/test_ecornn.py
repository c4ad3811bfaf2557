"""Published ratios of EcoRNN beside ours, in stated bands, and measured kernels of GPUs; nothing is fitted to them."""

from statistics import median

import pytest

from sim.specs import InputError
from sim.validation import ecornn
from sim.validation.ecornn import (
    KERNELS,
    SKINNY,
    TIMED,
    compared,
    layer_seconds,
    one_gpu,
    points,
    product_flop_per_s,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All points by GPU, those that the paper's name."""
    folder = tmp_path_factory.mktemp("profiles")
    return {chip: list(points(one_gpu(chip, folder / chip))) for chip in ("V100", "Titan Xp")}


@pytest.mark.slow
def test_ratios_lie_in_bands_around_the_published(found):
    """Up to 3: 2 to 4. About 2: 1.5 to 2.7. Missed: up to 1.5 over cuDNN, here the same time."""
    every = [point for chip in found.values() for point in chip]
    default, cudnn, between = compared(every)
    assert 2.0 <= default.ours <= 4.0
    assert 1.5 <= between.ours <= 2.7
    assert (default.ours, between.ours) == (default.most, between.median)
    assert cudnn.least >= 1 - 1e-9
    assert cudnn.ours == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize(("chip", "share"), [("V100", 0.485), ("Titan Xp", 0.612)])
def test_small_layers_are_bound_by_launches_by_default(found, chip, share):
    """About half of the time of small layers or more; at least 1.8 times cuDNN's share of any."""
    shares = {kernel: [point.launching(kernel) for point in found[chip]] for kernel in KERNELS}
    first, last = found[chip][0], found[chip][-1]
    assert first.launching("default") == pytest.approx(share, rel=0.02)
    assert last.launching("default") < 0.2
    assert all(a > 1.8 * b for a, b in zip(shares["default"], shares["cudnn"], strict=True))
    assert median(shares["cudnn"]) < 0.15


def test_few_rows_cost_what_few_columns_do(found):
    """On an H200 (`checks/recurrent_layers.json`) rows take 0.82 to 1.11 times as long as columns, either way."""
    every = [point for chip in found.values() for point in chip]
    assert max(point.ratio("cudnn", "fused") for point in every) < 1.005
    assert {point.layout for point in every} == {"rows", "columns"}


@pytest.mark.parametrize("one", SKINNY, ids=lambda one: f"{one.chip} {one.m} x {one.n} x {one.k}")
def test_products_of_few_columns_are_as_fast_as_measured(one):
    """Within 30 %; in the large tiles of the profiles they would take 1.5 to 6 times as long."""
    assert product_flop_per_s(one) == pytest.approx(one.flop_per_s, rel=0.3)
    assert product_flop_per_s(one, finest=False) < one.flop_per_s / 1.5


@pytest.mark.parametrize("one", TIMED, ids=lambda one: one.chip)
def test_layers_of_cudnn_take_as_long_as_measured(one, tmp_path):
    assert 1 / 1.45 < layer_seconds(one, tmp_path) / one.seconds < 1.45


def test_parts_are_the_whole_layer(tmp_path):
    gpu, model = one_gpu("V100", tmp_path), ecornn.language_model(256, 25, 2)
    parts = ecornn.by_kernel(gpu, model, 32, "launches", scale=25)
    assert parts["default"] == pytest.approx(
        {"products of inputs": 3, "products of states": 3, "between two products": 24, "sums of gradients": 4}
    )
    made = ecornn.step(model, gpu, 32, "cudnn")
    dropout = ecornn.of_layers(made, "bytes", "recurrent dropout")
    assert 2 * sum(ecornn.by_part(made, "bytes").values()) + dropout == pytest.approx(ecornn.of_layers(made, "bytes"))


def test_ratios_by_width_and_batch(found):
    table = ecornn.ratios(found["V100"], "default", "fused", seq=50, layers=2)
    assert list(table) == ["256", "512", "1024"]
    assert list(table["256"]) == ["32", "64", "128"]
    assert [one.name for one in compared(found["V100"])][1:] == [
        "cudnn over fused, at most",
        "default over cudnn, about",
    ]


def test_an_unknown_chip_is_refused():
    with pytest.raises(InputError, match=r"^chip: got 'V1000'; allowed: one of V100, "):
        ecornn.in_fp32("V1000")
