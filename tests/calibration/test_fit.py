"""Synthetic samples of known parameters are found again, and folds keep families together."""

import numpy as np
import pytest

from calibration.fit import (
    Free,
    conformal_coverage,
    cross_validate,
    folds,
    rms_log_error_of_sums,
    scores,
)
from calibration.fit import predict as predict_kernel
from calibration.published.collectives import INTRA_FREE, NO_NETWORK, fit, predict
from calibration.published.families import RATE
from calibration.published.public import AllReduce
from calibration.samples import Samples
from calibration.terms import HALF_SIZE
from sim.specs.catalog import device


def gemm_samples(noise: float = 0.0) -> Samples:
    truth = {"rate": 2.5e14, "bandwidth": 1.7e12, "t0": 2e-6, "p": 1.5, "m0": 60.0, "n0": 90.0, "k0": 200.0}
    rng = np.random.default_rng(7)
    inputs = {name: 2.0 ** rng.integers(8, 15, 60) for name in ("m", "n", "k")} | {"batch": np.ones(60)}
    seconds = predict_kernel("gemm-pnorm", inputs, truth) * np.exp(rng.normal(0.0, noise, 60))
    family = tuple("x".join(map(str, sorted(s))) for s in zip(inputs["m"], inputs["n"], inputs["k"], strict=True))
    return Samples("made up", "gemm", "forward", inputs, seconds, family, "synthetic")


def test_parameters_of_a_gemm_are_found_again() -> None:
    free = {"rate": RATE, "m0": HALF_SIZE, "n0": HALF_SIZE, "k0": HALF_SIZE}
    found = cross_validate("gemm-pnorm", gemm_samples(), free, {"bandwidth": 1.7e12, "t0": 2e-6, "p": 1.5})
    assert found.solution.parameters["rate"] == pytest.approx(2.5e14, rel=1e-4)
    assert found.solution.parameters["k0"] == pytest.approx(200.0, rel=1e-3)
    assert found.scores.mape < 0.01


def test_errors_are_those_of_the_noise() -> None:
    fixed = {"bandwidth": 1.7e12, "t0": 2e-6, "p": 1.5, "m0": 60.0, "n0": 90.0, "k0": 200.0}
    found = cross_validate("gemm-pnorm", gemm_samples(noise=0.05), {"rate": RATE}, fixed)
    rate, error = found.solution.parameters["rate"], found.solution.standard_errors["rate"]
    assert abs(rate - 2.5e14) < 4 * error
    assert 2.5 < found.scores.mape < 6.0  # mean of |normal(0, 5 %)| is 4 %
    assert 0.8 <= found.scores.coverage90 <= 1.0


def test_one_outlier_hardly_moves_the_fit() -> None:
    samples = gemm_samples()
    samples.seconds[0] *= 10
    fixed = {"bandwidth": 1.7e12, "t0": 2e-6, "p": 1.5, "m0": 60.0, "n0": 90.0, "k0": 200.0}
    found = cross_validate("gemm-pnorm", samples, {"rate": RATE}, fixed)
    assert found.solution.parameters["rate"] == pytest.approx(2.5e14, rel=0.01)


def test_parameters_of_an_all_reduce_are_found_again() -> None:
    n = np.repeat([2.0, 4.0, 8.0], 10)
    size = np.tile(2.0 ** np.arange(20, 30), 3)
    links = device("a100-sxm-80gb")
    truth = NO_NETWORK | {"intra_efficiency_reduce": 0.75, "intra_alpha": 2e-5, "intra_alpha_rank": 3e-6}
    truth |= {"intra_own": 0.2, "intra_fill_s": 1e-4, "intra_fill_bytes": 2e7}
    made = AllReduce("made up", n, n, np.ones(30), size, np.ones(30), "synthetic")
    made = AllReduce("made up", n, n, np.ones(30), size, predict(made, links, truth), "synthetic")
    found = fit(made, links, INTRA_FREE, NO_NETWORK).parameters
    assert found == pytest.approx(truth, rel=1e-3)


def test_folds_never_split_a_family() -> None:
    families = [f"f{i % 37}" for i in range(200)]
    fold = folds(families)
    assert all(len({int(f) for f, g in zip(fold, families, strict=True) if g == name}) == 1 for name in families)
    assert set(fold.tolist()) == {0, 1, 2, 3, 4}


def test_few_families_are_left_out_one_by_one() -> None:
    assert sorted(folds(["a", "b", "c"]).tolist()) == [0, 1, 2]


def test_scores_are_percent_of_the_measured_time() -> None:
    found = scores(np.array([1.1, 0.8]), np.array([1.0, 1.0]), 1.0)
    assert (found.mape, found.bias) == (pytest.approx(15.0), pytest.approx(-5.0))


def test_conformal_interval_covers_nine_tenths() -> None:
    measured = np.exp(np.random.default_rng(3).normal(0.0, 0.1, 1000))
    assert conformal_coverage(np.ones(1000), measured, np.arange(1000) % 5) == pytest.approx(0.9, abs=0.02)


def test_one_fold_alone_gives_no_interval():
    assert conformal_coverage(np.ones(3), np.full(3, 1.1), np.zeros(3, dtype=np.int64)) == 0.0


def test_errors_of_sums_cancel() -> None:
    measured = np.exp(np.random.default_rng(3).normal(0.0, 0.1, 1000))
    assert rms_log_error_of_sums(np.ones(1000), measured) == pytest.approx(0.1 / 12**0.5, rel=0.2)


def test_a_parameter_stays_in_its_range() -> None:
    fixed = {"bandwidth": 1.7e12, "t0": 2e-6, "p": 1.5, "m0": 60.0, "n0": 90.0, "k0": 200.0}
    found = cross_validate("gemm-pnorm", gemm_samples(), {"rate": Free(1e14, 5e13, 2e14)}, fixed)
    assert found.solution.parameters["rate"] <= 2e14
