"""Recurrent cells: what they are made of, and one step of each as a framework launches it, operation by operation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

SLOTS = 4
"""Gates side by side in what a fused kernel keeps of a step."""
PEEPHOLES = 3
"""Gates that see the cell: input and forget gate the old one, output gate the new one."""


@dataclass(frozen=True)
class Cell:
    """A recurrent cell; `gates` x hidden are the rows of its weights, in torch's order.

    A fused kernel finds four slots: an LSTM's i, f, g, o, to all of which both products add; or a GRU's part of n from
    the inputs, r, z and the part of n from the state, of which inputs reach the first three and the state the last
    three. memory: it has a cell beside the state. peephole: its gates see that cell.
    """

    name: Literal["lstm", "gru", "peephole"]
    gates: int

    @property
    def memory(self) -> bool:
        """Whether it has a cell beside the state."""
        return self.name != "gru"

    @property
    def peephole(self) -> bool:
        """Whether its gates see the cell."""
        return self.name == "peephole"

    def input_slots(self, hidden: int) -> tuple[int, int]:
        """Return where the products of inputs begin and end, in numbers."""
        return 0, self.gates * hidden

    def state_slots(self, hidden: int) -> tuple[int, int]:
        """Return where the products of the state begin and end, in numbers."""
        return (SLOTS - self.gates) * hidden, SLOTS * hidden

    def in_slots(self, rows: Tensor) -> Tensor:
        """Return rows of an input weight or bias, [gates x hidden, ...], in the order of the slots."""
        return rows if self.memory else rows.roll(len(rows) // self.gates, 0)

    def in_gates(self, rows: Tensor) -> Tensor:
        """Return rows in the order of the slots in that of the gates again."""
        return rows if self.memory else rows.roll(-(len(rows) // self.gates), 0)


LSTM, GRU, PEEPHOLE = Cell("lstm", 4), Cell("gru", 3), Cell("peephole", 4)

State = tuple[Tensor, Tensor]
"""State and cell, [batch, hidden] each; a GRU's cell is left alone."""


@dataclass(frozen=True)
class Weights:
    """The parameters of one layer as torch.nn.LSTM has them; peephole: [3, hidden] of input, forget, output gate."""

    w_input: Tensor
    w_state: Tensor
    b_input: Tensor | None
    b_state: Tensor | None
    peephole: Tensor | None


def lstm_step(x: Tensor, held: State, w: Weights) -> State:
    """Return state and cell after one step of an LSTM (Hochreiter and Schmidhuber 1997; torch's order i, f, g, o)."""
    state, cell = held
    i, f, g, o = (linear(x, w.w_input, w.b_input) + linear(state, w.w_state, w.b_state)).chunk(4, -1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def gru_step(x: Tensor, held: State, w: Weights) -> State:
    """Return the state after one step of a GRU (arXiv 1406.1078, with the reset gate behind the product as torch's)."""
    state, cell = held
    r_input, z_input, n_input = linear(x, w.w_input, w.b_input).chunk(3, -1)
    r_state, z_state, n_state = linear(state, w.w_state, w.b_state).chunk(3, -1)
    r, z = (r_input + r_state).sigmoid(), (z_input + z_state).sigmoid()
    n = (n_input + r * n_state).tanh()
    return n + z * (state - n), cell


def peephole_step(x: Tensor, held: State, w: Weights) -> State:
    """Return state and cell after one step of an LSTM whose gates see the cell (Gers and Schmidhuber 2000)."""
    state, cell = held
    assert w.peephole is not None
    on_input, on_forget, on_output = w.peephole
    i, f, g, o = (linear(x, w.w_input, w.b_input) + linear(state, w.w_state, w.b_state)).chunk(4, -1)
    kept = (f + on_forget * cell).sigmoid() * cell
    cell = kept + (i + on_input * cell).sigmoid() * g.tanh()
    return (o + on_output * cell).sigmoid() * cell.tanh(), cell


STEPS: dict[Cell, Callable[[Tensor, State, Weights], State]] = {
    LSTM: lstm_step,
    GRU: gru_step,
    PEEPHOLE: peephole_step,
}


def unrolled(cell: Cell, x: Tensor, held: State, w: Weights) -> tuple[Tensor, Tensor]:
    """Return states [steps, batch, hidden] and the last cell: every operation of every step launched by itself.

    As frameworks do by default (MXNet's LSTMCell and GRUCell): per step one product with the inputs, one with the
    state, and each gate's and each point-wise function apart; autograd goes back through all of it.
    """
    step, out = STEPS[cell], []
    for each in x.unbind(0):
        held = step(each, held, w)
        out.append(held[0])
    return torch.stack(out), held[1]
