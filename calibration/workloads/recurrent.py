"""Recurrent layers written out step by step: their products can be counted, traced and attributed one by one.

A library's fused kernel hides all of that. The inputs' products of all steps are one product (arXiv 1604.01946,
section 3.1).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

GATES = 4


class Lstm(nn.Module):
    """One layer (Hochreiter and Schmidhuber 1997), from the last step to the first with `reverse`."""

    def __init__(self, inputs: int, hidden: int, reverse: bool = False) -> None:
        super().__init__()
        self.hidden, self.reverse = hidden, reverse
        self.of_input = nn.Linear(inputs, GATES * hidden)
        self.of_state = nn.Linear(hidden, GATES * hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states [b, steps, hidden] of x[b, steps, inputs]."""
        zeros: Tensor = x.new_zeros(x.shape[0], self.hidden)
        state = cell = zeros

        def step(made: Tensor) -> Tensor:
            nonlocal state, cell
            gates: Tensor = made + self.of_state(state)
            i, f, g, o = gates.chunk(GATES, -1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            state = o.sigmoid() * cell.tanh()
            return state

        return over_steps(step, self.of_input(x), self.reverse)


def over_steps(step: Callable[[Tensor], Tensor], x: Tensor, reverse: bool) -> Tensor:
    """Return [b, steps, ...] of `step` of every x[:, t], in order or from the last one."""
    each = x.unbind(1)  # its backward writes all steps once; that of x[:, t] a whole x for every step
    made = [step(one) for one in (reversed(each) if reverse else each)]
    return torch.stack(made[::-1] if reverse else made, 1)
