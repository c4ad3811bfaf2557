"""Conformal intervals: they cover what they say, and small kernels have wider ones where these are less certain."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calibration.fit import Free, cross_validate, predict
from calibration.intervals import PER_BIN, coverage, edges, half_width, outside_slope, size_bins
from calibration.samples import Samples
from sim.costs.fitted import Z80

FREE = {"bandwidth": Free(1e12, 1e10, 1e14)}
FIXED = {"t0": 0.0}


def samples(n: int, noise: float, small_noise: float = 0.0, seed: int = 1, low: float = 6.0) -> Samples:
    rng = np.random.default_rng(seed)
    size = 10 ** rng.uniform(low, 9.0, n)
    sigma = np.where(size < 10**7.5, small_noise or noise, noise)
    seconds = size / 1e12 * np.exp(rng.normal(0.0, 1.0, n) * sigma)
    return Samples("d", "elementwise", "any", {"bytes": size}, seconds, tuple(map(str, range(n))), "made up")


def test_nominal_levels_are_covered() -> None:
    some = samples(400, 0.1, 0.3)
    found = coverage(cross_validate("memory-bound", some, FREE, FIXED), some)
    for level, share in found.items():
        assert share == pytest.approx(float(level), abs=0.05)


def test_new_samples_are_covered_too() -> None:
    some, new = samples(400, 0.1, 0.3), samples(2000, 0.1, 0.3, seed=2)
    fit = cross_validate("memory-bound", some, FREE, FIXED)
    made = size_bins(fit, some)
    residual = np.abs(np.log(new.seconds / predict("memory-bound", new.inputs, fit.solution.parameters)))
    which = np.searchsorted([b.from_size for b in made], new.size, side="right") - 1
    inside = residual <= np.array([b.half_widths["0.8"] for b in made])[np.maximum(which, 0)]
    assert 0.75 <= inside.mean() <= 0.86


def test_bins_follow_the_spread_of_their_sizes() -> None:
    some = samples(400, 0.05, 0.4)
    made = size_bins(cross_validate("memory-bound", some, FREE, FIXED), some)
    assert len(made) == 5
    assert made[0].half_widths["0.8"] > 4 * made[-1].half_widths["0.8"]
    assert sum(b.n for b in made) == 400


@pytest.mark.parametrize(("n", "bins"), [(3, 1), (2 * PER_BIN - 1, 1), (2 * PER_BIN, 2), (1000, 5)])
def test_few_samples_have_few_bins(n: int, bins: int) -> None:
    found = edges(10 ** np.random.default_rng(0).uniform(3, 9, n))
    assert len(found) == bins
    assert found == sorted(found)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 2 * PER_BIN)), min_size=1, max_size=12))
@example([(1, 49), (2, 1), (3, 50)])
def test_every_bin_holds_enough_whatever_is_tied(tied: list[tuple[int, int]]) -> None:
    size = np.concatenate([np.full(n, float(value)) for value, n in tied])
    starts = edges(size)
    held = np.diff([*np.searchsorted(np.sort(size), starts), len(size)])
    assert starts[0] == size.min()
    assert held.min() >= min(PER_BIN, len(size))


def test_equal_sizes_are_one_bin() -> None:
    assert edges(np.full(300, 7.0)) == [7.0]


def test_half_width_is_the_conformal_rank() -> None:
    assert half_width(np.arange(1.0, 20.0), 0.9) == 18.0  # ceil(0.9 * 20)
    assert half_width(np.array([-3.0, 1.0]), 0.95) == 3.0


def test_slope_beyond_the_domain_is_that_of_the_larger_samples() -> None:
    some = samples(200, 0.1)
    fit = cross_validate("memory-bound", some, FREE, FIXED)
    made, domain = size_bins(fit, some), {"bytes": [1e6, 1e9]}
    far = 1e9 * np.exp(np.array([1.0, 2.0, 3.0]))
    slow = far / 1e12 * np.exp(0.5 * np.array([1.0, 2.0, 3.0]))  # a log error of 0.5 for every factor of e
    larger = replace(some, inputs={"bytes": far}, seconds=slow, family=("a", "b", "c"))
    assert outside_slope(domain, made, larger, far / 1e12) == pytest.approx(0.5, rel=0.02)
    without = outside_slope(domain, made, None, None)
    assert without == pytest.approx(made[-1].half_widths["0.8"] / Z80, rel=1e-4)
    assert outside_slope(domain, made, replace(larger, inputs={"bytes": far / 1e6}), far / 1e12) == without
