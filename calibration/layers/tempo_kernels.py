"""Kernels of Tempo's layers (arXiv 2210.10246), each one pass over memory: C on the host, Triton on a GPU."""

import ctypes
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from calibration.layers.emit_tempo import source
from calibration.layers.gelu_table import entries
from calibration.layers.pieces import TorchKernels
from calibration.taskmap.native import compiler, library
from calibration.taskmap.triton_kernel import make_ready

REALS: dict[torch.dtype, tuple[str, Any]] = {
    torch.float32: ("float", ctypes.c_float),
    torch.float64: ("double", ctypes.c_double),
}
BY_TRITON = (torch.float32, torch.float16, torch.bfloat16)


class Kernels(Protocol):
    """What the layers run beside matrix products; all tensors are contiguous."""

    def gelu(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return GELU of x, and where x is right of its minimum [bool], both of its shape."""

    def gelu_backward(self, y: Tensor, right: Tensor, dy: Tensor) -> Tensor:
        """Return dy times the derivative at output y, of their shape."""

    def norm_backward(self, kept: Tensor, rstd: Tensor, vectors: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of x [rows, columns], and the sums of those of gamma and beta [2, columns].

        The normalised input is (kept - shift) * inverse. kept, dy: [rows, columns]; rstd: [rows]; vectors: gamma,
        shift, inverse, [columns] each, like the sums of fp32 or wider.
        """

    def core_backward(self, shares: Tensor, kept: Tensor, scale: float, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the scores and the dropout's output, [rows, columns].

        shares: softmax's output; kept: dropout's mask [bool], scale: what it multiplies by; d: gradient of its output,
        written over.
        """


@dataclass(frozen=True)
class HostKernels:
    """Kernels in C, of fp32 or fp64, on as many threads as torch's."""

    def gelu(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return GELU of x, and where x is right of its minimum."""
        y, right = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
        _call("gelu", x.dtype, x.numel(), x, y, right)
        return y, right

    def gelu_backward(self, y: Tensor, right: Tensor, dy: Tensor) -> Tensor:
        """Return dy times the derivative at output y."""
        dx = torch.empty_like(y)
        _call("gelu_backward", y.dtype, y.numel(), entries(y.dtype, y.device), y, right, dy, dx)
        return dx

    def norm_backward(self, kept: Tensor, rstd: Tensor, vectors: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of x, and the sums of those of gamma and beta."""
        dx, sums = torch.empty_like(kept), kept.new_zeros(torch.get_num_threads(), 2, kept.shape[1])
        _call("norm_backward", kept.dtype, *kept.shape, kept, rstd, *vectors, dy, dx, sums)
        return dx, sums.sum(0)

    def core_backward(self, shares: Tensor, kept: Tensor, scale: float, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the scores and the dropout's output."""
        dropped = torch.empty_like(shares)
        _call("core_backward", shares.dtype, *shares.shape, scale, shares, kept, d, dropped)
        return d, dropped


def _call(name: str, dtype: torch.dtype, *given: int | float | Tensor) -> None:
    """Call a function of the compiled file: sizes, a factor, arrays, and the number of threads."""
    arguments = (_argument(each, dtype) for each in given)
    getattr(_compiled(dtype), name)(*arguments, ctypes.c_int(torch.get_num_threads()))


def _argument(given: int | float | Tensor, dtype: torch.dtype) -> Any:
    if isinstance(given, Tensor):
        return ctypes.c_void_p(given.data_ptr())
    return ctypes.c_long(given) if isinstance(given, int) else REALS[dtype][1](given)


@cache
def _compiled(dtype: torch.dtype) -> Any:
    return library(source(REALS[dtype][0]))


@dataclass(frozen=True)
class TritonKernels:
    """Kernels in Triton, of fp32, fp16 or bf16, computed in fp32; interpreted where there is no CUDA."""

    def gelu(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return GELU of x, and where x is right of its minimum."""
        y, right = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
        if x.numel():
            _triton().launch_gelu(x, y, right)
        return y, right

    def gelu_backward(self, y: Tensor, right: Tensor, dy: Tensor) -> Tensor:
        """Return dy times the derivative at output y."""
        dx = torch.empty_like(y)
        if y.numel():
            _triton().launch_gelu_backward(y, right, dy, dx)
        return dx

    def norm_backward(self, kept: Tensor, rstd: Tensor, vectors: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of x, and the sums of those of gamma and beta."""
        dx = torch.empty_like(kept)
        if not kept.numel():
            return dx, vectors[0].new_zeros(2, kept.shape[1])
        return dx, _triton().launch_norm_backward(kept, rstd, vectors, dy, dx)

    def core_backward(self, shares: Tensor, kept: Tensor, scale: float, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the scores and the dropout's output."""
        dropped = torch.empty_like(shares)
        if shares.numel():
            _triton().launch_core_backward(shares, kept, scale, d, dropped)
        return d, dropped


@cache
def _triton() -> Any:
    make_ready()
    return import_module("calibration.layers.triton_tempo")


@cache
def _has_compiler() -> bool:
    return compiler() is not None


def kernels(x: Tensor) -> Kernels:
    """Return the kernels for tensors like x.

    In pieces (`TorchKernels`): 16-bit numbers on the host, fp64 on a GPU, a host without a C compiler, other devices,
    and tensors that only stand for others (of a trace, or split over ranks).
    """
    plain = type(x) in (Tensor, nn.Parameter)
    if plain and x.device.type == "cpu" and x.dtype in REALS and _has_compiler():
        return HostKernels()
    if plain and x.device.type == "cuda" and x.dtype in BY_TRITON:
        return TritonKernels()
    return TorchKernels()
