"""How fast kernels can be issued: one after the other from Python, and replayed as a CUDA graph."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.work import SETS, ZERO, Check, relative_error
from sim.costs.algebra import Expr

CHAINS: tuple[tuple[Use, int], ...] = (("fit", 10), ("fit", 30), ("fit", 100), ("random", 57), ("larger", 300))
"""Kernels issued back to back."""


class Launch:
    """A chain of `kernels` kernels that each add one to one number; the time is that of one of them."""

    name = "launch"
    flop: Expr = ZERO
    bytes: Expr = ZERO

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield chains issued by torch (rate) and, on a GPU, as a graph."""
        for direction in ("rate", "graph") if machine.kind == "cuda" else ("rate",):
            for use, n in CHAINS:
                yield Case("launch", direction, "float32", "torch", {"kernels": n}, str(n), use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the chain; `calls` are its kernels. Every set is another number."""
        n = int(case.shape["kernels"])
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


def _captured(chain: Callable[[Tensor], Tensor], number: Tensor) -> torch.cuda.CUDAGraph:
    """Return a graph of `chain(number)`."""
    graph = torch.cuda.CUDAGraph()
    chain(number)
    with torch.cuda.graph(graph):
        chain(number)
    return graph


FAMILIES = (Launch(),)
