"""Prediction intervals by split conformal prediction: residuals of held-out samples, per size bin.

With n held-out samples the ceil(level (n + 1))-th smallest absolute log residual covers a new sample of the same kind
with at least that probability (Vovk et al., Algorithmic Learning in a Random World, 2005; Lei et al., JASA 2018,
theorem 2.2). Bins of size (FLOP, or bytes) let small kernels, which are less certain, have wider ones.
"""

from collections.abc import Mapping
from math import ceil

import numpy as np
from numpy.typing import NDArray

from calibration.fit import Fit
from calibration.samples import Floats, Samples
from sim.costs.fitted import LEVELS, Z80, SizeBin, six_digits

PER_BIN = 25
"""Least samples of a bin: the 95 % level needs 19 (ceil(0.95 * 20) = 19)."""

MOST = 5


def half_width(residuals: Floats, level: float) -> float:
    """Return the half-width at `level` from held-out log residuals; the largest of them where they are too few."""
    ordered = np.sort(np.abs(residuals))
    return float(ordered[min(len(ordered), ceil(level * (len(ordered) + 1))) - 1])


def edges(size: Floats) -> list[float]:
    """Return where size bins start: at most `MOST`, as equal in samples as ties allow, each of at least `PER_BIN`.

    Fewer samples than that are one bin.
    """
    ordered = np.sort(size)
    count = max(1, min(MOST, len(size) // PER_BIN))
    starts, below = [float(ordered[0])], 0
    for k in range(1, count):
        inner = float(ordered[len(size) * k // count])
        smaller = int(np.searchsorted(ordered, inner))
        if smaller - below >= PER_BIN and len(size) - smaller >= PER_BIN:
            starts.append(inner)
            below = smaller
    return starts


def size_bins(fit: Fit, samples: Samples) -> list[SizeBin]:
    """Return the conformal intervals of a fit by size, from its cross-validated residuals."""
    residual, starts = np.log(samples.seconds / fit.predicted), edges(samples.size)
    which = np.searchsorted(starts, samples.size, side="right") - 1
    made = []
    for k, start in enumerate(starts):
        inside = residual[which == k]
        widths = {level: six_digits(half_width(inside, float(level))) for level in LEVELS}
        made.append(SizeBin(from_size=six_digits(start), n=len(inside), half_widths=widths))
    return made


def coverage(fit: Fit, samples: Samples) -> dict[str, float]:
    """Return nominal level -> share of samples inside the interval that the other folds' residuals give their bin."""
    residual, starts = np.abs(np.log(samples.seconds / fit.predicted)), edges(samples.size)
    which = np.searchsorted(starts, samples.size, side="right") - 1
    return {level: _covered(residual, which, fit.fold, float(level)) for level in LEVELS}


def _covered(residual: Floats, which: NDArray[np.int64], fold: NDArray[np.int64], level: float) -> float:
    inside = 0
    for held_out in np.unique(fold):
        for k in np.unique(which[fold == held_out]):
            others = residual[(fold != held_out) & (which == k)]
            # A bin whose samples are all in one fold borrows the others'.
            others = others if len(others) else residual[fold != held_out]
            mine = residual[(fold == held_out) & (which == k)]
            inside += int(np.sum(mine <= half_width(others, level)))
    return inside / len(residual)


def outside_slope(
    domain: Mapping[str, list[float]], bins: list[SizeBin], larger: Samples | None, predicted: Floats | None
) -> float:
    """Return the standard deviation of log time for every factor of e outside the domain.

    From held-out samples beyond it: the squares that their residuals have more than the last bin's interval, over the
    squares of their distances (the log of the largest factor beyond an edge). Without such samples that interval
    itself: a factor of e outside then doubles the variance.
    """
    sigma = bins[-1].half_widths["0.8"] / Z80
    if larger is None or predicted is None or not len(larger):
        return six_digits(sigma)
    beyond = [np.log(np.maximum(1.0, larger.inputs[n] / domain[n][1])) for n in domain if domain[n][1] > 0]
    distance = np.max(beyond, axis=0)
    far = distance > 0
    if not far.any():
        return six_digits(sigma)
    more = np.mean(np.log(larger.seconds / predicted)[far] ** 2) - sigma**2
    return six_digits(float(np.sqrt(max(0.0, more) / np.mean(distance[far] ** 2))))
