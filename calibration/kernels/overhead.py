"""What a pass costs before any arithmetic: Python, dispatcher and autograd on a GPT of next to no size."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.gpt import SmallGpt
from calibration.kernels.recompute import Repeating
from calibration.kernels.work import ITEM, SETS, TOLERANCE, ZERO, Check, Draw, main_dtype, relative_error
from calibration.layers.tempo import with_tempo
from sim.costs.algebra import Expr
from sim.specs.model import Model

STACKS: tuple[tuple[Use, int], ...] = (
    ("fit", 1), ("fit", 2), ("fit", 3), ("fit", 4), ("fit", 6), ("fit", 8), ("random", 5), ("larger", 12),
)  # fmt: skip
"""Layers in a row."""

MORE = ("full", "selective", "tempo")
"""Kinds of layers that take longer to issue than usual ones, of which `FEW` heights are enough."""
FEW = (1, 3, 5, 6, 12)

GAP_BYTES = 2 * 2**20
"""Read and written between modules on a processor, where the arithmetic of a real step empties a core's own cache of
Python's, the dispatcher's and autograd's code and data: found there again, issuing would take about half as long."""

SEQ = 8
HIDDEN = 16
VOCAB = 2


def small(layers: int) -> Model:
    """Return the network whose layers and ends have next to no size."""
    return Model(name="small", layers=layers, hidden=HIDDEN, heads=2, vocab=VOCAB, seq=SEQ)


class Overhead:
    """Forward and backward of a whole model of `layers` layers that computes nothing worth timing, one sample.

    On a processor modules have gaps between them (direction `pass`), which are timed by themselves too (`gaps`), as is
    the model without them (`hot`: what follows each other so closely finds its code in the caches). On a device beside
    its host layers also recompute (`full`, `selective`), and have Tempo's norms and GELU (`tempo`): all that is Python.
    Gradients are added to those that are there, as in every microbatch but the first. What one more layer adds is the
    rate at which a layer's kernels are issued; what is there without layers is that of embedding, head and loss.
    """

    name = "overhead"
    flop: Expr = ZERO
    bytes: Expr = ZERO

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield models of several heights, each a group."""
        dtype = main_dtype(machine)
        for direction in ("pass", "gaps", "hot") if machine.kind == "cpu" else ("pass", *MORE):
            for use, n in [each for each in STACKS if direction not in MORE or each[1] in FEW]:
                shape = {"layers": n, "hidden": HIDDEN, "seq": SEQ, "item": ITEM[dtype]}
                yield Case("launch", direction, dtype, "eager", shape, str(n), use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the pass over tokens and targets."""
        draw, model = Draw(machine, case.dtype, seed), small(int(case.shape["layers"]))
        gpt = SmallGpt(model, seed).to(draw.device, draw.dtype)
        if case.direction == "gaps":
            return _gaps_alone(len(_leaves(gpt)), draw)
        if case.direction == "tempo":
            with_tempo(gpt)
        elif case.direction in MORE:
            gpt.blocks = nn.ModuleList(Repeating(block, case.direction) for block in gpt.blocks)  # type: ignore[arg-type]
        if machine.kind == "cpu" and case.direction == "pass":
            gap = Gap.of(GAP_BYTES)
            for leaf in _leaves(gpt):
                leaf.register_forward_hook(gap)
        for parameter in gpt.parameters():
            parameter.grad = torch.zeros_like(parameter)

        def run(tokens: Tensor, targets: Tensor) -> None:
            torch.autograd.backward(gpt.loss(tokens, targets))

        def of(out: Any) -> float:
            return relative_error(out, loss_and_gradients(copy.deepcopy(gpt).double(), *sets[0]))

        sets = [(draw.integers(VOCAB, 1, SEQ), draw.integers(VOCAB, 1, SEQ)) for _ in range(SETS)]
        return Work(run, sets, Check(lambda: loss_and_gradients(gpt, *sets[0]), of), 10 * TOLERANCE[case.dtype])


class Touch(torch.autograd.Function):
    """Reads and writes a buffer in forward and in backward, and passes its input on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, buffer: Tensor) -> Tensor:
        """Return x, the buffer having been through the caches."""
        ctx.buffer = buffer
        buffer.add_(1.0)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        """Return the gradient as it is."""
        ctx.buffer.add_(1.0)
        return slopes[0], None


@dataclass(frozen=True)
class Gap:
    """A forward hook that lets `buffer` go through the caches behind a module, and again in backward."""

    buffer: Tensor

    @classmethod
    def of(cls, size: int) -> "Gap":
        """Return a gap of `size` bytes."""
        return cls(torch.zeros(size // 4))

    def __call__(self, module: nn.Module, inputs: Any, out: Tensor) -> Tensor:
        touched: Tensor = Touch.apply(out, self.buffer)  # type: ignore[no-untyped-call]
        return touched

    def __deepcopy__(self, memo: Any) -> "Gap":
        return self


def _leaves(gpt: SmallGpt) -> list[nn.Module]:
    """Return the modules that have a gap behind them: norms and products."""
    return [module for module in gpt.modules() if isinstance(module, nn.Linear | nn.LayerNorm)]


def _gaps_alone(count: int, draw: Draw) -> Work:
    """Return `count` gaps in a row, forward and backward: the gradient passes through them as it is."""
    gap, idle = Gap.of(GAP_BYTES), nn.Identity()

    def run(x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        y = x
        for _ in range(count):
            y = gap(idle, (), y)
        return torch.autograd.grad(y, x, dy)

    sets = [(draw.normal(1, SEQ, HIDDEN).requires_grad_(), draw.normal(1, SEQ, HIDDEN)) for _ in range(SETS)]
    check = Check(lambda: run(*sets[0]), lambda out: relative_error(out, (sets[0][1].double(),)))
    return Work(run, sets, check, 0.0)


def loss_and_gradients(gpt: SmallGpt, tokens: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """Return the loss and the gradients of all weights."""
    loss = gpt.loss(tokens, targets)
    return loss.detach(), *torch.autograd.grad(loss, list(gpt.parameters()))


def gradients(module: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """Return the output of `module` and the gradients of x and of its weights."""
    x = x.detach().requires_grad_()
    y = module(x)
    return y.detach(), *torch.autograd.grad(y, (x, *module.parameters()), dy)


FAMILIES = (Overhead(),)
