"""Kernels in Triton, called on torch tensors: compiled where there is CUDA, interpreted elsewhere."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibration.taskmap.contraction import Sizes
from calibration.taskmap.emit_triton import Precision, held, options, source
from calibration.taskmap.native import folder
from calibration.taskmap.program import Array, Program
from sim.specs.fields import InputError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BOTH: tuple[Array, Array] = ("a", "b")
ALIGNED = 16
"""Bytes (CUDA driver API, `cuTensorMapEncodeTiled`: globalAddress and globalStrides)."""


@dataclass(frozen=True)
class TritonKernel:
    """A program that Triton runs; calls take contiguous tensors on one device, all of one of `DTYPES`."""

    program: Program
    function: Any
    precision: Precision = "ieee"

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor, sizes: Sizes, vectors: Mapping[str, Tensor] | None = None
    ) -> None:
        """Compute c [rows x columns elements] from a and b; vectors: the epilogue's inputs by name.

        What the copy engine cannot take (rows that do not begin at multiples of `ALIGNED`), the workers copy.

        Raises:
            InputError: a tensor is not contiguous, or of another dtype.
        """
        names = [f.vector for f in self.program.epilogue if f.vector]
        given = {"a": a, "b": b, "c": c, **{name: (vectors or {})[name] for name in names}}
        for name, tensor in given.items():
            _check(name, tensor, a.dtype)
        if a.dtype == torch.bfloat16 and not a.is_cuda:
            # Triton's interpreter multiplies the bits of bf16 as whole numbers; in fp32 the products are the same.
            given |= {"a": a.float(), "b": b.float()}
        rows, columns, depth = self.program.contraction.extents(sizes)
        high, wide, deep = self.program.block
        if self.program.bulk:
            if not all(_bulk(self.program, array, given[array], sizes) for array in BOTH):
                compiled(replace(self.program, bulk=False), self.precision)(a, b, c, sizes, vectors)
                return
            given |= {array: described(self.program, array, given[array], sizes) for array in BOTH}
        launch = self.function[(ceil(rows / high) * ceil(columns / wide),)]
        numbers = [int(sizes[n]) for n in self.program.contraction.sizes]
        launch(*given.values(), *numbers, whole=depth % deep == 0, **options(self.program))


def described(program: Program, array: Array, tensor: Tensor, sizes: Sizes) -> Any:
    """Return what tells the copy engine of A's or B's matrix and its tiles."""
    shape, tile = held(program, array, sizes)
    made = import_module("triton.tools.tensor_descriptor")
    return made.TensorDescriptor(tensor, [int(n) for n in shape], [int(shape[1]), 1], list(tile))


def _bulk(program: Program, array: Array, tensor: Tensor, sizes: Sizes) -> bool:
    """Return whether the copy engine can take an array: every row begins at a multiple of `ALIGNED` bytes."""
    row_bytes = held(program, array, sizes)[0][1] * tensor.element_size()
    return row_bytes % ALIGNED == 0 and tensor.data_ptr() % ALIGNED == 0


def _check(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype not in DTYPES or tensor.dtype != dtype:
        raise InputError(f"{name}.dtype", tensor.dtype, f"the same for all tensors, of {', '.join(map(str, DTYPES))}")
    if not tensor.is_contiguous():
        raise InputError(f"{name}.stride", tensor.stride(), "that of a contiguous tensor")


def compiled(program: Program, precision: Precision = "ieee") -> TritonKernel:
    """Return the program as a kernel; the same program is compiled once.

    precision: how fp32 is multiplied.

    Raises:
        InputError: Triton is not installed.
        ValueError: Triton has no blocks of these sizes.
    """
    return TritonKernel(program, _function(source(program, precision=precision)), precision)


def make_ready() -> None:
    """See that Triton can be imported, and that it interprets where there is no CUDA.

    Raises:
        InputError: Triton is not installed.
    """
    if not torch.cuda.is_available():
        # Triton looks at it whenever a kernel is made.
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if find_spec("triton") is None:
        raise InputError("triton", "not installed", "the package triton, which the extra dev has on Linux")


@lru_cache(maxsize=512)
def _function(text: str) -> Any:
    """Return the kernel of a source; Triton reads it from a file."""
    make_ready()
    path = Path(folder().name) / f"kernel_{sha256(text.encode()).hexdigest()[:16]}.py"
    path.write_text(text, "utf-8")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel
