"""Fits of the kernel families of one device, with the terms that its samples can and cannot identify."""

from collections.abc import Mapping
from dataclasses import dataclass

from calibration.fit import Fit, Free, Parameters, cross_validate, rms_log_error_of_sums
from calibration.samples import Samples
from calibration.terms import HALF_SIZE, ROWS_TERM, SIZES, SPILL_TERMS, gemm_terms
from calibration.variants import Chosen, Term, choose, joined

GEMM_DIRECTIONS = ("forward", "dgrad", "wgrad")
LAUNCH_FLOOR_S = 2e-6
"""Floor of GEMM and attention kernels where cross-validation prefers no fitted one: assumed. A100 GEMMs hardly tell 0.5
from 15 us; the 16 us of the vector samples (all over 100 MB) do not hold for GEMMs."""

RATE = Free(3e14, 1e13, 1e16)
BANDWIDTH = Free(1e12, 1e10, 2e13)
HALF_ROWS = Free(1e4, 1.0, 1e7)


@dataclass(frozen=True)
class Gemms:
    """The three GEMM fits of a device; `sums_sigma_log` is the RMS log error of sums of 12 held-out GEMMs."""

    fits: Mapping[str, Fit]
    sums_sigma_log: float
    note: str


def fit_gemms(samples: Mapping[str, Samples], bandwidth: float, bandwidth_note: str, units: float) -> Gemms:
    """Fit the rate of each direction, with the further terms that cross-validation over all directions prefers.

    `bandwidth` in bytes/s is given: GEMMs of high intensity cannot identify it. `units`: multiprocessors. The terms
    are shared by the directions: each of them alone has too few samples for all.
    """
    parts = {d: samples[d] for d in GEMM_DIRECTIONS}
    fixed = {"bandwidth": bandwidth, "t0": LAUNCH_FLOOR_S, "p": 1.0, **dict.fromkeys(SIZES, 0.0)}
    found = choose("gemm-pnorm", parts, Term("rates", {"rate": RATE}, fixed), gemm_terms(units), ("rate",))
    floor = "fitted" if "free t0" in " ".join(found.terms) else f"{LAUNCH_FLOOR_S * 1e6:g} us (assumed)"
    text = f"fixed: bandwidth ({bandwidth_note}); t0 {floor}; {found.note}"
    return Gemms(found.fits, rms_log_error_of_sums(*joined(found.fits, parts)), text)


def fit_attention(samples: Samples, fixed: Parameters) -> Fit:
    """Fit `rate` and whichever of s0 (tokens) and r0 (rows) is not fixed."""
    half = {"s0": HALF_SIZE, "r0": HALF_ROWS}
    free = {"rate": RATE} | {name: value for name, value in half.items() if name not in fixed}
    return cross_validate("attention-saturating", samples, free, {"t0": LAUNCH_FLOOR_S, **fixed})


VECTOR_FLOOR_S = 5e-6
"""Floor of memory-bound kernels: assumed. A free floor comes out at 11 - 16 us and lowers the cross-validated error
from 1.9 to 0.6 % on A100, but all samples move over 100 MB: it says nothing about the kernels of a small layer."""


def fit_elementwise(samples: Samples) -> Fit:
    """Fit the bandwidth of element-wise kernels."""
    return cross_validate("memory-bound", samples, {"bandwidth": BANDWIDTH}, {"t0": VECTOR_FLOOR_S})


def fit_row_wise(samples: Samples, floor_s: float) -> Chosen:
    """Fit bandwidth, and the terms of the row length that cross-validation prefers; the floor is given."""
    base = Term("bandwidth", {"bandwidth": BANDWIDTH}, {"t0": floor_s, "c0": 0.0})
    return choose("row-wise", {"": samples}, base, [SPILL_TERMS, [ROWS_TERM]])


def fit_rows(samples: Samples) -> Fit:
    """Fit the bandwidth of a kernel over rows of one length that was timed at a few sizes; the floor is given."""
    return cross_validate("row-wise", samples, {"bandwidth": BANDWIDTH}, {"t0": VECTOR_FLOOR_S, "c0": 0.0})
