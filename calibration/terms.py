"""Terms that fits try beside their rates, and where the search for each parameter starts and may go."""

from collections.abc import Mapping

import numpy as np

from calibration.fit import Free
from calibration.samples import Floats, Samples
from calibration.variants import Term, together
from sim.costs.kernels import gemm_bytes
from sim.costs.profile import Fingerprint

HALF_SIZE = Free(100.0, 1e-2, 1e4)
ROWS = Free(1e3, 1e-2, 1e8)
KNEE = Free(1.5, 1.0, 20.0)
FLOOR = Free(4e-6, 1e-7, 1e-3)
SHARE = Free(0.5, 0.01, 1.0)
SIZES = ("m0", "n0", "k0")
TILES = ((64, 64), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256))
"""Results of one tile: the sizes that cuBLAS's kernels have."""

CPU_TILES = ((8, 16), (16, 16), (32, 32), (64, 64))
"""Of a CPU: those that registers hold, and the blocks around them."""

KNEE_TERM = Term("free p", {"p": KNEE})
FLOOR_TERM = Term("free t0", {"t0": FLOOR})
SATURATION_TERM = Term("m0, n0, k0", dict.fromkeys(SIZES, HALF_SIZE))
BOOST_TERM = Term("boost", {"boost": Free(0.3, 0.01, 2.0), "boost_flop": Free(1e11, 1e8, 1e15)})
THROTTLED_TERM = Term("throttled", {"throttled": Free(0.1, 0.005, 0.6), "throttled_flop": Free(1e12, 1e9, 1e15)})
SERIAL_TERM = Term(
    "serial",
    {"serial": Free(2e-9, 1e-11, 1e-7), "serial_k": Free(2.5e3, 64.0, 1e6), "serial_hidden": Free(0.1, 1e-3, 1.0)},
)
WRITTEN_TERM = Term("written", {"written": Free(0.3, 1e-3, 3.0)})
COLD_TERM = Term("cold", {"cold": Free(7e-7, 1e-8, 1e-5), "cold_bytes": Free(5e5, 1e3, 1e8)})
IN_TURN_TERM = Term("serial", {"serial": Free(2e-8, 1e-10, 1e-5)})
PADDED_TERM = Term("padded", {"padded": Free(0.5, 0.01, 1.0)})
ATTENDED_AT_ONCE = 128.0
"""Queries of one block of a fused attention kernel (FlashAttention-2, arXiv 2307.08691, section 3.2)."""

ROWS_TERM = Term("c0", {"c0": HALF_SIZE})
SPILL_TERMS = [
    Term(f"spill from {start:g}", {"spill": Free(0.5, 0.01, 5.0), "c1": Free(start, 64.0, 1e6)})
    for start in (3e3, 1.2e4)
]
"""Where the step lies cannot be found from afar: two starts."""

ISSUED_TERM = Term("issued beside", {}, {"hidden": 1.0})
"""An optimizer's floor is what a host takes to issue its kernels, while the first of them run."""

ROW_TERM = Term("row", {"row_serial": Free(1e-9, 1e-12, 1e-6)})
FEW_ROWS_TERM = Term("row & rows", {"row_serial": Free(5e-9, 1e-12, 1e-6), "serial_rows": Free(1e4, 10.0, 1e8)})
COLUMN_TERM = Term("column", {"column_serial": Free(1.5e-9, 1e-12, 1e-7)})
"""Of a GPU's rows: one costs some ns beside others, an element of it that long for the block that works at it."""

CACHE_TERM = Term("cached", {"cached": Free(0.5, 1e-3, 0.98), "b1": Free(4e6, 1e4, 1e10)})


def wave_terms(units: float, tiles: tuple[tuple[int, int], ...] = TILES) -> list[Term]:
    """Return the alternatives of the wave term on `units` multiprocessors or cores."""
    return [
        Term(f"waves of {m}x{n}", {"waves": SHARE}, {"tile_m": float(m), "tile_n": float(n), "units": units})
        for m, n in tiles
    ]


def gemm_terms(units: float, gpu: bool = True, alone: bool = True) -> list[list[Term]]:
    """Return the groups of alternatives that products are tried with, as `calibration.variants.choose` takes them.

    alone: each was timed by itself for so short that the chip may have been faster than in a step; else long ones may
    have been slower.
    """
    sizes = together(KNEE_TERM, SATURATION_TERM)
    waves = wave_terms(units, TILES if gpu else CPU_TILES)
    clock = BOOST_TERM if alone else THROTTLED_TERM
    clocks = [clock, together(clock, SATURATION_TERM), together(clock, SATURATION_TERM, FLOOR_TERM)]
    if alone or not gpu:
        return [
            [KNEE_TERM, sizes, *(together(sizes, wave) for wave in waves)],
            [FLOOR_TERM],
            clocks if gpu else [],
        ]
    serial = [SERIAL_TERM, together(SERIAL_TERM, KNEE_TERM, SATURATION_TERM)]
    return [[KNEE_TERM, sizes], serial, [WRITTEN_TERM], [COLD_TERM], waves, [FLOOR_TERM], clocks]


def base_term(form: str, parts: Mapping[str, Samples]) -> Term:
    """Return the parameters that every fit of measured samples has: small kernels identify the floor and bandwidth.

    They start at the highest rates among the samples.
    """
    seconds = np.concatenate([s.seconds for s in parts.values()])
    floor = Free(float(seconds.min()) / 2, 1e-9, 1e-1)
    fast = _below(np.concatenate([s.size for s in parts.values()]) / seconds)
    if form == "gemm-pnorm":
        wide = _below(np.concatenate([_bytes(s) for s in parts.values()]) / seconds)
        fixed = {"p": 1.0, **dict.fromkeys(SIZES, 0.0)}
        return Term("rate, bandwidth, t0", {"rate": fast, "bandwidth": wide, "t0": floor}, fixed)
    if form == "attention-saturating":
        return Term("rate, t0", {"rate": fast, "t0": floor}, {"s0": 0.0, "r0": 0.0})
    rows = {"c0": 0.0} if form == "row-wise" else {}
    return Term("bandwidth, t0", {"bandwidth": fast, "t0": floor}, rows)


def _below(reached: Floats) -> Free:
    most = float(reached.max())
    return Free(most, most / 1e3, 100 * most)


def _bytes(samples: Samples) -> Floats:
    x = samples.inputs
    moved = gemm_bytes(x["m"], x["n"], x["k"], x["batch"], element=x.get("element", 2.0))
    return np.asarray(moved, dtype=np.float64)


def measured_terms(form: str, parts: Mapping[str, Samples], fingerprint: Fingerprint) -> list[list[Term]]:
    """Return the groups of alternatives for measured samples of a device."""
    gpu = "cuda" in fingerprint.versions
    if form == "gemm-pnorm":
        # Samples of a session follow each other for longer than a chip takes to slow down.
        return gemm_terms(float(max(1, fingerprint.cores if gpu else fingerprint.threads)), gpu, alone=False)
    if form == "attention-saturating":
        s0, r0 = Term("s0", {"s0": HALF_SIZE}), Term("r0", {"r0": ROWS})
        d0 = Term("d0", {"d0": HALF_SIZE})
        several = all("head_dim" in s.inputs for s in parts.values())
        one_wave = Term("one wave", {}, {"least": ATTENDED_AT_ONCE * float(fingerprint.cores)})
        tail = together(s0, IN_TURN_TERM)
        ways = [s0, r0, together(s0, r0), *([together(tail, one_wave), tail] if gpu else [])]
        heads = [d0, *([PADDED_TERM, together(d0, PADDED_TERM)] if gpu else [])]
        return [ways, heads if several else []]
    steps = [_inside(CACHE_TERM, "b1", "bytes", parts)]
    if gpu:
        cold = _inside(COLD_TERM, "cold_bytes", "bytes", parts)
        steps += [cold, together(cold, *steps)]
    rows = [ROW_TERM, FEW_ROWS_TERM] if gpu and all("rows" in s.inputs for s in parts.values()) else []
    if form == "row-wise":
        in_turn = [COLUMN_TERM, *rows, *(together(term, COLUMN_TERM) for term in rows)] if rows else []
        return [in_turn, [_inside(term, "c1", "columns", parts) for term in SPILL_TERMS], [ROWS_TERM], steps]
    beside = gpu and all(s.op == "adam" for s in parts.values())
    return [rows, [ISSUED_TERM] if beside else [], steps]


def _inside(term: Term, name: str, of: str, parts: Mapping[str, Samples]) -> Term:
    """Return `term` with the place of its step well inside the samples: one beyond them is noise, or extrapolation."""
    held = np.concatenate([s.inputs[of] for s in parts.values()])
    low, high = 2 * float(held.min()), float(held.max()) / 1.2
    if high <= 1.01 * low:
        low, high = float(held.min()), 1.1 * float(held.max())
    start = min(max(term.free[name].start, 1.001 * low), high / 1.001)
    return Term(term.name, {**term.free, name: Free(start, low, high)}, term.fixed)
