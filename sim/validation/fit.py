"""Run-level parameters from measured runs: robust, drawn to priors that come from component data.

Residuals are the logs of predicted over measured step times, every source with the same weight. A fit over several
sources gives each one an offset of its own (clusters and software differ by 10 to 20 %), which is thrown away: what
is kept is what the sources have in common.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import exp, log

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from sim.costs.run_level import RunLevel, RunLevelSet
from sim.engine.batch import Asked, Batch
from sim.validation.translate import Case

Floats = NDArray[np.float64]

PRIORS: Mapping[str, tuple[float, float]] = {
    "gemm_slowdown": (1.08, 0.10),
    "attention_slowdown": (1.1, 0.25),
    "memory_bound_slowdown": (1.1, 0.25),
    "collective_slowdown": (1.1, 0.25),
    "inter_slowdown": (1.3, 0.4),
    "overlap_slowdown": (0.2, 0.7),
    "unfused_compiled": (0.6, 0.25),
    "low_precision_slowdown": (1.0, 0.15),
    "host_s_per_launch": (5e-6, 0.5),
    "misaligned_slowdown": (6.0, 0.5),
    "step_overhead_s": (5e-3, 1.0),
    "straggler": (0.005, 0.7),
}
"""Median and standard deviation of the log of each parameter before any run is seen."""

NOISE = 0.06
"""Standard deviation of the log of one run against the next: releases of one benchmark differ by a median 6 %."""

OFFSET = 0.10
"""The same of a whole source against another: one workload published twice by its authors differs by 9 - 10 %."""

ROBUST = 1.0
"""Residuals beyond this many standard deviations count linearly."""


def fit_run_level(cases: Sequence[Case], prior: RunLevel | None = None, offsets: bool = True) -> RunLevel:
    """Return the parameters that fit the measured step times of `cases`.

    `prior`: centre of the priors (default: `PRIORS`); `offsets`: give every source an offset that is not kept.
    """
    timed = [case for case in cases if "time" in case.row.uses]
    centre = asdict(prior) if prior else {name: median for name, (median, _) in PRIORS.items()}
    names = list(PRIORS)
    start = np.array([log(max(centre[name], 1e-12)) for name in names])
    width = np.array([PRIORS[name][1] for name in names])
    if not timed:
        return _parameters(names, start)
    batch = Batch([Asked(c.model, c.cluster, c.placed) for c in timed], "approximate")
    measured = np.log([c.row.step_time_s for c in timed])
    sources, index, counts = np.unique([c.row.source for c in timed], return_inverse=True, return_counts=True)
    weight = np.sqrt(np.median(counts) / counts[index]) / NOISE if len(sources) > 1 else np.full(len(timed), 1 / NOISE)
    shared = len(sources) if offsets and len(sources) > 1 else 0

    def residuals(x: Floats) -> Floats:
        level = RunLevelSet(parameters=_parameters(names, x[: len(names)]), sigma_log=0.0, devices=(), source="fit")
        found = np.log(batch(level).step_time_s) - measured
        shift = x[len(names) :][index] if shared else 0.0
        error = (found + shift) * weight
        robust = np.sign(error) * np.sqrt(2 * ROBUST**2 * (np.sqrt(1 + (error / ROBUST) ** 2) - 1))
        return np.concatenate([robust, (x[: len(names)] - start) / width, x[len(names) :] / OFFSET])

    found = least_squares(
        residuals, np.concatenate([start, np.zeros(shared)]), method="trf", diff_step=[1e-4], max_nfev=40
    )
    return _parameters(names, found.x[: len(names)])


LIMITS: Mapping[str, tuple[float, float]] = {
    "gemm_slowdown": (0.2, 5.0),
    "attention_slowdown": (0.1, 10.0),
    "memory_bound_slowdown": (0.1, 10.0),
    "collective_slowdown": (0.1, 10.0),
    "inter_slowdown": (0.1, 20.0),
    "overlap_slowdown": (0.0, 1.0),
    "unfused_compiled": (0.1, 1.0),
    "low_precision_slowdown": (0.5, 10.0),
    "host_s_per_launch": (0.0, 1e-3),
    "misaligned_slowdown": (1.0, 50.0),
    "step_overhead_s": (0.0, 10.0),
    "straggler": (0.0, 0.2),
}


def _parameters(names: Sequence[str], logs: Floats) -> RunLevel:
    values = {n: min(max(exp(v), LIMITS[n][0]), LIMITS[n][1]) for n, v in zip(names, logs, strict=True)}
    return RunLevel(**values)
