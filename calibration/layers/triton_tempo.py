"""Tempo's layers in Triton (arXiv 2210.10246): GELU both ways, LayerNorm and the core of attention backward.

Computed in fp32, kept in the dtype of the arrays. GELU's programs work on a block of numbers each, the core's on a row,
LayerNorm's on every so many rows, over which each keeps its own sums of columns.
"""

from math import ceil
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from calibration.layers.gelu_table import ENTRIES, entries, table

BLOCK = 1024
"""Numbers that a program of GELU works on."""
PROGRAMS = 512
"""Of LayerNorm at most: several on every multiprocessor, and few enough sums."""


@triton.jit
def _read(pointer: tl.tensor, there: tl.tensor) -> Any:
    return tl.load(pointer, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _add(a: tl.tensor, b: tl.tensor) -> Any:
    return a + b


@triton.jit
def _sum(row: tl.tensor) -> Any:
    # Triton's own sum and zeros are no kernels of the interpreter where something has imported Triton before.
    return tl.reduce(row, 0, _add)


@triton.jit
def gelu_forward(
    x: tl.tensor, y: tl.tensor, right: tl.tensor, size: tl.tensor, at: tl.constexpr, block: tl.constexpr
) -> None:
    """Write GELU of a block, and on which side of the minimum its inputs are."""
    j = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    there = j < size
    value = _read(x + j, there)
    tl.store(y + j, 0.5 * value * (1 + tl.erf(value * 0.7071067811865476)), mask=there)
    tl.store(right + j, value >= at, mask=there)


@triton.jit
def gelu_backward(
    y: tl.tensor,
    right: tl.tensor,
    dy: tl.tensor,
    dx: tl.tensor,
    derivatives: tl.tensor,
    size: tl.tensor,
    minimum: tl.constexpr,
    left_step: tl.constexpr,
    right_step: tl.constexpr,
    each: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Write dy times the derivative at outputs y."""
    j = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    there = j < size
    value, side = _read(y + j, there), tl.load(right + j, mask=there, other=0) != 0
    u = tl.sqrt(tl.abs(value - minimum)) * tl.where(side, right_step, left_step)
    u = tl.where(u > each - 1, each - 1.0, u)
    k = tl.where(u >= 0, u, 0.0).to(tl.int32)  # of a NaN any entry
    k = tl.where(k > each - 2, each - 2, k)
    entry = derivatives + tl.where(side, each, 0) + k
    low, high = tl.load(entry), tl.load(entry + 1)
    tl.store(dx + j, _read(dy + j, there) * (low + (u - k) * (high - low)), mask=there)


@triton.jit
def norm_backward(
    kept: tl.tensor,
    rstd: tl.tensor,
    gamma: tl.tensor,
    shift: tl.tensor,
    inverse: tl.tensor,
    dy: tl.tensor,
    dx: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    programs: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Write the gradients of a program's rows, and its sums of the gradients of gamma and beta."""
    j = tl.arange(0, block)
    there = j < columns
    scale, moved, undone = _read(gamma + j, there), _read(shift + j, there), _read(inverse + j, there)
    on_gamma, on_beta = tl.full([block], 0.0, tl.float32), tl.full([block], 0.0, tl.float32)
    row = tl.program_id(0).to(tl.int64) * columns + j
    for r in range(tl.program_id(0), rows, programs):
        d = _read(dy + row, there)
        n, g = (_read(kept + row, there) - moved) * undone, d * scale
        on_gamma += d * n
        on_beta += d
        mean, projected = _sum(g) / columns, _sum(g * n) / columns
        tl.store(dx + row, (g - mean - n * projected) * tl.load(rstd + r).to(tl.float32), mask=there)
        row += programs * columns
    own = sums + 2 * tl.program_id(0).to(tl.int64) * columns + j
    tl.store(own, on_gamma, mask=there)
    tl.store(own + columns, on_beta, mask=there)


@triton.jit
def core_backward(
    shares: tl.tensor,
    kept: tl.tensor,
    d: tl.tensor,
    dropped: tl.tensor,
    scale: tl.tensor,
    columns: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Write a row of the dropout's output, and the gradient of the scores in the place of that of the dropout."""
    j = tl.arange(0, block)
    there = j < columns
    row = tl.program_id(0).to(tl.int64) * columns + j
    s = _read(shares + row, there)
    again = s * scale * tl.load(kept + row, mask=there, other=0).to(tl.float32)
    part = again * _read(d + row, there)
    tl.store(dropped + row, again, mask=there)
    tl.store(d + row, part - s * _sum(part), mask=there)


def launch_gelu(x: Tensor, y: Tensor, right: Tensor) -> None:
    """Write y and right [bool], of the shape of x."""
    gelu_forward[(ceil(x.numel() / BLOCK),)](x, y, right.view(torch.uint8), x.numel(), at=table().at, block=BLOCK)


def launch_gelu_backward(y: Tensor, right: Tensor, dy: Tensor, dx: Tensor) -> None:
    """Write dx, of the shape of y."""
    held = table()
    steps = {"left_step": float(held.steps[0]), "right_step": float(held.steps[1])}
    derivatives, size = entries(torch.float32, y.device), y.numel()
    sides = right.view(torch.uint8)
    gelu_backward[(ceil(size / BLOCK),)](
        y, sides, dy, dx, derivatives, size, minimum=held.minimum, each=ENTRIES, block=BLOCK, **steps
    )


def launch_norm_backward(kept: Tensor, rstd: Tensor, vectors: tuple[Tensor, ...], dy: Tensor, dx: Tensor) -> Tensor:
    """Write dx [rows, columns]; return the sums of the gradients of gamma and beta, [2, columns]."""
    rows, columns = kept.shape
    programs = min(rows, PROGRAMS)
    sums = torch.empty(programs, 2, columns, dtype=torch.float32, device=kept.device)
    block = triton.next_power_of_2(columns)
    norm_backward[(programs,)](kept, rstd, *vectors, dy, dx, sums, rows, columns, programs, block=block)
    return sums.sum(0)


def launch_core_backward(shares: Tensor, kept: Tensor, scale: float, d: Tensor, dropped: Tensor) -> None:
    """Write dropped and, in the place of d, the gradient of the scores, all [rows, columns]."""
    rows, columns = shares.shape
    core_backward[(rows,)](
        shares, kept.view(torch.uint8), d, dropped, scale, columns, block=triton.next_power_of_2(columns)
    )
