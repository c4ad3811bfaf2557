"""What a form leaves over, from the nearest samples: a correction of its own, beside the form and never inside it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.fit import Fit, Scores, conformal_coverage, predict, scores
from calibration.samples import Floats, Samples

NEIGHBOURS = 5
SOFTENING = 0.5
"""Added to the distances (in doublings of the inputs) whose inverses are the weights."""


@dataclass(frozen=True)
class Neighbours:
    """Samples as points in the logarithms (base 2) of their inputs, with log(measured / predicted) at each."""

    names: tuple[str, ...]
    points: NDArray[np.float64]
    residuals: Floats

    @classmethod
    def of(cls, inputs: Mapping[str, Floats], predicted: Floats, measured: Floats) -> "Neighbours":
        """Return the table of the samples `inputs` with predictions and measurements in seconds."""
        names = tuple(sorted(inputs))
        return cls(names, _points(inputs, names), np.log(measured / predicted))

    def correction(self, inputs: Mapping[str, Floats]) -> Floats:
        """Return the log of the factor on the form's time: 0 outside the box that bounds the samples."""
        at = _points(inputs, self.names)
        distance = np.linalg.norm(at[:, None] - self.points[None], axis=2)
        nearest = np.argsort(distance, axis=1, kind="stable")[:, :NEIGHBOURS]
        weight = 1 / (np.take_along_axis(distance, nearest, axis=1) + SOFTENING)
        mean = np.sum(weight * self.residuals[nearest], axis=1) / np.sum(weight, axis=1)
        inside = (at >= self.points.min(axis=0)) & (at <= self.points.max(axis=0))
        return np.where(inside.all(axis=1), mean, 0.0)


def _points(inputs: Mapping[str, Floats], names: tuple[str, ...]) -> NDArray[np.float64]:
    return np.stack([np.log2(inputs[name]) for name in names], axis=1)


def corrected(fit: Fit, samples: Samples) -> tuple[Floats, Scores]:
    """Return the fit's held-out predictions with the correction from the other folds' samples, and their errors.

    Parameters and neighbours are those of the other folds, so nothing of a fold enters its own correction.
    """
    predicted = np.array(fit.predicted)
    for held_out in np.unique(fit.fold):
        test = fit.fold == held_out
        others = samples.where(~test)
        form_only = predict(fit.form, others.inputs, fit.without[int(held_out)])
        table = Neighbours.of(others.inputs, form_only, others.seconds)
        predicted[test] *= np.exp(table.correction(samples.where(test).inputs))
    return predicted, scores(predicted, samples.seconds, conformal_coverage(predicted, samples.seconds, fit.fold))
