"""Run-level parameters from measured runs: robust, drawn to priors that come from component data.

Residuals are the logs of predicted over measured step times, every source with the same weight. A fit over several
sources gives each one an offset of its own (clusters and software differ by 10 to 20 %), which is thrown away: what
is kept is what the sources have in common.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from sim.costs.profile import Z80
from sim.costs.run_level import RunLevel, RunLevelSet
from sim.engine.batch import Asked, Batch
from sim.validation.translate import Case

Floats = NDArray[np.float64]


class Prior(NamedTuple):
    """What is believed of a parameter before any run is seen: median, standard deviation of its log, and why."""

    median: float
    sigma_log: float
    why: str


PRIORS: Mapping[str, Prior] = {
    "gemm_slowdown": Prior(1.08, 0.10, "held-out products: 4 - 10 % mean error; power is shared in a run"),
    "attention_slowdown": Prior(1.08, 0.10, "as products: 3 - 5 % held out, power is shared; versions are plan knobs"),
    "memory_bound_slowdown": Prior(1.1, 0.5, "fused or not, the kernels of one layer move up to twice the bytes"),
    "collective_slowdown": Prior(1.1, 0.25, "bus bandwidths of one device differ by a quarter between tables"),
    "inter_slowdown": Prior(1.3, 0.4, "rates are link rates; a shared fabric gives less"),
    "overlap_slowdown": Prior(0.2, 0.7, "contention benchmark: concurrent streams keep 70 - 95 % of their rate"),
    "unfused_compiled": Prior(0.95, 0.10, "layers of GPT: 0 - 5 % slower compiled on an H200, 1 - 3 on a CPU"),
    "misaligned_slowdown": Prior(6.0, 0.5, "products off the tensor cores: ratio of peaks 4, and copies"),
    "low_precision_slowdown": Prior(1.0, 0.15, "ratios of measured peaks where known; casts are counted apart"),
    "host_s_per_launch": Prior(5e-6, 0.5, "launch floor of the profiles"),
    "step_overhead_s": Prior(5e-3, 1.0, "gradient norm, loss scale and logging: tens of small kernels and a sync"),
    "straggler": Prior(0.005, 0.7, "repeated runs of one cluster differ by a median 4.6 %"),
}

NOISE = 0.06
"""Standard deviation of the log of one run against the next: releases of one benchmark differ by a median 6 %."""

OFFSET = 0.10
"""The same of a whole source against another: one workload published twice by its authors differs by 9 - 10 %."""


def fit_run_level(cases: Sequence[Case], prior: RunLevel | None = None, offsets: bool = True) -> RunLevel:
    """Return the parameters that fit the measured step times of `cases`, those of the prior where there are none.

    `prior`: centre of the priors (default: `PRIORS`); `offsets`: give every source an offset that is not kept.
    """
    centre = asdict(prior) if prior else {name: p.median for name, p in PRIORS.items()}
    start = np.array([log(max(centre[name], 1e-12)) for name in PRIORS])
    timed = [case for case in cases if "time" in case.row.uses]
    if not timed:
        return _parameters(start)
    batch = Batch([Asked(c.model, c.cluster, c.placed) for c in timed], "approximate")
    measured = np.log([c.row.step_time_s for c in timed])
    sources, index, counts = np.unique([c.row.source for c in timed], return_inverse=True, return_counts=True)
    weight = np.sqrt(np.median(counts) / counts[index]) / NOISE
    width, n = np.array([p.sigma_log for p in PRIORS.values()]), len(PRIORS)
    shifts = len(sources) if offsets and len(sources) > 1 else 0

    def residuals(x: Floats) -> Floats:
        found = batch(RunLevelSet.bare(_parameters(x[:n]))).step_time_s
        error = np.log(found) - measured + (x[n:][index] if shifts else 0.0)
        return np.concatenate([(_cauchy if shifts else _soft)(error * weight), (x[:n] - start) / width, x[n:] / OFFSET])

    begin = np.concatenate([start, np.zeros(shifts)])
    from scipy.optimize import least_squares  # noqa: PLC0415 - every command would wait for it

    return _parameters(least_squares(residuals, begin, diff_step=[1e-4], max_nfev=40).x[:n])


def halved(groups: Sequence[str]) -> NDArray[np.bool_]:
    """Return which members are in the first of two halves that share no group.

    The largest group comes first, each goes to the smaller half.
    """
    sizes, half = [0, 0], {}
    for name, size in sorted(Counter(groups).items(), key=lambda item: (-item[1], item[0])):
        half[name] = sizes.index(min(sizes))
        sizes[half[name]] += size
    return np.array([half[name] == 0 for name in groups], dtype=bool)


def spread(errors: Sequence[Floats]) -> float:
    """Return the standard deviation of the log under which 80 % of the errors of all sources lie in the central 80 %.

    errors: logs of predicted over measured, an array a source; every source counts the same.
    """
    sizes = np.concatenate([np.abs(e) for e in errors])
    weights = np.concatenate([np.full(len(e), 1 / len(e)) for e in errors])
    order = np.argsort(sizes)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(sizes[order][np.searchsorted(reached, 0.8 - 1e-9)]) / Z80


def spread_of_unseen(errors: Sequence[Floats]) -> float:
    """Return the same for a source that none of `errors` is of: wider by what sources show that `spread` has not seen.

    Each source in turn is left out of the spread as well; 80 % of its errors, over the spread of the others, lie within
    the factor (a jackknife over groups, Barber et al. 2021, "Predictive inference with the jackknife+"). Of fewer than
    three sources none says what the others miss, and the spread stays as it is.
    """
    if len(errors) < 3:
        return spread(errors)
    others = [[e for e in errors if e is not left] for left in errors]
    return spread(errors) * spread([left / spread(rest) for left, rest in zip(errors, others, strict=True)])


def _soft(error: Floats) -> Floats:
    """Return residuals whose squares grow linearly beyond one standard deviation (pseudo-Huber, soft L1).

    For one site: where all of its runs are off alike, none is an outlier, and all of them have to pull.
    """
    return np.asarray(np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1)))


def _cauchy(error: Floats) -> Floats:
    """Return residuals whose squares are the negative log-likelihood of a Cauchy distribution.

    For several sources, whose offsets are found beside. Among the measured runs some are known to be 24 to 39 % off
    every smooth model, four to six standard deviations. A loss that grows linearly lets each of them pull as hard as
    any other run; this one lets them go.
    """
    return np.asarray(np.sign(error) * np.sqrt(np.log1p(error**2)))


@cache
def _limits() -> Mapping[str, tuple[float, float]]:
    """Return the declared range of every parameter."""
    properties = TypeAdapter(RunLevel).json_schema()["properties"]
    return {name: (properties[name]["minimum"], properties[name]["maximum"]) for name in PRIORS}


def _parameters(logs: Floats) -> RunLevel:
    """Return the parameters of their logs, within the declared ranges."""
    clipped = {n: float(np.clip(exp(v), *_limits()[n])) for n, v in zip(PRIORS, logs, strict=True)}
    return RunLevel(**clipped)
