"""What a block schedule costs on a GPU, as an expression of sizes, schedule and GPU: it ranks the space.

A multiprocessor (SM) works on a few blocks at a time. A step of a block takes as long as its products, its reads of
shared memory or its loads, whichever is longest; what of a load's latency neither copies ahead nor other blocks hide
comes on top. Beside all SMs the memory moves what the cache does not hold. Eight numbers of a GPU and contraction are
found from a few measured schedules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from calibration.few import fit_few
from calibration.taskmap.contraction import Contraction, Sizes
from calibration.taskmap.emit_triton import Precision
from calibration.taskmap.gpu import Gpu
from calibration.taskmap.gpu_space import WARP, BlockSchedule
from sim.costs.algebra import Compiled, Expr, ceiling, compile_expressions, maximum, minimum, p_norm, symbol

Floats = NDArray[np.float64]
START = {
    "efficiency": 0.75,
    "latency_s": 6e-7,
    "step_s": 5e-8,
    "copy_s": 6e-9,
    "shared_rate": 2.2e11,
    "cache_rate": 6e10,
    "memory_share": 0.9,
    "launch_s": 5e-6,
}
"""Share of the peak that large products reach; seconds from asking for a tile to having it, of a step's barriers,
and of an instruction by which a warp copies 16 bytes for each of its threads (ten cycles); bytes/s of an SM from shared
memory (128 bytes a cycle at 1.7 GHz) and from the second-level cache (half of 64 bytes a cycle); share of the memory's
peak that is reached; seconds of a launch. About right for GPUs since 2017: a fit begins here."""
MEETING = 4
"""How sharply work of the SMs and traffic of the memory hide each other (norm): where both are long, each adds some."""
FITTED = tuple(START)
COPIED = 16 * WARP * 4
"""Bytes that the four schedulers of an SM each have copied by one instruction."""
SHAPE = ("high", "wide", "deep", "stages", "group", "bulk", "reads_a", "reads_b", "resident")
"""Of a schedule: its block's sides and depth, whether tiles are copied in bulk, how often an element of a tile of A and
of B is read from shared memory, and how many blocks an SM holds."""


def expression() -> Expr:
    """Return the seconds of a kernel (symbols: extents, `SHAPE`, GPU and `FITTED`)."""
    rows, columns, depth, item = (symbol(n) for n in ("rows", "columns", "depth", "item"))
    high, wide, deep, stages, _, bulk, reads_a, reads_b, resident = (symbol(n) for n in SHAPE)
    sms, flop_per_s = symbol("sms"), symbol("flop_per_s")
    efficiency, latency, step, copy, shared_rate, cache_rate, _, launch = (symbol(n) for n in FITTED)
    share = ceiling(ceiling(rows / high) * ceiling(columns / wide) / sms)
    waves, steps = ceiling(share / resident), ceiling(depth / deep)
    products = 2 * high * wide * deep * sms / (flop_per_s * efficiency)
    issuing = (1 - bulk) * copy * deep * item * (high + wide) / COPIED
    computing = maximum(products, deep * item * (high * reads_a + wide * reads_b) / shared_rate) + issuing
    loading = deep * item * (high + wide) / cache_rate
    busy, ahead = maximum(computing, loading), stages - 1
    in_turns = 1 - minimum(ahead, 1)
    waited = in_turns * (latency + loading + computing) + (1 - in_turns) * maximum(busy, latency / maximum(ahead, 1))
    filling = waves * (1 - in_turns) * (latency + loading)  # until the first tiles are there
    storing = share * high * wide * item * sms / _memory_rate()
    working = steps * maximum(share * busy, waves * (waited + step)) + filling + storing
    return launch + p_norm(working, _traffic() / _memory_rate(), MEETING)


def _memory_rate() -> Expr:
    return symbol("memory_bytes_per_s") * symbol("memory_share")


def _traffic() -> Expr:
    """Return the bytes from and to memory: A and B once, and what later blocks of a cache too small read again."""
    rows, columns, depth, item = (symbol(n) for n in ("rows", "columns", "depth", "item"))
    high, wide, group = (symbol(n) for n in ("high", "wide", "group"))
    down, across = ceiling(rows / high), ceiling(columns / wide)
    under_way = minimum(down * across, symbol("sms") * symbol("resident"))
    side = minimum(group, down)
    span = minimum(across, under_way / side)
    once = (rows + columns) * depth * item
    each_time = down * across / under_way * (under_way / span * high + span * wide) * depth * item
    lost = maximum(0, 1 - symbol("l2_bytes") / once)
    return once + lost * maximum(0, each_time - once) + rows * columns * item


@lru_cache(maxsize=1)
def _compiled() -> Compiled:
    return compile_expressions({"seconds": expression()})


def reads(schedule: BlockSchedule, gpu: Gpu) -> tuple[int, int]:
    """Return how often an element of a tile of A and of B is read from shared memory.

    A warp reads what its own part of the block asks for. From 64 rows on, Hopper's units work for four warps and 64
    rows at once, and read B again for the next 64 (wgmma), Blackwell's work for all of the block (tcgen05; both in
    NVIDIA's PTX ISA).
    """
    if gpu.capability < (9, 0) or schedule.rows < 64:
        down, across = schedule.grid
        return across, down
    if gpu.capability >= (10, 0):
        return 1, 1
    groups = max(1, schedule.warps // 4)
    down = schedule.rows // 64
    return groups // min(groups, down), down


@dataclass(frozen=True)
class BlockCosts:
    """A contraction's costs on a GPU, of elements of `item` bytes; `fitted` holds the values of `FITTED`."""

    contraction: Contraction
    gpu: Gpu
    item: int
    fitted: Mapping[str, float]
    precision: Precision = "ieee"

    def seconds(self, schedules: Sequence[BlockSchedule], sizes: Sizes) -> Floats:
        """Return the predicted seconds of every schedule, [n]."""
        g = self.gpu
        rows, columns, depth = self.contraction.extents(sizes)
        each = [
            (s.rows, s.columns, s.depth, s.stages, s.group, s.bulk, *reads(s, g), s.resident(g, self.item))
            for s in schedules
        ]
        values = dict(zip(SHAPE, np.array(each, dtype=float).T, strict=True))
        values |= {"rows": float(rows), "columns": float(columns), "depth": float(depth), "item": float(self.item)}
        values |= {"sms": float(g.sms), "flop_per_s": g.flop_per_s(self.item, self.precision)}
        values |= {"l2_bytes": float(g.l2_bytes), "memory_bytes_per_s": g.memory_bytes_per_s}
        return np.asarray(_compiled()(values | dict(self.fitted))["seconds"], dtype=np.float64)


def fit(start: BlockCosts, measured: Sequence[tuple[BlockSchedule, Sizes, float]]) -> BlockCosts:
    """Return the costs that explain measured seconds best, from those of `start` on."""

    def seconds(fitted: Mapping[str, float]) -> list[float]:
        made = replace(start, fitted=fitted)
        return [made.seconds([schedule], sizes)[0] for schedule, sizes, _ in measured]

    return replace(start, fitted=fit_few(start.fitted, seconds, [taken for _, _, taken in measured])[0])
