"""Times a training step of one recurrent layer: ours in each layout, hoisted or not, by default, and torch's own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from calibration.instruments import Stopwatch
from calibration.kernels.family import Machine, Work
from calibration.kernels.work import Draw, relative_error
from calibration.layers import lstm
from calibration.layers.layouts import CHOICES, Choice
from calibration.layers.lstm import Recurrent, Sizes
from calibration.layers.lstm_cost import LayerCosts, fit
from calibration.layers.recurrence import Language
from calibration.timing import METHODS, Method, timed

OURS: Mapping[str, type[Recurrent]] = {"lstm": lstm.LSTM, "gru": lstm.GRU}
TORCHS: Mapping[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU}
GATES = {name: made.cell.gates for name, made in OURS.items()}
ONCE = Method(samples=1, statistic="min", sample_s=0.0, total_s=0.0, warmups=0)
"""A time that only shows that something runs."""
Run = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Where:
    """Where layers are timed: device, stopwatch of it, torch's name of the dtype, how a time is taken."""

    machine: Machine
    stopwatch: Stopwatch
    dtype: str = "float32"
    method: Method | None = None


@dataclass
class LayerBench:
    """Measures one layer at given sizes on random inputs; language: of the fused kernels, by default the device's."""

    where: Where
    cell: str
    sizes: Sizes
    language: Language | None = None

    def __post_init__(self) -> None:
        s, draw = self.sizes, Draw(self.where.machine, self.where.dtype, seed=0)
        self.x = draw.normal(s.seq, s.batch, s.inputs).requires_grad_()
        self.d_output = draw.normal(s.seq, s.batch, s.hidden)
        kind: dict[str, Any] = {"device": draw.device, "dtype": draw.dtype}
        torch.manual_seed(0)
        self.torchs = TORCHS[self.cell](s.inputs, s.hidden, **kind)
        self.ours = OURS[self.cell](s.inputs, s.hidden, language=self.language, **kind)
        self.ours.load_state_dict(self.torchs.state_dict())

    def fused(self, choice: Choice) -> Run:
        """Return a training step of the fused layer."""

        def run() -> tuple[Tensor, ...]:
            self.ours.implementation, self.ours.choice = "fused", choice
            return step(self.ours, self.x, self.d_output)

        return run

    def default(self) -> tuple[Tensor, ...]:
        """Do a training step with every operation launched apart."""
        self.ours.implementation = "default"
        return step(self.ours, self.x, self.d_output)

    def library(self) -> tuple[Tensor, ...]:
        """Do a training step of torch's layer: cuDNN's on an NVIDIA GPU."""
        return step(self.torchs, self.x, self.d_output)

    def seconds(self, run: Run) -> float:
        """Return the seconds of a call."""
        work = Work(run, [()] * 3, lambda: 0.0, 0.0)
        return timed(work, self.where.method or METHODS[self.where.machine.kind], self.where.stopwatch).t_s

    def error(self, choice: Choice) -> float:
        """Return the largest relative error of outputs and gradients against torch's layer in fp64."""
        wanted = TORCHS[self.cell](self.sizes.inputs, self.sizes.hidden, device=self.x.device, dtype=torch.float64)
        wanted.load_state_dict(self.torchs.state_dict())
        x = self.x.detach().double().requires_grad_()
        return relative_error(self.fused(choice)(), step(wanted, x, self.d_output.double()))


def step(module: nn.Module, x: Tensor, d_output: Tensor) -> tuple[Tensor, ...]:
    """Run forward and backward; return the outputs and the gradients of inputs and parameters."""
    y: Tensor = module(x)[0]
    return y.detach(), *torch.autograd.grad(y, (x, *module.parameters()), d_output)


def probes(cell: str, gpu: bool) -> tuple[Sizes, ...]:
    """Return the sizes from which costs are learned: small and large batches and widths, long and short."""
    host = ((16, 4, 64, 64), (8, 64, 96, 160), (24, 16, 256, 256), (6, 96, 48, 320))
    device = ((32, 16, 256, 256), (16, 128, 512, 512), (48, 64, 1024, 1024), (16, 256, 256, 1536))
    return tuple(Sizes(*each, GATES[cell]) for each in (device if gpu else host))


def learned(
    where: Where, cell: str, sizes: Sequence[Sizes], start: Mapping[str, float], language: Language | None = None
) -> LayerCosts:
    """Return costs fitted to all choices, measured at some sizes."""
    found = []
    for each in sizes:
        bench = LayerBench(where, cell, each, language)
        found += [(each, choice, bench.seconds(bench.fused(choice))) for choice in CHOICES]
    return fit(found, start)


def drawn(number: int, gpu: bool, seed: int = 0) -> Iterator[tuple[str, Sizes]]:
    """Yield cells in turn with sizes drawn log-uniformly, every second hidden width in whole 32s."""
    draw = Random(seed)
    widths, batches, steps = ((128, 2048), (8, 256), (8, 64)) if gpu else ((24, 384), (1, 128), (4, 32))
    for n in range(number):
        cell = tuple(OURS)[n // 2 % 2]
        unit = 32 if n % 2 else 1
        seq, batch, inputs, hidden = (_drawn(draw, *span) for span in (steps, batches, widths, widths))
        yield cell, Sizes(seq, batch, inputs, -(-hidden // unit) * unit, GATES[cell])


def _drawn(draw: Random, least: int, most: int) -> int:
    return round(float(least * (most / least) ** draw.random()))
