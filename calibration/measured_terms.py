"""What is tried for each form on measured samples: all of its parameters are free, as small kernels are among them."""

from collections.abc import Mapping

import numpy as np

from calibration.fit import Free
from calibration.samples import Samples
from calibration.variants import Term, together
from sim.costs.kernels import gemm_bytes
from sim.costs.profile import Fingerprint

HALF = Free(50.0, 1e-3, 1e5)
ROWS = Free(1e3, 1e-2, 1e8)
KNEE = Free(2.0, 1.0, 20.0)
SHARE = Free(0.5, 1e-3, 1.0)
SIZES = ("m0", "n0", "k0")
CUDA_TILES = ((64, 64), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256))
CPU_TILES = ((8, 16), (16, 16), (32, 32), (64, 64))
"""Results of one tile: those of cuBLAS's kernels; of a CPU those of registers and of the blocks around them."""


def base_term(form: str, parts: Mapping[str, Samples]) -> Term:
    """Return the parameters that every fit of `form` has, started at the highest rates among the samples."""
    seconds = np.concatenate([s.seconds for s in parts.values()])
    floor = Free(float(seconds.min()) / 2, 1e-9, 1e-1)
    speed = float(np.max(np.concatenate([s.size for s in parts.values()]) / seconds))
    fast = Free(speed, speed / 1e3, 10 * speed)
    if form == "gemm-pnorm":
        moved = np.concatenate([np.asarray(_bytes(s)) for s in parts.values()]) / seconds
        wide = Free(float(moved.max()), float(moved.max()) / 1e3, 100 * float(moved.max()))
        fixed = {"p": 1.0, **dict.fromkeys(SIZES, 0.0)}
        return Term("rate, bandwidth, t0", {"rate": fast, "bandwidth": wide, "t0": floor}, fixed)
    if form == "attention-saturating":
        return Term("rate, t0", {"rate": fast, "t0": floor}, {"s0": 0.0, "r0": 0.0})
    rows = {"c0": 0.0} if form == "row-wise" else {}
    return Term("bandwidth, t0", {"bandwidth": fast, "t0": floor}, rows)


def _bytes(samples: Samples) -> object:
    x = samples.inputs
    return gemm_bytes(x["m"], x["n"], x["k"], x["batch"], element=x.get("element", 2.0))


def terms(form: str, fingerprint: Fingerprint) -> list[list[Term]]:
    """Return the groups of alternatives to try on top, as `calibration.variants.choose` takes them."""
    gpu = "cuda" in fingerprint.versions
    if form == "gemm-pnorm":
        knee, sizes = Term("free p", {"p": KNEE}), Term("m0, n0, k0", dict.fromkeys(SIZES, HALF))
        units = float(max(1, fingerprint.cores if gpu else fingerprint.threads))
        waves = [
            Term(f"waves of {m}x{n}", {"waves": SHARE}, {"tile_m": float(m), "tile_n": float(n), "units": units})
            for m, n in (CUDA_TILES if gpu else CPU_TILES)
        ]
        boost = [Term("boost", {"boost": Free(0.3, 1e-3, 2.0), "boost_flop": Free(1e11, 1e6, 1e15)})] if gpu else []
        return [[knee, together(knee, sizes)], waves, boost]
    if form == "attention-saturating":
        s0, r0 = Term("s0", {"s0": HALF}), Term("r0", {"r0": ROWS})
        return [[s0, r0, together(s0, r0)]]
    if form == "row-wise":
        spill = [
            Term(f"spill from {start:g}", {"spill": Free(0.5, 1e-3, 5.0), "c1": Free(start, 16.0, 1e6)})
            for start in (1e3, 3e3, 1.2e4)
        ]
        return [[CACHED], [Term("c0", {"c0": HALF})], spill]
    return [[CACHED]]


CACHED = Term("cached", {"cached": Free(0.5, 1e-3, 0.98), "b1": Free(4e6, 1e4, 1e10)})
