"""LSTM layers (Hochreiter and Schmidhuber 1997) as torch.nn.LSTM runs them: forward, and backward by autograd."""

from collections.abc import Iterator
from itertools import product
from math import inf, prod

import torch
from torch import Tensor

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.work import (
    ITEM,
    Check,
    Draw,
    doubles,
    evaluate,
    fits,
    item,
    main_dtype,
    pick,
    relative_error,
    rotated,
)
from sim.costs.algebra import Expr, symbol

Shape = tuple[int, int, int]

seq, micro_batch, hidden = symbol("seq"), symbol("batch"), symbol("hidden")
GATES = 4
TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-1}
"""Rounding of 16-bit states goes round the loop once a step."""


class Lstm:
    """One layer whose input is as wide as its state; weights count as read once, as if caches held them."""

    def __init__(self, direction: str) -> None:
        factor = 1 if direction == "forward" else 2  # gradients of inputs and of weights
        self.direction = direction
        self.name = "lstm" if direction == "forward" else "lstm backward"
        self.flop: Expr = factor * 2 * seq * micro_batch * GATES * hidden * 2 * hidden
        self.bytes: Expr = factor * item * (GATES * 2 * hidden**2 + seq * micro_batch * hidden * (2 + GATES))

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield (seq, batch, hidden) of speech and language models."""
        dtype = main_dtype(machine)
        for use, (s, b, h) in _shapes(machine, suite):
            shape = {"seq": s, "batch": b, "hidden": h, "item": ITEM[dtype]}
            if fits(machine, evaluate(self.bytes, shape)):
                yield Case("lstm", self.direction, dtype, "torch", shape, f"{b}x{h}", use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the layer on x[seq, batch, hidden]; backward is that of its inputs and weights."""
        draw = Draw(machine, case.dtype, seed)
        s, b, h = (int(case.shape[name]) for name in ("seq", "batch", "hidden"))
        layer = torch.nn.LSTM(h, h, device=draw.device, dtype=draw.dtype)
        with torch.no_grad():
            for weight in layer.parameters():
                weight.copy_(draw.normal(*weight.shape) * h**-0.5)

        def forward(x: Tensor) -> Tensor:
            with torch.no_grad():
                out: Tensor = layer(x)[0]
            return out

        def backward(x: Tensor, y: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(y, (x, *layer.parameters()), dy, retain_graph=True)

        def operands() -> tuple[Tensor, ...]:
            x = draw.normal(s, b, h)
            if self.direction == "forward":
                return (x,)
            return x.requires_grad_(), layer(x)[0], draw.normal(s, b, h)

        sets = rotated(machine, evaluate(self.bytes, case.shape), operands)
        run = forward if self.direction == "forward" else backward

        def of(out: Tensor | tuple[Tensor, ...]) -> float:
            weights = [w.detach().double().requires_grad_() for w in layer.parameters()]
            x = sets[0][0].detach().double().requires_grad_()
            y = _unrolled(x, *weights)
            if self.direction == "forward":
                return relative_error(out, y.detach())
            return relative_error(out, torch.autograd.grad(y, (x, *weights), *doubles(sets[0][2:])))

        return Work(run, sets, Check(lambda: run(*sets[0]), of), TOLERANCE[case.dtype])


def _unrolled(x: Tensor, w_input: Tensor, w_state: Tensor, b_input: Tensor, b_state: Tensor) -> Tensor:
    """The layer written out, step by step."""
    state = cell = x.new_zeros(x.shape[1:])
    out = []
    for step in x:
        i, f, g, o = (step @ w_input.T + b_input + state @ w_state.T + b_state).chunk(GATES, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        state = o.sigmoid() * cell.tanh()
        out.append(state)
    return torch.stack(out)


def _shapes(machine: Machine, suite: Suite) -> Iterator[tuple[Use, Shape]]:
    gpu = machine.kind == "cuda"
    lengths, batches, widths = (
        ((25, 50, 100), (32, 64, 128), (512, 1024, 2048)) if gpu else ((8, 16), (4, 16), (64, 128, 256))
    )
    pool = list(product(lengths, batches, widths))
    middle = pool[len(pool) // 2]
    for shape in pick(pool, prod, inf, suite, (6, len(pool)), 0):
        yield "fit", shape
    yield "random", (middle[0] - 1, middle[1] - 1, middle[2] + 32)
    yield "larger", (lengths[-1], 2 * batches[-1], widths[-1])


FAMILIES = (Lstm("forward"), Lstm("backward"))
