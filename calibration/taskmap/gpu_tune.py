"""The best block schedule for given sizes: ranked by their costs, the first few timed as kernels in Triton.

On a GPU by CUDA events over inputs that no cache holds, elsewhere by the wall clock, where Triton interprets.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from multiprocessing import get_context
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibration.instruments import Stopwatch
from calibration.kernels.family import Machine, Work
from calibration.kernels.work import Draw, rotated
from calibration.taskmap.contraction import PRODUCTS, Contraction, Sizes
from calibration.taskmap.emit_triton import Precision, options
from calibration.taskmap.gpu import Gpu
from calibration.taskmap.gpu_cost import START, BlockCosts, fit
from calibration.taskmap.gpu_space import BlockSchedule, block_schedules
from calibration.taskmap.program import Program
from calibration.taskmap.triton_kernel import ALIGNED, BOTH, TritonKernel, compiled, described
from calibration.taskmap.tune import TOP, Chosen, fastest
from calibration.timing import CAPTURED_BELOW_S, Method, timed

PROBES = 12
"""Schedules that costs are learned from, at each of `PROBED`."""
PROBED = ({"m": 4096, "n": 16384, "k": 4096}, {"m": 8192, "n": 4096, "k": 8192})
"""As large as layers of transformers: of an H200's six products of which every schedule was timed, the first ten
by costs learned from the other one of a direction lost 1 % of the best on average, by costs learned from products of
34 and 137 GFLOP 9 %."""
METHODS = {
    "cuda": Method(
        samples=7, statistic="median", sample_s=5e-4, total_s=5e-3, warmups=2, captured_below_s=CAPTURED_BELOW_S
    ),
    "cpu": Method(samples=1, statistic="min", sample_s=0.0, total_s=0.0, warmups=1),
}


@dataclass
class BlockBench:
    """Times schedules of a contraction at given sizes on random arrays; what is timed is remembered.

    dtype: torch's name of the elements' type. machine: where the arrays are; stopwatch: of the same device. precision:
    how fp32 is multiplied.
    """

    contraction: Contraction
    sizes: Sizes
    dtype: str
    machine: Machine
    stopwatch: Stopwatch
    precision: Precision = "ieee"
    held: dict[BlockSchedule, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows, columns, depth = self.contraction.extents(self.sizes)
        draw = Draw(self.machine, self.dtype, seed=0)
        held_bytes = draw.dtype.itemsize * (rows * depth + depth * columns + rows * columns)

        def arrays() -> tuple[Tensor, Tensor, Tensor]:
            c = torch.empty(rows * columns, dtype=draw.dtype, device=draw.device)
            return draw.normal(rows * depth), draw.normal(depth * columns), c

        # Where Triton interprets, caches do not matter.
        self.sets = rotated(self.machine, held_bytes, arrays) if self.machine.kind == "cuda" else [arrays()]

    def __call__(self, schedule: BlockSchedule) -> float:
        """Return the seconds of a call; infinite where the device lacks what Triton wants for the schedule."""
        if schedule not in self.held:
            self.held[schedule] = self.seconds(self.kernel(schedule.program(self.contraction)))
        return self.held[schedule]

    def seconds(self, run: Callable[[Tensor, Tensor, Tensor], Any]) -> float:
        """Return the seconds of a call of a kernel; infinite where the device lacks what Triton wants for it."""
        try:
            return self.timed(run)
        except import_module("triton.runtime.errors").OutOfResources:
            return float(np.inf)

    def kernel(self, program: Program, **vectors: Tensor) -> Callable[[Tensor, Tensor, Tensor], Any]:
        """Return a program as a function of a, b and c at these sizes; vectors: the epilogue's inputs."""
        made = compiled(program, self.precision)
        return lambda a, b, c: made(a, b, c, self.sizes, vectors)

    def timed(self, run: Callable[[Tensor, Tensor, Tensor], Any]) -> float:
        """Return the seconds of a call of any function of a, b and c, flat."""
        return timed(Work(run, self.sets, lambda: 0.0, 0.0), METHODS[self.machine.kind], self.stopwatch).t_s


def compile_ahead(contraction: Contraction, dtype: str, every: Sequence[BlockSchedule], processes: int) -> int:
    """Compile the kernels of all schedules in so many processes, into Triton's cache on disk; return how many compiled.

    Compiling takes a second each, a hundred times as long as timing. Sizes are taken for multiples of 16, as those of
    networks are: other sizes are compiled when they come.
    """
    jobs = [(contraction.name, dtype, schedule) for schedule in every]
    return sum(_pool(processes).map(_compile, jobs))


@lru_cache(maxsize=1)
def _pool(processes: int) -> ProcessPoolExecutor:
    """Return processes that stay: each takes seconds to import torch."""
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def _compile(job: tuple[str, str, BlockSchedule]) -> bool:
    """Compile one kernel without running it; what a device lacks shows when it is timed."""
    name, dtype, schedule = job
    program, of = schedule.program(PRODUCTS[name]), getattr(torch, dtype)
    try:
        kernel = compiled(program).function
        given: list[Any] = [of, of]
        if program.bulk:
            some = torch.empty(ALIGNED, dtype=of)
            given = [described(program, array, some, dict.fromkeys(program.contraction.sizes, 4096)) for array in BOTH]
        kernel.warmup(*given, of, *[4096] * 3, whole=True, grid=(1,), **options(program))
    except Exception:  # whatever it is is told where the kernel is called
        return False
    return True


def probes(every: Sequence[BlockSchedule], seed: int) -> list[BlockSchedule]:
    """Return the schedules, at random, that costs are learned from on bench number `seed`."""
    return Random(seed).sample(every, min(PROBES, len(every)))


def learned(start: BlockCosts, benches: Sequence[BlockBench], every: Sequence[BlockSchedule]) -> BlockCosts:
    """Return costs fitted to probes of `every` on each of some benches."""
    found = []
    for seed, bench in enumerate(benches):
        some = ((schedule, bench(schedule)) for schedule in probes(every, seed))
        found += [(schedule, bench.sizes, seconds) for schedule, seconds in some if np.isfinite(seconds)]
    return fit(start, found)


def ranked(costs: BlockCosts, sizes: Sizes, every: Sequence[BlockSchedule]) -> list[BlockSchedule]:
    """Return schedules by their predicted seconds, the fastest first."""
    return [every[i] for i in np.argsort(costs.seconds(every, sizes), kind="stable")]


def tune(costs: BlockCosts, bench: BlockBench, every: Sequence[BlockSchedule], top: int = TOP) -> Chosen[BlockSchedule]:
    """Return the fastest of the `top` schedules that the costs rank first."""
    return fastest(ranked(costs, bench.sizes, every)[:top], bench)


@dataclass
class BlockLibrary:
    """Tuned kernels of a GPU; what is learned and chosen is kept as long as it lives.

    top: how many schedules are timed for each size; 1: none, nor are costs learned, as where Triton interprets.
    """

    machine: Machine
    stopwatch: Stopwatch
    gpu: Gpu
    top: int
    costs: dict[tuple[str, str], BlockCosts] = field(default_factory=dict)
    chosen: dict[tuple[str, str, tuple[int, ...]], BlockSchedule] = field(default_factory=dict)

    def kernel(self, contraction: Contraction, sizes: Sizes, dtype: str) -> TritonKernel:
        """Return the kernel of a product at some sizes, tuned for them."""
        key = contraction.name, dtype, tuple(sizes.values())
        every = block_schedules(self.gpu, getattr(torch, dtype).itemsize)
        if key not in self.chosen:
            costs = self._costs(contraction, dtype, every)
            first = ranked(costs, sizes, every)[: self.top]
            found = fastest(first, self._bench(contraction, sizes, dtype)).schedule if self.top > 1 else first[0]
            self.chosen[key] = found
        return compiled(self.chosen[key].program(contraction))

    def _bench(self, contraction: Contraction, sizes: Sizes, dtype: str) -> BlockBench:
        return BlockBench(contraction, sizes, dtype, self.machine, self.stopwatch)

    def _costs(self, contraction: Contraction, dtype: str, every: Sequence[BlockSchedule]) -> BlockCosts:
        if (contraction.name, dtype) not in self.costs:
            known = BlockCosts(contraction, self.gpu, getattr(torch, dtype).itemsize, START)
            if self.top > 1:
                known = learned(known, [self._bench(contraction, size, dtype) for size in PROBED], every)
            self.costs[contraction.name, dtype] = known
        return self.costs[contraction.name, dtype]
