"""Errors of predictions against measurements. Errors in percent, order and coverage as fractions from 0 to 1.

Arrays are one-dimensional and of one length, a number a row; every function returns None where no row counts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CLOSE = 0.05
"""Pairs whose measured times differ by less (of the shorter) are within the noise and count in no order."""


def errors(predicted: Floats, measured: Floats) -> Floats:
    """Return the signed relative errors in percent (positive: predicted too high)."""
    return 100.0 * (predicted / measured - 1.0)


def mape(predicted: Floats, measured: Floats) -> float | None:
    """Return the mean absolute error in percent."""
    return _or_none(np.mean, np.abs(errors(predicted, measured)))


def median_error(predicted: Floats, measured: Floats) -> float | None:
    """Return the median absolute error in percent."""
    return _or_none(np.median, np.abs(errors(predicted, measured)))


def p90_error(predicted: Floats, measured: Floats) -> float | None:
    """Return the 90th percentile of the absolute error in percent (linear between rows)."""
    return _or_none(lambda e: np.percentile(e, 90), np.abs(errors(predicted, measured)))


def max_error(predicted: Floats, measured: Floats) -> float | None:
    """Return the largest absolute error in percent."""
    return _or_none(np.max, np.abs(errors(predicted, measured)))


def bias(predicted: Floats, measured: Floats) -> float | None:
    """Return the mean signed error in percent."""
    return _or_none(np.mean, errors(predicted, measured))


def mape_debiased(predicted: Floats, measured: Floats) -> float | None:
    """Return the mean absolute error in percent once the one common factor is removed.

    The factor is the geometric mean of measured over predicted.
    """
    if not len(predicted):
        return None
    return mape(predicted * np.exp(np.mean(np.log(measured / predicted))), measured)


def pairwise_order(predicted: Floats, measured: Floats, groups: Sequence[str]) -> float | None:
    """Return the share of pairs of a group that are predicted in the measured order.

    Only pairs whose measured times differ by more than 5 % count; a tie in prediction counts half. Rows without a
    group ("") are in no pair.
    """
    right = pairs = 0.0
    for members in _groups(groups):
        first, second = np.triu_indices(len(members), 1)
        a, b = measured[members[first]], measured[members[second]]
        apart = np.abs(a - b) > CLOSE * np.minimum(a, b)
        guess = np.sign(predicted[members[first]] - predicted[members[second]])[apart]
        right += float(np.sum(np.where(guess == 0, 0.5, guess == np.sign(a - b)[apart])))
        pairs += float(np.count_nonzero(apart))
    return right / pairs if pairs else None


def mean_regret(predicted: Floats, measured: Floats, groups: Sequence[str]) -> float | None:
    """Return, as a mean over groups, how much longer (percent) the row predicted fastest takes than the fastest.

    Of several rows predicted equally fast the mean counts; a group of one row has no choice and is left out.
    """
    regrets = []
    for members in _groups(groups):
        guess, truth = predicted[members], measured[members]
        chosen = truth[guess == guess.min()].mean()
        regrets.append(100.0 * (chosen / truth.min() - 1.0))
    return float(np.mean(regrets)) if regrets else None


def coverage(low: Floats, high: Floats, measured: Floats) -> float | None:
    """Return the share of measurements that lie in their interval."""
    return _or_none(np.mean, (low <= measured) & (measured <= high))


def median_width(low: Floats, high: Floats, predicted: Floats) -> float | None:
    """Return the median width of the intervals in percent of the prediction (+-25 % is about 50)."""
    return _or_none(np.median, 100.0 * (high - low) / predicted)


def confusion(predicted: NDArray[np.bool_], truth: NDArray[np.bool_]) -> dict[str, int]:
    """Return how often "out of memory" was predicted and true: tp, fp, fn, tn."""
    return {
        "tp": int(np.count_nonzero(predicted & truth)),
        "fp": int(np.count_nonzero(predicted & ~truth)),
        "fn": int(np.count_nonzero(~predicted & truth)),
        "tn": int(np.count_nonzero(~predicted & ~truth)),
    }


def _groups(groups: Sequence[str]) -> list[NDArray[np.int64]]:
    """Return the row numbers of every named group of two rows or more."""
    names = np.asarray(groups, dtype=str)
    found = [np.flatnonzero(names == name) for name in sorted({*groups} - {""})]
    return [members for members in found if len(members) > 1]


def _or_none(of: Callable[[Any], Any], values: NDArray[Any]) -> float | None:
    return float(of(values)) if len(values) else None
