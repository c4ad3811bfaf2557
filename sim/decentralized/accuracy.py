"""What accuracy a theta leaves on skewed data: fitted to a table of short real runs, with intervals.

Accuracy cannot be simulated. In a skew that was measured, the mean over seeds is made monotone in theta (the looser,
the more is lost) by isotonic regression; between what was measured it is bilinear in the logarithm of looseness and in
the skew, and beyond that it stays what it is at the edge. Intervals are the central 80 % of one more run: Student's t
on the spread of seeds about the fit, pooled over the thetas of a skew.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log, sqrt
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sim.decentralized.communication import KNOBS, AlgorithmName
from sim.specs.csv_rows import read_specs
from sim.specs.fields import InputError, init_names, real, spec, whole

Floats = NDArray[np.float64]
Quantity = Literal["accuracy", "accuracy_loss", "sent_fraction"]
RISES: Mapping[Quantity, bool] = {"accuracy": False, "accuracy_loss": True, "sent_fraction": False}
"""Whether what was measured rises with looseness."""
LEAST = 1e-9
"""Below it a looseness has no logarithm that says anything."""


@spec
class ShortRun:
    """A row of the table: one short run; accuracies are fractions.

    `accuracy`: of the run's end, on a test sample of all labels. `accuracy_loss`: in the mean over its travels.
    `sent_bytes`: from one partition to one other for a minibatch, in the mean; `sent_fraction`: of the values that it
    could have sent.
    """

    algorithm: AlgorithmName
    theta: Annotated[float, real(0.0, 1e6)]
    skew: Annotated[float, real(0.0, 1.0)]
    norm: str
    data: str
    seed: Annotated[int, whole(0, 2**31)]
    steps: Annotated[int, whole(1, 1_000_000_000)]
    accuracy: Annotated[float, real(0.0, 1.0)]
    accuracy_loss: Annotated[float, real(-1.0, 1.0)]
    sent_bytes: Annotated[float, real(0.0, 1e18, "B")]
    sent_fraction: Annotated[float, real(0.0, 1.0)]


def read_runs(path: str | Path) -> tuple[ShortRun, ...]:
    """Return the rows of a CSV of short runs, a column for each field of `ShortRun`; others are left out.

    Raises:
        InputError: with file, line and column of the first mistake.
    """
    found = tuple(read_specs(path, ShortRun))
    if not found:
        raise InputError(str(path), "no rows", "a row or more")
    return found


def selected(runs: Iterable[ShortRun], **values: Any) -> tuple[ShortRun, ...]:
    """Return the runs whose fields have these values (`norm="group"`) or one of those in a set.

    Raises:
        InputError: runs have no such field.
    """
    names = init_names(ShortRun)
    for name, value in values.items():
        if name not in names:
            raise InputError(name, value, f"a field of short runs: {', '.join(names)}")
    wanted = {name: value if isinstance(value, set) else {value} for name, value in values.items()}
    return tuple(run for run in runs if all(getattr(run, name) in value for name, value in wanted.items()))


def log_looseness(algorithm: AlgorithmName, theta: float) -> float:
    """Return the logarithm of how loose a theta is: of a threshold or a period itself, of DGC 1 / the share sent."""
    return -log(max(1 - theta, LEAST)) if algorithm == "dgc" else log(max(theta, LEAST))


@dataclass(frozen=True)
class Estimate:
    """A fraction with the central 80 % of what one more run would show; `sigma` is their standard deviation."""

    value: float
    low: float
    high: float
    sigma: float


@dataclass(frozen=True, eq=False)
class Surface:
    """A fitted quantity over skew (rows, S) and log-looseness (columns, T).

    `values` (S, T), `sigma` (S,) of seeds about it and `quantile` (S,) of Student's t, each widened by the error of a
    cell's own mean.
    """

    skews: Floats
    looseness: Floats
    values: Floats
    sigma: Floats
    quantile: Floats

    def at(self, skew: float, looseness: float) -> Estimate:
        """Return the estimate at a skew and a log-looseness; beyond the edge it is that of the edge."""
        by_skew = [float(np.interp(looseness, self.looseness, row)) for row in self.values]
        value, sigma, quantile = (float(np.interp(skew, self.skews, y)) for y in (by_skew, self.sigma, self.quantile))
        return Estimate(value, value - quantile * sigma, value + quantile * sigma, sigma)


@dataclass(frozen=True, eq=False)
class AccuracyModel:
    """AL(theta, skew), the accuracy of a run's end and what Gaia sends, from short runs of one kind.

    Raises:
        InputError: a theta is missing in a skew, or a run has no second seed.
    """

    runs: tuple[ShortRun, ...]
    surfaces: Mapping[Quantity, Surface] = field(init=False)

    def __post_init__(self) -> None:
        found: dict[Quantity, Surface] = {name: _surface(self.runs, name) for name in get_args(Quantity)}
        object.__setattr__(self, "surfaces", found)

    @property
    def algorithm(self) -> AlgorithmName:
        """The algorithm whose thetas were measured."""
        return self.runs[0].algorithm

    def accuracy_loss(self, theta: float, skew: float) -> Estimate:
        """Return what is lost between home and away (fraction)."""
        return self._at("accuracy_loss", theta, skew)

    def accuracy(self, theta: float, skew: float) -> Estimate:
        """Return the accuracy of a run's end (fraction)."""
        return self._at("accuracy", theta, skew)

    def sent_fraction(self, theta: float, skew: float) -> float:
        """Return the fraction of values that is sent."""
        return self._at("sent_fraction", theta, skew).value

    def _at(self, name: Quantity, theta: float, skew: float) -> Estimate:
        found = self.surfaces[name].at(skew, log_looseness(self.algorithm, theta))
        low, high = (-1.0 if name == "accuracy_loss" else 0.0), 1.0
        value, least, most = (min(max(x, low), high) for x in (found.value, found.low, found.high))
        return Estimate(value, least, most, found.sigma)

    def beyond(self, theta: float, skew: float) -> bool:
        """Return whether nothing so tight, so loose, so mixed or so skewed was measured."""
        looseness, surface = log_looseness(self.algorithm, theta), self.surfaces["accuracy"]
        inside = surface.skews[0] <= skew <= surface.skews[-1]
        return not inside or not surface.looseness[0] - LEAST <= looseness <= surface.looseness[-1] + LEAST

    @cached_property
    def coverage(self) -> Mapping[Quantity, float]:
        """Share of runs that lie in the interval of a model fitted without their seed.

        Runs of a seed without which none can be fitted do not count; it is empty where none do, as below three seeds.
        """
        inside: dict[Quantity, list[bool]] = {"accuracy": [], "accuracy_loss": []}
        for seed in sorted({run.seed for run in self.runs}):
            try:
                others = AccuracyModel(tuple(run for run in self.runs if run.seed != seed))
            except InputError:  # some theta was measured with this seed alone, or no spread is left
                continue
            for run in (run for run in self.runs if run.seed == seed):
                for name, held in inside.items():
                    estimate = others._at(name, run.theta, run.skew)
                    held.append(estimate.low <= getattr(run, name) <= estimate.high)
        return {name: sum(held) / len(held) for name, held in inside.items() if held}


def fit_accuracy(
    runs: Iterable[ShortRun], algorithm: AlgorithmName, norm: str | None = None, data: str | None = None
) -> AccuracyModel:
    """Return the model of an algorithm on the data and with the norm that are named, or with the first of the table.

    Raises:
        InputError: there are no such runs, or too few.
    """
    held = [run for run in runs if run.algorithm == algorithm]
    for name, stated in (("norm", norm), ("data", data)):
        known = list(dict.fromkeys(getattr(run, name) for run in held))
        if stated is not None and stated not in known:
            raise InputError(name, stated, f"one of {', '.join(known)}" if known else "a table with such runs")
        held = [run for run in held if getattr(run, name) == (stated or known[0])]
    if not held:
        raise InputError("algorithm", algorithm, "an algorithm of the table of short runs")
    return AccuracyModel(tuple(held))


def _surface(runs: Sequence[ShortRun], name: Quantity) -> Surface:
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - slow to load, and settings need none of it
    from scipy.stats import t as student  # noqa: PLC0415

    algorithm = runs[0].algorithm
    if KNOBS[algorithm].low == KNOBS[algorithm].high:
        thetas = [runs[0].theta]
    else:
        thetas = sorted({run.theta for run in runs}, key=lambda theta: log_looseness(algorithm, theta))
    skews = sorted({run.skew for run in runs})
    values, sigmas, quantiles = [], [], []
    for skew in skews:
        cells = [[getattr(r, name) for r in runs if r.theta == theta and r.skew == skew] for theta in thetas]
        counts = [len(cell) for cell in cells]
        if min(counts) == 0:
            place = f"theta {thetas[counts.index(0)]:g} at skew {skew:g}"
            raise InputError("runs", f"none with {place}", f"every theta in every skew ({algorithm})")
        free = sum(counts) - len(counts)
        if free < 1:
            raise InputError(
                "runs", f"one seed at skew {skew:g}", f"two seeds or more, whose spread is told ({algorithm})"
            )
        means = [float(np.mean(cell)) for cell in cells]
        fitted = isotonic_regression(means, weights=counts, increasing=RISES[name]).x
        squares = sum((value - at) ** 2 for cell, at in zip(cells, fitted, strict=True) for value in cell)
        values.append(fitted)
        sigmas.append(sqrt(squares / free))
        quantiles.append(float(student.ppf(0.9, free)) * sqrt(1 + 1 / min(counts)))
    looseness = [log_looseness(algorithm, theta) for theta in thetas]
    return Surface(*map(np.asarray, (skews, looseness, values, sigmas, quantiles)))
