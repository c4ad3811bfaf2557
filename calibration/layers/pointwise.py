"""What lies between two products of a recurrent layer, as one kernel each way: in C on the host, in Triton on a GPU."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from calibration.layers.cells import SLOTS, Cell
from calibration.layers.emit_cell import source
from calibration.taskmap.native import library
from calibration.taskmap.triton_kernel import make_ready
from sim.specs.fields import InputError


@dataclass(frozen=True)
class Step:
    """What a kernel reads and writes of one step, each [outer, inner] in the layer's layout.

    gates: [.., 4 x hidden] with sums of products before a forward, gates after it. previous: the cell before the step,
    or a GRU's state. cell: after it (a GRU's: any tensor). peephole: [3, hidden], or any tensor.
    """

    gates: Tensor
    previous: Tensor
    cell: Tensor
    peephole: Tensor


@dataclass(frozen=True)
class Gradients:
    """What a backward kernel reads and writes beside a `Step`, in the layer's layout.

    output: gradient of the step's state from outside. state: the same from the steps after it; a GRU leaves there what
    passes by the products. cell: of the cell, before and after. gates: of the sums of products, written.
    """

    output: Tensor
    state: Tensor
    cell: Tensor
    gates: Tensor


class Pointwise(Protocol):
    """Kernels of a cell in a layout."""

    def forward(self, step: Step, state: Tensor) -> None:
        """Turn sums of products into gates, and write cell and state."""

    def backward(self, step: Step, gradients: Gradients) -> None:
        """Write the gradients of the sums of products and of what came before the step."""


@dataclass(frozen=True)
class HostKernels:
    """Kernels in C, of fp32 or fp64, on as many threads as torch's."""

    cell: Cell
    columns: bool

    def forward(self, step: Step, state: Tensor) -> None:
        """Turn sums of products into gates, and write cell and state."""
        numbers = _strides(step, state, self.columns)
        arrays = (step.gates, step.previous, step.cell, state, step.peephole)
        self._call(0, numbers, arrays)

    def backward(self, step: Step, gradients: Gradients) -> None:
        """Write the gradients of the sums of products and of what came before the step."""
        g = gradients
        numbers = (*_strides(step, step.previous, self.columns), g.output.stride(0), g.state.stride(0))
        arrays = (step.gates, step.previous, step.cell, step.peephole, g.output, g.state, g.cell, g.gates)
        self._call(1, numbers, arrays)

    def _call(self, way: int, numbers: tuple[int, ...], arrays: tuple[Tensor, ...]) -> None:
        function = _compiled(self.cell, self.columns, arrays[0].dtype)[way]
        function(*numbers, *(each.data_ptr() for each in arrays), torch.get_num_threads())


def _strides(step: Step, state: Tensor, columns: bool) -> tuple[int, ...]:
    """Return outer and inner size, distance of two gates, and of two rows of gates and of states."""
    outer, inner = state.shape
    gate = step.gates.shape[0] // SLOTS * step.gates.stride(0) if columns else inner
    return outer, inner, gate, step.gates.stride(0), state.stride(0)


@cache
def _compiled(cell: Cell, columns: bool, dtype: torch.dtype) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return both kernels; a call takes numbers, addresses and threads."""
    real = {torch.float32: "float", torch.float64: "double"}.get(dtype)
    if real is None:
        raise InputError("dtype", dtype, "torch.float32 or torch.float64 on the host")
    held = library(source(cell, columns, real))
    for function, numbers, arrays in ((held.forward, 5, 5), (held.backward, 7, 8)):
        function.argtypes = [ctypes.c_long] * numbers + [ctypes.c_void_p] * arrays + [ctypes.c_int]
        function.restype = None
    return held.forward, held.backward


@dataclass(frozen=True)
class TritonKernels:
    """Kernels in Triton, of fp32, fp16 or bf16, computed in fp32; interpreted where there is no CUDA."""

    cell: Cell
    columns: bool

    def forward(self, step: Step, state: Tensor) -> None:
        """Turn sums of products into gates, and write cell and state."""
        numbers = _strides(step, state, self.columns)
        self._launch("forward", numbers, (step.gates, step.previous, step.cell, state, step.peephole))

    def backward(self, step: Step, gradients: Gradients) -> None:
        """Write the gradients of the sums of products and of what came before the step."""
        g = gradients
        numbers = (*_strides(step, step.previous, self.columns), g.output.stride(0), g.state.stride(0))
        arrays = (step.gates, step.previous, step.cell, step.peephole, g.output, g.state, g.cell, g.gates)
        self._launch("backward", numbers, arrays)

    def _launch(self, way: str, numbers: tuple[int, ...], arrays: tuple[Tensor, ...]) -> None:
        if arrays[0].dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise InputError("dtype", arrays[0].dtype, "torch.float32, torch.float16 or torch.bfloat16 with Triton")
        _triton().launch(
            f"{'lstm' if self.cell.memory else 'gru'}_{way}", self.cell.peephole, self.columns, numbers, arrays
        )


@cache
def _triton() -> Any:
    make_ready()
    return import_module("calibration.layers.triton_cell")


def kernels(cell: Cell, columns: bool, device: str, language: Literal["c", "triton"] | None = None) -> Pointwise:
    """Return the kernels of a cell in a layout; language: by default C on the host, else Triton."""
    made = HostKernels if (language or ("c" if device == "cpu" else "triton")) == "c" else TritonKernels
    return made(cell, columns)
