"""Fits of the kernel families of one device, with the terms that its samples can and cannot identify."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from calibration.fit import Fit, Free, Parameters, cross_validate, folds, rms_log_error_of_sums
from calibration.samples import Floats, Samples

GEMM_DIRECTIONS = ("forward", "dgrad", "wgrad")
LAUNCH_FLOOR_S = 2e-6
"""Floor of GEMM and attention kernels: assumed, after comparing 0.5, 2, 4, 8 and 15 us in cross-validation on the same
samples. A100 GEMMs hardly tell them apart (3.9 - 4.1 %); on B200 0.5 and 2 us are best (10.6 %), 15 us is worse (14 %).
The 16 us of the vector samples (all over 100 MB) therefore do not hold for GEMMs."""

RATE = Free(3e14, 1e13, 1e16)
BANDWIDTH = Free(1e12, 1e10, 2e13)
HALF = Free(100.0, 1e-2, 1e4)
HALF_ROWS = Free(1e4, 1.0, 1e7)
KNEES = (1.0, 1.5, 2.0, 4.0)
"""Candidate values of p, which large GEMMs cannot identify continuously."""

CLEARLY_BETTER = 0.99
"""A variant with more parameters is taken only if it lowers the cross-validated error below this share."""


@dataclass(frozen=True)
class Gemms:
    """The three GEMM fits of a device; `sums_sigma_log` is the RMS log error of sums of 12 held-out GEMMs."""

    fits: Mapping[str, Fit]
    mape: float
    median: float
    p90: float
    sums_sigma_log: float
    note: str


def fit_gemms(samples: Mapping[str, Samples], bandwidth: float, bandwidth_note: str) -> Gemms:
    """Fit the rate of each direction; p and saturations as cross-validation over all directions prefers.

    `bandwidth` in bytes/s is given: GEMMs of high intensity cannot identify it.
    """
    best: Gemms | None = None
    for saturating in (False, True):
        for p in KNEES:
            found = _gemms(samples, {"bandwidth": bandwidth, "t0": LAUNCH_FLOOR_S, "p": p}, saturating)
            if best is None or found.mape < CLEARLY_BETTER * best.mape:
                best = replace(found, note=_gemm_note(p, saturating, bandwidth_note))
    assert best is not None
    return best


def _gemm_note(p: float, saturating: bool, bandwidth_note: str) -> str:
    kept = "kept" if saturating else "zero: they did not lower the cross-validated error"
    return (
        f"fixed: bandwidth ({bandwidth_note}), t0 {LAUNCH_FLOOR_S * 1e6:g} us (assumed, chosen with these samples), "
        f"p = {p:g} (best of {', '.join(f'{k:g}' for k in KNEES)} in cross-validation), as samples of >= 410 "
        f"FLOP/byte identify none of them; m0, n0, k0 {kept}"
    )


def _gemms(samples: Mapping[str, Samples], fixed: Parameters, saturating: bool) -> Gemms:
    sizes = ("m0", "n0", "k0")
    free = {"rate": RATE} | (dict.fromkeys(sizes, HALF) if saturating else {})
    held = {**fixed} if saturating else {**fixed, **dict.fromkeys(sizes, 0.0)}
    # One fold per family over all directions: a layer's three GEMMs are held out together.
    everything = folds([f for d in GEMM_DIRECTIONS for f in samples[d].family])
    parts = np.split(everything, np.cumsum([len(samples[d]) for d in GEMM_DIRECTIONS])[:-1])
    fits = {
        d: cross_validate("gemm-pnorm", samples[d], free, held, part)
        for d, part in zip(GEMM_DIRECTIONS, parts, strict=True)
    }
    predicted, measured = joined(fits, samples)
    error = 100 * np.abs(predicted / measured - 1)
    return Gemms(
        fits,
        float(error.mean()),
        float(np.median(error)),
        float(np.quantile(error, 0.9)),
        rms_log_error_of_sums(predicted, measured),
        "",
    )


def joined(fits: Mapping[str, Fit], samples: Mapping[str, Samples]) -> tuple[Floats, Floats]:
    """Return held-out predictions and measurements of all directions."""
    predicted = np.concatenate([fits[d].predicted for d in GEMM_DIRECTIONS])
    return predicted, np.concatenate([samples[d].seconds for d in GEMM_DIRECTIONS])


def fit_attention(samples: Samples, fixed: Parameters) -> Fit:
    """Fit `rate` and whichever of s0 (tokens) and r0 (rows) is not fixed."""
    half = {"s0": HALF, "r0": HALF_ROWS}
    free = {"rate": RATE} | {name: value for name, value in half.items() if name not in fixed}
    return cross_validate("attention-saturating", samples, free, {"t0": LAUNCH_FLOOR_S, **fixed})


VECTOR_FLOOR_S = 5e-6
"""Floor of memory-bound kernels: assumed. A free floor comes out at 11 - 16 us and lowers the cross-validated error
from 1.9 to 0.6 % on A100, but all samples move over 100 MB: it says nothing about the kernels of a small layer."""


def fit_elementwise(samples: Samples) -> Fit:
    """Fit the bandwidth of element-wise kernels."""
    return cross_validate("memory-bound", samples, {"bandwidth": BANDWIDTH}, {"t0": VECTOR_FLOOR_S})


def fit_row_wise(samples: Samples, floor_s: float) -> Fit:
    """Fit bandwidth, and the row-length term where cross-validation prefers it; the floor is given."""
    plain = cross_validate("row-wise", samples, {"bandwidth": BANDWIDTH}, {"t0": floor_s, "c0": 0.0})
    rows = cross_validate("row-wise", samples, {"bandwidth": BANDWIDTH, "c0": HALF}, {"t0": floor_s})
    return rows if rows.scores.mape < CLEARLY_BETTER * plain.scores.mape else plain
