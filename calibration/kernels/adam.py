"""Adam (arXiv 1412.6980): torch's implementations over the parameters of a few layers."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.work import (
    TOLERANCE,
    ZERO,
    Check,
    Draw,
    evaluate,
    fits,
    main_dtype,
    pick,
    relative_error,
    rotated,
)
from sim.costs.algebra import Expr, symbol
from sim.costs.profile import ADAM_TENSORS

IMPLEMENTATIONS = ("for-loop", "foreach", "fused")

PER_PARAMETER = {"float32": 28, "bfloat16": 24 + 2 + 3 * 4}
"""Bytes a parameter: weight, gradient and two moments read and all but the gradient written; with 16-bit weights as
sim.costs.stage charges them: masters and moments both ways 24, weight written 2, fp32 gradients three times 12."""

RATE = 1e-6
"""Learning rate: small, so that weights that are stepped a thousand times stay numbers."""

CHECKED_RATE = 1e-2
"""Large enough for what a weight moves by to show behind its rounding."""

EPSILON = 1e-8

parameters, per_parameter = symbol("parameters"), symbol("per_parameter")


class Optimizer:
    """Adam over `weights`: on them if they are fp32, else on fp32 masters that are cast from and to 16 bits."""

    def __init__(self, weights: Sequence[Tensor], implementation: str, rate: float = RATE) -> None:
        self.weights = list(weights)
        same = self.weights[0].dtype == torch.float32
        self.masters = self.weights if same else [w.detach().float() for w in self.weights]
        self.adam = torch.optim.Adam(
            self.masters, lr=rate, foreach=implementation == "foreach", fused=implementation == "fused"
        )

    def zero_grad(self) -> None:
        """Forget the weights' gradients."""
        for weight in self.weights:
            weight.grad = None

    def step(self) -> None:
        """Take one step along the weights' gradients."""
        if self.masters is self.weights:
            self.adam.step()
            return
        with torch.no_grad():
            for master, weight in zip(self.masters, self.weights, strict=True):
                master.grad = None if weight.grad is None else weight.grad.float()
            self.adam.step()
            torch._foreach_copy_(self.weights, self.masters)


class Adam:
    """One optimizer step over `parameters` parameters in `ADAM_TENSORS` equal tensors."""

    name = "adam"
    flop: Expr = ZERO
    bytes = per_parameter * parameters

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield every implementation at the same sizes."""
        dtype = main_dtype(machine)
        for implementation in IMPLEMENTATIONS:
            for use, n in _sizes(machine, suite):
                shape: dict[str, float] = {"parameters": n, "per_parameter": PER_PARAMETER[dtype]}
                moved = evaluate(self.bytes, shape)
                if fits(machine, moved, factor=4):
                    yield Case("adam", "any", dtype, implementation, {"bytes": moved} | shape, str(n), use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the step of one of several optimizers, each over tensors of its own."""
        draw = Draw(machine, case.dtype, seed)
        each = int(case.shape["parameters"]) // ADAM_TENSORS

        def made() -> list[Tensor]:
            weights = [draw.normal(each).requires_grad_() for _ in range(ADAM_TENSORS)]
            for weight in weights:
                weight.grad = draw.normal(each)
            return weights

        def stepped() -> tuple[Optimizer]:
            optimizer = Optimizer(made(), case.implementation)
            optimizer.step()  # the first step makes the moments
            return (optimizer,)

        sets = rotated(machine, case.shape["bytes"], stepped)
        fresh = made()

        def once() -> list[Tensor]:
            optimizer = Optimizer(fresh, case.implementation, CHECKED_RATE)
            before = [m.detach().clone() for m in optimizer.masters]
            optimizer.step()
            return [m.detach() - b for m, b in zip(optimizer.masters, before, strict=True)]

        def of(out: Any) -> float:
            # After one step the two moments are the gradient and its square: the weight moves by the rate.
            gradients = [w.grad.double() for w in fresh if w.grad is not None]
            return relative_error(out, [-CHECKED_RATE * g / (g.abs() + EPSILON) for g in gradients])

        return Work(lambda optimizer: optimizer.step(), sets, Check(once, of), TOLERANCE[case.dtype])


def _sizes(machine: Machine, suite: Suite) -> Iterator[tuple[Use, int]]:
    """Yield (use, parameters), all of them multiples of `ADAM_TENSORS`."""
    low, few, most = (14, 24, 28) if machine.kind == "cuda" else (12, 22, 24)
    pool = [2**n for n in range(low, most + 1)]
    for n in pick(pool, int, 2**few, suite, (8, 16), 0):
        yield "fit", n
    for n in (2**low * 3, 2**few * 5 // 8, *(() if suite == "smoke" else (2**few * 3, 2**most * 5 // 8))):
        yield "random", n
    yield "larger", 2 ** (few if suite == "smoke" else most) * 3


FAMILIES = (Adam(),)
