"""The point-wise part of recurrent cells in Triton: a kernel forward and a kernel backward for LSTMs and for GRUs.

Every program works on a block of a step's numbers, row by row as they lie. Computed in fp32, kept in the dtype of the
arrays.
"""

from math import ceil
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256
"""Numbers of a step that one program works on."""


@triton.jit
def _sigmoid(x: tl.tensor) -> Any:
    # Triton's own is no kernel of the interpreter where something has imported Triton before.
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _squashed(x: tl.tensor) -> Any:
    return 2 * _sigmoid(2 * x) - 1


@triton.jit
def _read(pointer: tl.tensor, there: tl.tensor) -> Any:
    return tl.load(pointer, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _places(outer: tl.tensor, inner: tl.tensor, block: tl.constexpr) -> Any:
    """Return which of a program's numbers there are, their rows and their columns."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    return at < outer * inner, (at // inner).to(tl.int64), at % inner


@triton.jit
def lstm_forward(
    outer: tl.tensor,
    inner: tl.tensor,
    gate: tl.tensor,
    gate_row: tl.tensor,
    state_row: tl.tensor,
    gates: tl.tensor,
    previous: tl.tensor,
    cell: tl.tensor,
    state: tl.tensor,
    peephole: tl.tensor,
    sees: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Gates of the sums of products in their place, the cell and the state after a step."""
    there, row, column = _places(outer, inner, block)
    slot, here = gates + row * gate_row + column, row * state_row + column
    i, f = _read(slot, there), _read(slot + gate, there)
    g, o = _squashed(_read(slot + 2 * gate, there)), _read(slot + 3 * gate, there)
    old = _read(previous + here, there)
    unit = row if columns else column
    hidden = outer if columns else inner
    if sees:
        i += old * _read(peephole + unit, there)
        f += old * _read(peephole + hidden + unit, there)
    i, f = _sigmoid(i), _sigmoid(f)
    now = f * old + i * g
    if sees:
        o += now * _read(peephole + 2 * hidden + unit, there)
    o = _sigmoid(o)
    tl.store(slot, i, mask=there)
    tl.store(slot + gate, f, mask=there)
    tl.store(slot + 2 * gate, g, mask=there)
    tl.store(slot + 3 * gate, o, mask=there)
    tl.store(cell + here, now, mask=there)
    tl.store(state + here, o * _squashed(now), mask=there)


@triton.jit
def lstm_backward(
    outer: tl.tensor,
    inner: tl.tensor,
    gate: tl.tensor,
    gate_row: tl.tensor,
    state_row: tl.tensor,
    output_row: tl.tensor,
    carry_row: tl.tensor,
    gates: tl.tensor,
    previous: tl.tensor,
    cell: tl.tensor,
    peephole: tl.tensor,
    d_output: tl.tensor,
    d_state: tl.tensor,
    d_cell: tl.tensor,
    d_gates: tl.tensor,
    sees: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Gradients of the sums of products, and of the cell before the step in the place of that after it."""
    there, row, column = _places(outer, inner, block)
    slot, here, carry = row * gate_row + column, row * state_row + column, row * carry_row + column
    i, f = _read(gates + slot, there), _read(gates + slot + gate, there)
    g, o = _read(gates + slot + 2 * gate, there), _read(gates + slot + 3 * gate, there)
    old, flat = _read(previous + here, there), _squashed(_read(cell + here, there))
    unit = row if columns else column
    hidden = outer if columns else inner
    d = _read(d_output + row * output_row + column, there) + _read(d_state + carry, there)
    d_o = d * flat * o * (1 - o)
    d_c = _read(d_cell + carry, there) + d * o * (1 - flat * flat)
    if sees:
        d_c += d_o * _read(peephole + 2 * hidden + unit, there)
    d_i, d_f = d_c * g * i * (1 - i), d_c * old * f * (1 - f)
    before = d_c * f
    if sees:
        before += d_i * _read(peephole + unit, there) + d_f * _read(peephole + hidden + unit, there)
    tl.store(d_gates + slot, d_i, mask=there)
    tl.store(d_gates + slot + gate, d_f, mask=there)
    tl.store(d_gates + slot + 2 * gate, d_c * i * (1 - g * g), mask=there)
    tl.store(d_gates + slot + 3 * gate, d_o, mask=there)
    tl.store(d_cell + carry, before, mask=there)


@triton.jit
def gru_forward(
    outer: tl.tensor,
    inner: tl.tensor,
    gate: tl.tensor,
    gate_row: tl.tensor,
    state_row: tl.tensor,
    gates: tl.tensor,
    previous: tl.tensor,
    cell: tl.tensor,
    state: tl.tensor,
    peephole: tl.tensor,
    sees: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Gates n, r and z in the place of sums of products, and the state after a step."""
    there, row, column = _places(outer, inner, block)
    slot, here = gates + row * gate_row + column, row * state_row + column
    r, z = _sigmoid(_read(slot + gate, there)), _sigmoid(_read(slot + 2 * gate, there))
    n = _squashed(_read(slot, there) + r * _read(slot + 3 * gate, there))
    tl.store(slot, n, mask=there)
    tl.store(slot + gate, r, mask=there)
    tl.store(slot + 2 * gate, z, mask=there)
    tl.store(state + here, n + z * (_read(previous + here, there) - n), mask=there)


@triton.jit
def gru_backward(
    outer: tl.tensor,
    inner: tl.tensor,
    gate: tl.tensor,
    gate_row: tl.tensor,
    state_row: tl.tensor,
    output_row: tl.tensor,
    carry_row: tl.tensor,
    gates: tl.tensor,
    previous: tl.tensor,
    cell: tl.tensor,
    peephole: tl.tensor,
    d_output: tl.tensor,
    d_state: tl.tensor,
    d_cell: tl.tensor,
    d_gates: tl.tensor,
    sees: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Gradients of the sums of products, and what of the state's gradient passes by the products in its place."""
    there, row, column = _places(outer, inner, block)
    slot, carry = row * gate_row + column, row * carry_row + column
    n, r = _read(gates + slot, there), _read(gates + slot + gate, there)
    z, of_state = _read(gates + slot + 2 * gate, there), _read(gates + slot + 3 * gate, there)
    old = _read(previous + row * state_row + column, there)
    d = _read(d_output + row * output_row + column, there) + _read(d_state + carry, there)
    d_n = d * (1 - z) * (1 - n * n)
    tl.store(d_gates + slot, d_n, mask=there)
    tl.store(d_gates + slot + gate, d_n * of_state * r * (1 - r), mask=there)
    tl.store(d_gates + slot + 2 * gate, d * (old - n) * z * (1 - z), mask=there)
    tl.store(d_gates + slot + 3 * gate, d_n * r, mask=there)
    tl.store(d_state + carry, d * z, mask=there)


def launch(name: str, sees: bool, columns: bool, numbers: tuple[int, ...], arrays: tuple[Tensor, ...]) -> None:
    """Launch a kernel of this file; numbers and arrays are its arguments in order, `sees` its peepholes."""
    grid = (ceil(numbers[0] * numbers[1] / BLOCK),)
    globals()[name][grid](*numbers, *arrays, sees=sees, columns=columns, block=BLOCK)
