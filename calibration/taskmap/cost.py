"""What a schedule costs, as an expression of sizes, schedule and machine: it ranks the space before any is measured.

A core works on one block at a time. Of a tile's depth every register tile takes as many cycles as its products, its
loads or the latency of a sum ask, whichever is most; loading an element of A or B and storing one of C take times of
their own, which differ by contraction (addresses, strides, predicates) and are found from a few measured schedules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from calibration.few import fit_few
from calibration.taskmap.contraction import Contraction, Sizes
from calibration.taskmap.processor import Processor
from calibration.taskmap.space import KernelSchedule
from sim.costs.algebra import Compiled, Expr, ceiling, compile_expressions, maximum, symbol

Floats = NDArray[np.float64]
FITTED = ("cycle_s", "switch_s", "a_s", "b_s", "c_s")
"""Seconds of a cycle; of beginning and ending a register tile's sums, a vector; of loading an element of A and B, and
of storing one of C."""
START = {"cycle_s": 3e-10, "switch_s": 1e-9, "a_s": 1e-9, "b_s": 1e-9, "c_s": 1e-9}
SHAPE = ("tile_rows", "tile_vectors", "high", "wide", "tile_depth", "lanes")


def expression() -> Expr:
    """Return the seconds of a kernel (symbols: extents, `SHAPE`, machine and `FITTED`)."""
    rows, columns, depth, cores = (symbol(n) for n in ("rows", "columns", "depth", "cores"))
    tile_rows, vectors, high, wide, deep, lanes = (symbol(n) for n in SHAPE)
    products, loads, latency = (symbol(n) for n in ("products", "loads", "latency"))
    cycle, switch, a, b, c = (symbol(n) for n in FITTED)
    block_rows, block_columns = high * tile_rows, wide * vectors * lanes
    waves = ceiling(ceiling(rows / block_rows) * ceiling(columns / block_columns) / cores)
    cycles = maximum(tile_rows * vectors / products, (tile_rows + vectors) / loads, latency)
    computing = high * wide * (deep * cycles * cycle + tile_rows * vectors * switch)
    loading = deep * (block_rows * a + block_columns * b)
    return waves * (ceiling(depth / deep) * (computing + loading) + block_rows * block_columns * c)


@lru_cache(maxsize=1)
def _compiled() -> Compiled:
    return compile_expressions({"seconds": expression()})


@dataclass(frozen=True)
class Costs:
    """A contraction's costs on a machine: `fitted` holds the values of `FITTED`; sigma_log: errors of log seconds."""

    contraction: Contraction
    machine: Processor
    fitted: Mapping[str, float]
    sigma_log: float = 0.0

    def seconds(self, schedules: Sequence[KernelSchedule], sizes: Sizes, threads: int = 1) -> Floats:
        """Return the predicted seconds of every schedule, [n]."""
        m = self.machine
        rows, columns, depth = self.contraction.extents(sizes)
        each = [(s.rows, s.vectors, s.high, s.wide, s.depth, s.lanes) for s in schedules]
        values = dict(zip(SHAPE, np.array(each, dtype=float).T, strict=True))
        values |= {"rows": float(rows), "columns": float(columns), "depth": float(depth), "cores": float(threads)}
        values |= {"products": float(m.products), "loads": float(m.loads), "latency": float(m.latency)}
        return np.asarray(_compiled()(values | dict(self.fitted))["seconds"], dtype=np.float64)


def fit(
    contraction: Contraction,
    machine: Processor,
    measured: Sequence[tuple[KernelSchedule, Sizes, float]],
    threads: int = 1,
) -> Costs:
    """Return the costs that explain measured seconds best, from `START` on."""

    def seconds(fitted: Mapping[str, float]) -> list[float]:
        made = Costs(contraction, machine, fitted)
        return [made.seconds([schedule], sizes, threads)[0] for schedule, sizes, _ in measured]

    return Costs(contraction, machine, *fit_few(START, seconds, [taken for _, _, taken in measured]))
