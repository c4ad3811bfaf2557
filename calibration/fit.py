"""Robust fits of the symbolic forms, with errors on shapes the fit has not seen.

Least squares on log time with a soft-L1 loss (scale 0.1: about 10 %), over the logarithms of the free
parameters. The expressions are those of `sim.costs`, compiled; there is no second formula here. Errors are those of
five folds, each predicted from the other four; samples of one shape family are never split between folds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from calibration.samples import Floats, Samples
from sim.costs.algebra import Compiled, compile_expressions, symbol
from sim.costs.fitted import Errors, all_six_digits
from sim.costs.kernels import FORMS

FOLDS = 5
SEED = 0
STARTS = 2
LOSS_SCALE = 0.1
TOLERANCE = 1e-12
"""Tight, so that the digits that are kept do not depend on where the search stops."""

ROUGH = 1e-6
"""Enough to compare variants."""

QUANTILES = (0.05, 0.1, 0.5, 0.9, 0.95)

Parameters = Mapping[str, float]
Model = Callable[[Parameters], Floats]


@dataclass(frozen=True)
class Free:
    """A parameter to fit: where to start and the range it stays in."""

    start: float
    low: float
    high: float


@dataclass(frozen=True)
class Solution:
    """Fitted parameters (fixed ones included) and the standard errors of the free ones, in their units."""

    parameters: dict[str, float]
    standard_errors: dict[str, float]
    cost: float


@dataclass(frozen=True)
class Scores:
    """Errors of predictions in percent of the measured time; coverage as a fraction."""

    mape: float
    median: float
    p90: float
    bias: float
    coverage90: float

    def errors(self, n: int) -> Errors:
        """Return them as a profile holds the errors of `n` samples."""
        return Errors(**all_six_digits(asdict(self)), n=n)


@dataclass(frozen=True)
class Fit:
    """A fitted form with its out-of-fold predictions (seconds, in the order of the samples).

    `fold` is that of each sample, `without` the parameters fitted without the samples of a fold.
    """

    form: str
    solution: Solution
    predicted: Floats
    fold: NDArray[np.int64]
    without: Mapping[int, Parameters]
    scores: Scores
    residual_quantiles: dict[str, float]


@lru_cache
def _compiled(form: str, given: tuple[str, ...]) -> Compiled:
    shape = FORMS[form]
    inputs = {name: symbol(name) for name in given}
    parameters = {name: symbol(f"fit_{name}") for name in shape.names}
    return compile_expressions({"seconds": shape.seconds(inputs, parameters)})


def predict(form: str, inputs: Mapping[str, Floats], parameters: Parameters) -> Floats:
    """Return the seconds of the form `form` for arrays of inputs; terms without parameters are switched off."""
    values = dict(inputs) | {f"fit_{name}": value for name, value in FORMS[form].complete(parameters).items()}
    return np.asarray(_compiled(form, tuple(sorted(inputs)))(values)["seconds"], dtype=np.float64)


def solve(
    model: Model,
    seconds: Floats,
    free: Mapping[str, Free],
    fixed: Parameters,
    tolerance: float = TOLERANCE,
    columns: bool = False,
) -> Solution:
    """Return the parameters of `model` that fit `seconds` best, from `STARTS` seeded starts.

    columns: the model takes columns of values too, [k, 1], and returns k rows then.
    """
    names = list(free)
    low, high = (np.log([getattr(free[n], side) for n in names]) for side in ("low", "high"))
    start = np.log([free[n].start for n in names])

    def residuals(logs: Floats) -> Floats:
        values = np.exp(logs) if logs.ndim == 1 else np.exp(logs.T)[..., None]
        return np.log(model({**fixed, **dict(zip(names, values, strict=True))}) / seconds)

    rng = np.random.default_rng(SEED)
    best: Any = None
    for attempt in range(STARTS):
        shift = rng.normal(0.0, 0.5, len(names)) if attempt else 0.0
        x0 = np.clip(start + shift, low + 1e-6, high - 1e-6)
        found = least_squares(
            residuals,
            x0,
            _differences(residuals, low, high) if columns else "2-point",
            bounds=(low, high),
            loss="soft_l1",
            f_scale=LOSS_SCALE,
            ftol=tolerance,
            xtol=tolerance,
            gtol=tolerance,
        )
        # A later start must be clearly better, so that rounding never decides which one is kept.
        if best is None or found.cost < best.cost * (1 - 1e-6):
            best = found
    values = dict(zip(names, np.exp(best.x).tolist(), strict=True))
    return Solution({**fixed, **values}, _standard_errors(best, values), float(best.cost))


def _differences(residuals: Callable[[Floats], Floats], low: Floats, high: Floats) -> Callable[[Floats], Floats]:
    """Return the Jacobian by forward differences of the steps that SciPy takes, all of them in one evaluation."""

    def jacobian(x: Floats) -> Floats:
        step = np.sqrt(np.finfo(float).eps) * np.where(x >= 0, 1, -1) * np.maximum(1, np.abs(x))
        step = np.where((x + step < low) | (x + step > high), -step, step)
        found = residuals(x + np.vstack([np.zeros(len(x)), np.diag(step)]))
        return np.asarray(((found[1:] - found[0]) / (x + step - x)[:, None]).T)

    return jacobian


MOST_ERROR = 1e17
"""Stated of a parameter that samples do not tell at all: what profiles may hold ends not far above."""


def _standard_errors(found: Any, values: Mapping[str, float]) -> dict[str, float]:
    """Return value * standard error of its log, from the Jacobian at the optimum."""
    spare = max(1, len(found.fun) - len(found.x))
    variance = float(np.sum(found.fun**2)) / spare
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * variance
    logs = np.sqrt(np.maximum(np.diag(covariance), 0.0)).tolist()
    return {name: min(value * log, MOST_ERROR) for (name, value), log in zip(values.items(), logs, strict=True)}


def folds(families: Sequence[str]) -> NDArray[np.int64]:
    """Return the fold of each sample; samples of one family share it, unless all are of one."""
    if len(set(families)) == 1:
        families = [f"{n:06d}" for n in range(len(families))]
    order = sorted(set(families))
    place = dict(zip(order, np.random.default_rng(SEED).permutation(len(order)), strict=True))
    return np.array([place[f] % min(FOLDS, len(order)) for f in families], dtype=np.int64)


def cross_validate(
    form: str,
    samples: Samples,
    free: Mapping[str, Free],
    fixed: Parameters,
    fold: NDArray[np.int64] | None = None,
) -> Fit:
    """Return the fit to all samples, with errors from folds that it had not seen.

    `fold` lets several fits share folds, so that their held-out predictions can be added up.
    """
    folded = None if fold is None else {"": fold}
    return cross_validate_together(form, {"": samples}, free, fixed, (), folded)[""]


def cross_validate_together(
    form: str,
    parts: Mapping[str, Samples],
    free: Mapping[str, Free],
    fixed: Parameters,
    own: Sequence[str] = (),
    fold: Mapping[str, NDArray[np.int64]] | None = None,
    tolerance: float = TOLERANCE,
) -> dict[str, Fit]:
    """Return one fit for each of `parts` (directions of a kernel), which share all free parameters but the `own` ones.

    One fold per family over all parts: a layer's three products are held out together.
    """
    fold = fold_together(parts) if fold is None else fold
    given = {name: value for name, value in free.items() if name not in own}
    given |= {f"{name} {part}": free[name] for name in own if name in free for part in parts}
    predicted = {part: np.empty(len(samples)) for part, samples in parts.items()}
    without: dict[int, Parameters] = {}
    for held_out in np.unique(np.concatenate(list(fold.values()))):
        found = _solve_masked(form, parts, given, fixed, {part: fold[part] != held_out for part in parts}, tolerance)
        without[int(held_out)] = found.parameters
        for part, samples in parts.items():
            test = fold[part] == held_out
            predicted[part][test] = predict(form, samples.where(test).inputs, _own(found.parameters, part))
    whole = {part: np.ones(len(samples), dtype=bool) for part, samples in parts.items()}
    everything = _solve_masked(form, parts, given, fixed, whole, tolerance)
    return {
        part: Fit(
            form,
            Solution(_own(everything.parameters, part), _own(everything.standard_errors, part), everything.cost),
            predicted[part],
            fold[part],
            {held_out: _own(found, part) for held_out, found in without.items()},
            scores(
                predicted[part],
                samples.seconds,
                conformal_coverage(predicted[part], samples.seconds, fold[part]),
            ),
            residual_quantiles(predicted[part], samples.seconds),
        )
        for part, samples in parts.items()
    }


def fold_together(parts: Mapping[str, Samples]) -> dict[str, NDArray[np.int64]]:
    """Return the folds of several parts; a family has one fold in all of them."""
    everything = folds([f for samples in parts.values() for f in samples.family])
    edges = np.cumsum([len(samples) for samples in parts.values()])[:-1]
    return dict(zip(parts, np.split(everything, edges), strict=True))


def _own(values: Parameters, part: str) -> dict[str, float]:
    """Return the parameters of one part by the names of the form."""
    shared = {name: value for name, value in values.items() if " " not in name}
    return shared | {n.split(" ", 1)[0]: v for n, v in values.items() if n.endswith(f" {part}") and " " in n}


def _solve_masked(
    form: str,
    parts: Mapping[str, Samples],
    free: Mapping[str, Free],
    fixed: Parameters,
    mask: Mapping[str, NDArray[np.bool_]],
    tolerance: float,
) -> Solution:
    chosen = {part: samples.where(mask[part]) for part, samples in parts.items()}

    def model(values: Parameters) -> Floats:
        found = [predict(form, s.inputs, _own(values, part)) for part, s in chosen.items()]
        rows = max(np.shape(one)[:-1] for one in found)
        return np.concatenate([np.broadcast_to(one, (*rows, len(one.T))) for one in found], axis=-1)

    return solve(model, np.concatenate([s.seconds for s in chosen.values()]), free, fixed, tolerance, columns=True)


def scores(predicted: Floats, measured: Floats, coverage90: float) -> Scores:
    """Return the errors of `predicted` against `measured` in percent."""
    error = 100 * (predicted / measured - 1)
    size = np.abs(error)
    return Scores(
        float(size.mean()),
        float(np.median(size)),
        float(np.quantile(size, 0.9)),
        float(error.mean()),
        coverage90,
    )


def conformal_coverage(predicted: Floats, measured: Floats, fold: NDArray[np.int64]) -> float:
    """Return the share of samples inside the 90 % interval that the residuals of the other folds give.

    Split conformal: the interval is the ceil(0.9 (n + 1))-th smallest absolute log residual. Where all samples are in
    one fold there is no interval, and no sample inside.
    """
    residual = np.abs(np.log(measured / predicted))
    inside = 0
    for held_out in np.unique(fold):
        others = np.sort(residual[fold != held_out])
        if not len(others):
            continue
        rank = min(len(others), int(np.ceil(0.9 * (len(others) + 1))))
        inside += int(np.sum(residual[fold == held_out] <= others[rank - 1]))
    return inside / len(residual)


def residual_quantiles(predicted: Floats, measured: Floats) -> dict[str, float]:
    """Return quantiles of log(measured / predicted)."""
    residual = np.log(measured / predicted)
    return {f"{q:g}": float(np.quantile(residual, q)) for q in QUANTILES}


def rms_log_error(predicted: Floats, measured: Floats) -> float:
    """Return the root mean square of log(predicted / measured)."""
    return float(np.sqrt(np.mean(np.log(predicted / measured) ** 2)))


def rms_log_error_of_sums(predicted: Floats, measured: Floats) -> float:
    """Return the RMS log error of the summed time of random groups of 12 kernels (a block or two)."""
    chosen = np.random.default_rng(SEED).integers(0, len(measured), (1000, 12))
    return rms_log_error(predicted[chosen].sum(axis=1), measured[chosen].sum(axis=1))
