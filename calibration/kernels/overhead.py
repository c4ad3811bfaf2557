"""What a layer costs before any arithmetic: Python, dispatcher and autograd on a GPT block of next to no size."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.gpt import SmallGpt
from calibration.kernels.work import ITEM, SETS, TOLERANCE, ZERO, Check, Draw, doubles, main_dtype, relative_error
from sim.costs.algebra import Expr
from sim.specs.model import Model

STACKS: tuple[tuple[Use, int], ...] = (("fit", 1), ("fit", 2), ("fit", 4), ("random", 3), ("larger", 8))
"""Layers in a row."""

SEQ = 8
HIDDEN = 16


def small(layers: int) -> Model:
    """Return the network whose layers have next to no size."""
    return Model(name="small", layers=layers, hidden=HIDDEN, heads=2, vocab=2, seq=SEQ)


class Overhead:
    """Forward and backward of `layers` layers that compute nothing worth timing; the time is that of one layer.

    On a GPU it is the rate at which a layer's kernels are issued: a step takes that long however small its kernels are.
    """

    name = "overhead"
    flop: Expr = ZERO
    bytes: Expr = ZERO

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield stacks of layers, those of one height a group."""
        dtype = main_dtype(machine)
        for use, n in STACKS:
            shape = {"layers": n, "hidden": HIDDEN, "seq": SEQ, "item": ITEM[dtype]}
            yield Case("launch", "layer", dtype, "eager", shape, str(n), use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the stack's output and gradients; `calls` are its layers."""
        draw, n = Draw(machine, case.dtype, seed), int(case.shape["layers"])
        stack = nn.Sequential(*SmallGpt(small(n), seed).blocks).to(draw.device, draw.dtype)

        def run(x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
            return gradients(stack, x, dy)

        def of(out: Any) -> float:
            exact = copy.deepcopy(stack).double()
            return relative_error(out, gradients(exact, *doubles(sets[0])))

        sets = [(draw.normal(1, SEQ, HIDDEN), draw.normal(1, SEQ, HIDDEN)) for _ in range(SETS)]
        return Work(run, sets, Check(lambda: run(*sets[0]), of), 4 * TOLERANCE[case.dtype], calls=n)


def gradients(module: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """Return the output of `module` and the gradients of x and of its weights."""
    x = x.detach().requires_grad_()
    y = module(x)
    return y.detach(), *torch.autograd.grad(y, (x, *module.parameters()), dy)


FAMILIES = (Overhead(),)
