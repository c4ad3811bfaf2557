"""Products by kernels of task mappings, as the sampler calls them."""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from calibration.cuda import Cuda
from calibration.host import HostStopwatch
from calibration.kernels.family import Case, Machine
from calibration.taskmap.contraction import PRODUCTS
from calibration.taskmap.gpu import of_catalog, of_properties
from calibration.taskmap.gpu_tune import BlockLibrary
from calibration.taskmap.library import Library

TIMED = 4
"""Schedules timed for each size on a GPU, where compiling one takes longer than timing it."""


@lru_cache(maxsize=4)
def library(threads: int) -> Library:
    """Return this process' kernels for so many threads."""
    return Library(threads=threads)


@lru_cache(maxsize=2)
def block_library(kind: str) -> BlockLibrary:
    """Return the kernels of this process' GPU; without one those that Triton interprets."""
    if kind == "cuda":
        cuda = Cuda()
        return BlockLibrary(Machine("cuda", cuda.memory_bytes), cuda, of_properties(cuda.properties), TIMED)
    return BlockLibrary(Machine("cpu", 2**30), HostStopwatch(), of_catalog("h100-sxm-80gb"), 1)


def tuned_product(case: Case, machine: Machine) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the tuned kernel of a case as a function of its operands a[m, k] and b[k, n], views as `Gemm` has them.

    In C for fp32 on a processor, else in Triton.
    """
    sizes = {name: int(case.shape[name]) for name in "mnk"}
    contraction, shape = PRODUCTS[case.direction], (sizes["m"], sizes["n"])
    if machine.kind == "cpu" and case.dtype == "float32":
        kernel = library(machine.threads).kernel(contraction, sizes)

        def run(a: Tensor, b: Tensor) -> Tensor:
            c = torch.empty(shape)
            kernel.launch((a.data_ptr(), b.data_ptr(), c.data_ptr()), sizes, machine.threads)
            return c

        return run
    block = block_library(machine.kind).kernel(contraction, sizes, case.dtype)

    def run_block(a: Tensor, b: Tensor) -> Tensor:
        c = torch.empty(shape, dtype=a.dtype, device=a.device)
        as_held = [x if x.is_contiguous() else x.mT for x in (a, b)]
        block(as_held[0], as_held[1], c, sizes)
        return c

    return run_block
