"""A recurrent layer over a whole sequence, forward and backward: large products, and one kernel a step between them."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from calibration.layers.cells import PEEPHOLES, SLOTS, Cell, State, Weights
from calibration.layers.layouts import Choice, Layout
from calibration.layers.pointwise import Gradients, Pointwise, Step, kernels

Language = Literal["c", "triton"]


@dataclass(frozen=True)
class How:
    """What runs: the cell, its layout and hoisting, and the language of its kernels (None: by device)."""

    cell: Cell
    choice: Choice
    language: Language | None = None

    @property
    def layout(self) -> Layout:
        """How the sequence lies."""
        return self.choice.layout

    def kernels(self, device: torch.device) -> Pointwise:
        """Return the point-wise kernels for a device."""
        return kernels(self.cell, self.layout.columns, device.type, self.language)


def recurrent(how: How, x: Tensor, held: State, w: Weights) -> tuple[Tensor, Tensor]:
    """Return states [steps, batch, hidden] and the last cell of x [steps, batch, inputs] (a GRU's cell: that given).

    Both are views of what backward reads: they must not be written to.
    """
    given = (x, *held, w.w_input, w.w_state, w.b_input, w.b_state, w.peephole, how)
    found: tuple[Tensor, Tensor] = _Recurrence.apply(*given)  # type: ignore[no-untyped-call]
    return found


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        state: Tensor,
        cell: Tensor,
        w_input: Tensor,
        w_state: Tensor,
        b_input: Tensor | None,
        b_state: Tensor | None,
        peephole: Tensor | None,
        how: How,
    ) -> tuple[Tensor, Tensor]:
        lay, memory = how.layout, how.cell.memory
        steps, batch, hidden = len(x), x.shape[1], w_state.shape[1]
        gates = lay.empty(x, steps, batch, SLOTS * hidden)
        states = lay.empty(x, steps + 1, batch, hidden)
        cells = lay.empty(x, steps + 1, batch, hidden) if memory else states
        lay.steps(states)[0].copy_(lay.laid(state))
        if memory:
            lay.steps(cells)[0].copy_(lay.laid(cell))
        gates.copy_(lay.spread(_bias(how.cell, w_state, b_input, b_state), 3))
        seen = peephole.contiguous() if peephole is not None else states
        _run(how, lay.laid(x), gates, states, cells, how.cell.in_slots(w_input), w_state, seen)
        ctx.how, ctx.biased = how, b_input is not None
        ctx.save_for_backward(x, gates, states, cells if memory else None, w_input, w_state, peephole)
        last = lay.usual(lay.steps(cells)[-1]) if memory else cell.view_as(cell)
        return lay.usual(lay.from_to(states, 1, steps + 1)), last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        how: How = ctx.how
        x, gates, states, cells, w_input, w_state, peephole = ctx.saved_tensors
        lay, cell, hidden = how.layout, how.cell, w_state.shape[1]
        d_gates = torch.empty_like(gates)
        d_x = lay.empty(x, *x.shape) if ctx.needs_input_grad[0] else None
        d_held = torch.zeros_like(lay.steps(states)[0], memory_format=torch.contiguous_format), _own(lay.laid(d_last))
        weights = cell.in_slots(w_input), w_state, peephole.contiguous() if peephole is not None else states
        output = lay.laid(d_output).contiguous()
        _run_back(how, gates, states, cells if cells is not None else states, weights, output, d_held, d_gates, d_x)
        of_inputs = lay.part(d_gates, cell.input_slots(hidden))
        of_states = lay.part(d_gates, cell.state_slots(hidden))
        before = lay.from_to(states, 0, len(x))
        d_input = lay.weight_gradient(lay.flat(of_inputs), lay.flat(lay.laid(x)))
        d_state = lay.weight_gradient(lay.flat(of_states), lay.flat(before))
        biases = (cell.in_gates(lay.summed(of_inputs)), lay.summed(of_states)) if ctx.biased else (None, None)
        return (
            None if d_x is None else lay.usual(d_x),
            lay.usual(d_held[0]),
            lay.usual(d_held[1]),
            cell.in_gates(d_input),
            d_state,
            *biases,
            _peephole_gradient(lay, d_gates, cells) if peephole is not None else None,
            None,
        )


def _own(tensor: Tensor) -> Tensor:
    """Return a copy without gaps."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _bias(cell: Cell, w_state: Tensor, b_input: Tensor | None, b_state: Tensor | None) -> Tensor:
    """Return what the sums of products begin with, [4 x hidden]."""
    hidden = w_state.shape[1]
    bias = w_state.new_zeros(SLOTS * hidden)
    for slots, part in ((cell.input_slots(hidden), b_input), (cell.state_slots(hidden), b_state)):
        if part is not None:
            bias[slice(*slots)] += cell.in_slots(part) if part is b_input else part
    return bias


def _run(
    how: How, x: Tensor, gates: Tensor, states: Tensor, cells: Tensor, w_input: Tensor, w_state: Tensor, seen: Tensor
) -> None:
    """Fill gates, states and cells, all in the layout, from what the gates and the first step hold."""
    lay, hidden, kernel = how.layout, w_state.shape[1], how.kernels(x.device)
    inputs, recurrent_part = how.cell.input_slots(hidden), how.cell.state_slots(hidden)
    if how.choice.hoisted:
        lay.add_product(lay.flat(lay.part(gates, inputs)), lay.flat(x), w_input)
    each_x, each_gates, each_state, each_cell = (lay.steps(one) for one in (x, gates, states, cells))
    for t, sums in enumerate(each_gates):
        if not how.choice.hoisted:
            lay.add_product(lay.part(sums, inputs), each_x[t], w_input)
        lay.add_product(lay.part(sums, recurrent_part), each_state[t], w_state)
        kernel.forward(Step(sums, each_cell[t], each_cell[t + 1], seen), each_state[t + 1])


def _run_back(
    how: How,
    gates: Tensor,
    states: Tensor,
    cells: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    output: Tensor,
    d_held: State,
    d_gates: Tensor,
    d_x: Tensor | None,
) -> None:
    """Fill the gradients of the sums, of the first state and cell and, where asked for, of the inputs."""
    lay, (w_input, w_state, seen), (d_state, d_cell) = how.layout, weights, d_held
    hidden, kernel = w_state.shape[1], how.kernels(gates.device)
    inputs, recurrent_part = how.cell.input_slots(hidden), how.cell.state_slots(hidden)
    each_gates, each_cell, each_output, each_d = (lay.steps(one) for one in (gates, cells, output, d_gates))
    by_step = lay.steps(d_x) if d_x is not None and not how.choice.hoisted else ()
    for t in reversed(range(len(each_gates))):
        step = Step(each_gates[t], each_cell[t], each_cell[t + 1], seen)
        kernel.backward(step, Gradients(each_output[t], d_state, d_cell, each_d[t]))
        lay.back(d_state, lay.part(each_d[t], recurrent_part), w_state, kept=not how.cell.memory)
        if by_step:
            lay.back(by_step[t], lay.part(each_d[t], inputs), w_input)
    if d_x is not None and how.choice.hoisted:
        lay.back(lay.flat(d_x), lay.flat(lay.part(d_gates, inputs)), w_input)


def _peephole_gradient(lay: Layout, d_gates: Tensor, cells: Tensor) -> Tensor:
    """Return the gradients of the peepholes, [3, hidden], of all steps at once."""
    steps, hidden = len(lay.steps(d_gates)), cells.shape[0 if lay.columns else -1]
    old, new = lay.from_to(cells, 0, steps), lay.from_to(cells, 1, steps + 1)
    seen = ((0, old), (1, old), (3, new))
    sums = [lay.summed(lay.part(d_gates, (k * hidden, (k + 1) * hidden)) * cell) for k, cell in seen]
    return torch.stack(sums).view(PEEPHOLES, hidden)
