"""How fast kernels can be issued: one after the other from Python, recorded by autograd, replayed as a CUDA graph."""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.work import SETS, TOLERANCE, ZERO, Check, Draw, doubles, main_dtype, relative_error
from sim.costs.algebra import Expr

CHAINS: tuple[tuple[Use, int], ...] = (("fit", 10), ("fit", 30), ("fit", 100), ("random", 57), ("larger", 300))
"""Kernels issued back to back."""

GATES: tuple[tuple[Use, int], ...] = (("fit", 10), ("fit", 30), ("fit", 100), ("random", 60), ("larger", 300))
LINK = 10
"""Kernels of a gate: sigmoid, tanh, two products and their sum, and the gradients of all that."""

CONVOLUTIONS: tuple[tuple[Use, int], ...] = (("fit", 4), ("fit", 8), ("fit", 16), ("random", 12), ("larger", 32))
"""Convolutions back to back, of `CHANNELS` channels on images of `PIXELS` a side."""
CHANNELS = PIXELS = 8


class Launch:
    """A chain of `kernels` kernels on one number, one behind the other; the time is that of one of them.

    rate and graph: each adds one. passes: gates forward and backward, as autograd runs them, `LINK` kernels each.
    convolutions: modules of next to no size forward and backward, both gradients of each; the time is that of a module.
    """

    name = "launch"
    flop: Expr = ZERO
    bytes: Expr = ZERO

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield chains issued by torch, without and with autograd, and, on a GPU, as a graph."""
        for direction in ("rate", "passes", "graph") if machine.kind == "cuda" else ("rate", "passes"):
            for use, n in GATES if direction == "passes" else CHAINS:
                yield Case("launch", direction, "float32", "torch", {"kernels": n}, str(n), use=use)
        if machine.kind == "cuda":
            dtype = main_dtype(machine)
            for use, n in CONVOLUTIONS:
                yield Case("launch", "convolutions", dtype, "torch", {"modules": n}, str(n), use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the chain; `calls` are its kernels, or modules. Every set is another number."""
        if case.direction == "convolutions":
            return _convolutions(int(case.shape["modules"]), case.dtype, Draw(machine, case.dtype, seed))
        n = int(case.shape["kernels"])
        if case.direction == "passes":
            return _passes(n // LINK, machine)
        numbers = [torch.zeros(1, device=machine.kind) for _ in range(SETS)]

        def chain(number: Tensor) -> Tensor:
            for _ in range(n):
                number.add_(1.0)
            return number

        graphs = [_captured(chain, number) for number in numbers] if case.direction == "graph" else []

        def replay(number: Tensor, graph: torch.cuda.CUDAGraph) -> Tensor:
            graph.replay()
            return number

        run = replay if graphs else chain
        sets = list(zip(numbers, graphs, strict=True)) if graphs else [(number,) for number in numbers]

        def once() -> Tensor:
            numbers[0].zero_()
            out: Tensor = run(*sets[0])
            return out

        expected = torch.full((1,), n, dtype=torch.float64, device=machine.kind)
        return Work(run, sets, Check(once, lambda out: relative_error(out, expected)), 0.0, calls=n)


def _passes(links: int, machine: Machine) -> Work:
    """Return `links` gates in a row, forward and backward: five kernels either way."""
    numbers = [torch.full((1,), 0.1 * i, device=machine.kind, requires_grad=True) for i in range(SETS)]
    weight = torch.full((1,), 0.5, device=machine.kind)

    def slope(number: Tensor, weight: Tensor) -> Tensor:
        y = number
        for _ in range(links):
            y = y.sigmoid() * weight + y.tanh() * weight
        return torch.autograd.grad(y, number)[0]

    exact = slope(numbers[1].detach().double().requires_grad_(), weight.double())
    sets = [(number, weight) for number in numbers]
    check = Check(lambda: slope(*sets[1]), lambda out: float((out - exact).abs().max()))
    return Work(slope, sets, check, 1e-6, calls=LINK * links)


def _convolutions(n: int, dtype: str, draw: Draw) -> Work:
    """Return n convolutions in a row, forward and backward."""
    layers = [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in range(n)]
    stack = nn.Sequential(*layers).to(draw.device, draw.dtype)

    def image() -> Tensor:
        return draw.normal(1, CHANNELS, PIXELS, PIXELS)

    def passes(x: Tensor, dy: Tensor, stack: nn.Module = stack) -> tuple[Tensor, ...]:
        y = stack(x)
        return y.detach(), *torch.autograd.grad(y, (x, *stack.parameters()), dy)

    def of(out: tuple[Tensor, ...]) -> float:
        x, dy = doubles(sets[0])
        return relative_error(out, passes(x.requires_grad_(), dy, copy.deepcopy(stack).double()))

    sets = [(image().requires_grad_(), image()) for _ in range(SETS)]
    return Work(passes, sets, Check(lambda: passes(*sets[0]), of), 10 * TOLERANCE[dtype], calls=n)


def _captured(chain: Callable[[Tensor], Tensor], number: Tensor) -> torch.cuda.CUDAGraph:
    """Return a graph of `chain(number)`."""
    graph = torch.cuda.CUDAGraph()
    chain(number)
    with torch.cuda.graph(graph):
        chain(number)
    return graph


FAMILIES = (Launch(),)
