"""Metrics: examples worked out by hand, and what must hold for any numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.validation import metrics
from sim.validation.baselines import best_constant

TIMES = st.lists(st.tuples(st.floats(0.01, 1e3), st.floats(0.01, 1e3)), min_size=1, max_size=30)


def arrays(*columns: list[float]) -> list[np.ndarray]:
    """Return the columns as arrays."""
    return [np.array(column, dtype=float) for column in columns]


def test_errors_by_hand() -> None:
    predicted, measured = arrays([1.1, 1.8, 4.0], [1.0, 2.0, 4.0])
    assert metrics.mape(predicted, measured) == pytest.approx(20 / 3)
    assert metrics.median_error(predicted, measured) == pytest.approx(10)
    assert metrics.bias(predicted, measured) == pytest.approx(0, abs=1e-12)
    assert metrics.max_error(predicted, measured) == pytest.approx(10)


def test_p90_lies_between_the_two_largest() -> None:
    measured = np.ones(11)
    assert metrics.p90_error(measured + np.arange(11) / 100, measured) == pytest.approx(9)


def test_a_common_factor_is_the_geometric_mean() -> None:
    predicted, measured = arrays([1.0, 1.0], [2.0, 8.0])
    assert metrics.mape_debiased(predicted, measured) == pytest.approx((100 + 50) / 2)


def test_order_counts_pairs_apart_and_ties_half() -> None:
    predicted, measured = arrays([1, 1, 5, 4], [1.0, 2.0, 4.0, 4.1])
    # Pairs: (0,1) tie; (0,2), (0,3), (1,2), (1,3) right; (2,3) closer than 5 % and not counted.
    assert metrics.pairwise_order(predicted, measured, ["g"] * 4) == pytest.approx(4.5 / 5)


def test_order_stays_inside_a_group_and_skips_rows_without_one() -> None:
    predicted, measured = arrays([2, 1, 1, 2], [1, 2, 1, 2])
    assert metrics.pairwise_order(predicted, measured, ["a", "a", "b", "b"]) == 0.5
    assert metrics.pairwise_order(predicted, measured, ["", "", "b", "b"]) == 1.0
    assert metrics.pairwise_order(predicted, measured, ["", "", "", "b"]) is None


def test_regret_is_what_the_chosen_row_costs() -> None:
    predicted, measured = arrays([1, 2, 3, 1, 1], [12, 10, 20, 10, 30])
    # Group a chooses 12 instead of 10; in group b the two rows tie: (10 + 30) / 2 instead of 10.
    assert metrics.mean_regret(predicted, measured, ["a", "a", "a", "b", "b"]) == pytest.approx((20 + 100) / 2)
    assert metrics.mean_regret(predicted, measured, ["a", "", "", "b", ""]) is None


def test_coverage_and_width() -> None:
    low, high, measured = arrays([1, 1, 1], [3, 3, 3], [2, 4, 3])
    assert metrics.coverage(low, high, measured) == pytest.approx(2 / 3)
    assert metrics.median_width(low, high, np.full(3, 2.0)) == 100


def test_confusion() -> None:
    predicted, truth = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert metrics.confusion(predicted, truth) == {"tp": 1, "fp": 1, "fn": 1, "tn": 1}


def test_nothing_measured_is_no_error() -> None:
    none = np.array([])
    assert metrics.mape(none, none) is None and metrics.mape_debiased(none, none) is None
    assert metrics.coverage(none, none, none) is None and metrics.mean_regret(none, none, []) is None


@given(TIMES, st.floats(0.1, 10))
def test_a_factor_changes_the_bias_only(pairs: list[tuple[float, float]], factor: float) -> None:
    predicted, measured = np.array(pairs).T
    same = metrics.mape_debiased(predicted, measured)
    assert metrics.mape_debiased(factor * predicted, measured) == pytest.approx(same, rel=1e-6)
    groups = ["g"] * len(pairs)
    order = metrics.pairwise_order(predicted, measured, groups)
    assert metrics.pairwise_order(measured, measured, groups) in (1.0, None)
    assert order is None or order + metrics.pairwise_order(-predicted, measured, groups) == pytest.approx(1)


@given(TIMES, st.floats(0.5, 2))
def test_no_constant_beats_the_best(pairs: list[tuple[float, float]], other: float) -> None:
    ideal, measured = np.array(pairs).T
    best = best_constant(ideal, measured)
    least = metrics.mape(best * ideal, measured)
    for constant in (best * other, np.exp(np.mean(np.log(measured / ideal)))):
        assert least <= metrics.mape(constant * ideal, measured) * (1 + 1e-9) + 1e-12
