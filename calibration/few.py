"""Positive constants of a cost from few measured times: on logs, drawn to where they begin."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy  # loads scipy.optimize at its first use
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ERROR, WIDTH = 0.1, 2.0
"""Standard deviations of log seconds, and of a constant's log about where it begins."""


def fit_few(
    start: Mapping[str, float], seconds: Callable[[dict[str, float]], Sequence[float] | Floats], times: Sequence[float]
) -> tuple[dict[str, float], float]:
    """Return the constants that explain `times` best, and the standard deviation of their errors of log seconds.

    start: constants where times do not say; seconds: of all that was timed, with given constants. A time that others of
    the machine have disturbed moves them little (soft l1).
    """
    begin, measured = np.log(list(start.values())), np.log(times)

    def named(x: Floats) -> dict[str, float]:
        return dict(zip(start, np.exp(x).tolist(), strict=True))

    def errors(x: Floats) -> Floats:
        return np.log(np.asarray(seconds(named(x)), dtype=np.float64)) - measured

    def residuals(x: Floats) -> Floats:
        return np.concatenate([errors(x) / ERROR, (x - begin) / WIDTH])

    x = scipy.optimize.least_squares(residuals, begin, loss="soft_l1", max_nfev=50).x
    freedom = max(1, len(times) - len(start))
    return named(x), float(np.sqrt(np.sum(errors(x) ** 2) / freedom))
