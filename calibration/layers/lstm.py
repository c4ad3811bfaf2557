"""LSTM, GRU and LSTM with peepholes as torch modules, on fused kernels or as frameworks run them by default.

EcoRNN's three steps (arXiv 1805.08899): what lies between two products is one kernel, the inputs of all time steps and
the gates of a step are one product each, and the layout is chosen by shape (`calibration.layers.lstm_cost`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from calibration.layers import cells
from calibration.layers.cells import PEEPHOLES, Cell, State, Weights, unrolled
from calibration.layers.layouts import Choice
from calibration.layers.recurrence import How, Language, recurrent
from calibration.layers.transforms import transformed
from sim.specs.fields import InputError


@dataclass(frozen=True)
class Sizes:
    """What a layer works on: time steps, samples, columns of its input and of its state, gates."""

    seq: int
    batch: int
    inputs: int
    hidden: int
    gates: int = 4


Chooser = Callable[[Sizes], Choice]
Implementation = Literal["fused", "default"]


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise InputError(name, value, f"one of {', '.join(map(str, allowed))}")


class Recurrent(nn.Module):
    """Recurrent layers on top of each other; parameters are named, shaped and drawn as torch.nn.LSTM's.

    implementation: fused, or default (every operation apart). choice: how fused layers run, or what says it of a
    layer's sizes. language: of the fused kernels, by default C on the host (fp32, fp64), Triton on a GPU (fp32, fp16,
    bf16). Peepholes are `weight_peephole_l0` ..., [3, hidden] each.

    Raises:
        InputError: a size below 1; an implementation or language that there is none of.
    """

    cell: Cell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        *,
        implementation: Implementation = "fused",
        choice: Choice | Chooser = Choice(),  # noqa: B008 - frozen
        language: Language | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        for name, number in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            if number < 1:
                raise InputError(name, number, "1 or more")
        _one_of("implementation", implementation, get_args(Implementation))
        _one_of("language", language, (*get_args(Language), None))
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first = bias, batch_first
        self.implementation, self.choice, self.language = implementation, choice, language
        rows = self.cell.gates * hidden_size
        for k in range(num_layers):
            shapes: dict[str, tuple[int, ...]] = {
                "weight_ih": (rows, hidden_size if k else input_size),
                "weight_hh": (rows, hidden_size),
            }
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
            shapes |= {"weight_peephole": (PEEPHOLES, hidden_size)} if self.cell.peephole else {}
            for name, shape in shapes.items():
                drawn = torch.empty(shape, device=device, dtype=dtype).uniform_(-1, 1) * hidden_size**-0.5
                self.register_parameter(f"{name}_l{k}", nn.Parameter(drawn))

    def weights(self, layer: int) -> Weights:
        """Return the parameters of a layer."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_peephole")
        held = [getattr(self, f"{name}_l{layer}", None) for name in names]
        return Weights(*cast(tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None], held))

    def run(self, x: Tensor, state: Tensor | None, cell: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the last layer says of every step, and the last state and cell of all layers.

        x: [steps, batch, inputs], or [batch, steps, inputs] with batch_first, as the result then; state, cell:
        [layers, batch, hidden], zeros where left out.

        Under autocast layers run in the dtype of their weights.

        Raises:
            InputError: a shape is not this one, or x has another dtype than the weights.
        """
        if torch.amp.is_autocast_available(x.device.type) and torch.is_autocast_enabled(x.device.type):
            x = x.to(self.weights(0).w_state.dtype)
        self._check(x, state, cell)
        x = x.transpose(0, 1) if self.batch_first else x
        zeros = x.new_zeros(self.num_layers, x.shape[1], self.hidden_size)
        states, lasts = zeros if state is None else state, zeros if cell is None else cell
        found = []
        for k in range(self.num_layers):
            x, last = self._layer(x, (states[k], lasts[k]), self.weights(k))
            found.append((x[-1], last))
        y = x.transpose(0, 1) if self.batch_first else x
        return y, torch.stack([one for one, _ in found]), torch.stack([one for _, one in found])

    def _layer(self, x: Tensor, held: State, w: Weights) -> tuple[Tensor, Tensor]:
        if self.implementation == "default" or not x.numel() or transformed():
            return unrolled(self.cell, x, held, w)
        seq, batch, columns = x.shape
        sizes = Sizes(seq, batch, columns, self.hidden_size, self.cell.gates)
        choice = self.choice if isinstance(self.choice, Choice) else self.choice(sizes)
        return recurrent(How(self.cell, choice, self.language), x, held, w)

    def _check(self, x: Tensor, state: Tensor | None, cell: Tensor | None) -> None:
        if x.ndim != 3 or x.shape[-1] != self.input_size or not x.shape[1 if self.batch_first else 0]:
            allowed = f"3 axes, one step or more, the last axis of {self.input_size}"
            raise InputError("input", tuple(x.shape), allowed)
        kind = self.weights(0).w_state.dtype
        if x.dtype != kind:
            raise InputError("input", x.dtype, f"{kind}, as the weights")
        wanted = self.num_layers, x.shape[0 if self.batch_first else 1], self.hidden_size
        for name, held in (("state", state), ("cell", cell)):
            if held is not None and held.shape != wanted:
                raise InputError(name, tuple(held.shape), f"{wanted}: layers, samples, hidden")


class LSTM(Recurrent):
    """As torch.nn.LSTM (no projection, one direction)."""

    cell = cells.LSTM

    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """Return the output of every step, and (state, cell) after the last; hx: both before the first; see
        `Recurrent.run` for shapes."""
        y, last, cell = self.run(input, *(hx or (None, None)))
        return y, (last, cell)


class PeepholeLSTM(LSTM):
    """An LSTM whose input and forget gates see the cell before a step, and whose output gate that after it."""

    cell = cells.PEEPHOLE


class GRU(Recurrent):
    """As torch.nn.GRU (one direction)."""

    cell = cells.GRU

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output of every step, and the state after the last; hx: that before the first; see `Recurrent.run`
        for shapes."""
        y, last, _ = self.run(input, hx, None)
        return y, last
