"""Products of matrices in the three layouts of a linear layer: forward (TN), gradients of inputs (NN), weights (NT)."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from calibration.kernels.family import Case, Machine, Suite, Work
from calibration.kernels.layers import LIBRARY, TUNED, layers
from calibration.kernels.tuned import tuned_product
from calibration.kernels.work import (
    ITEM,
    TOLERANCE,
    Check,
    Draw,
    evaluate,
    fits,
    item,
    main_dtype,
    relative_error,
    rotated,
)
from sim.costs.algebra import symbol
from sim.costs.kernels import gemm_flop

CHECKED_ROWS = 256
"""float64 products are slow: that many rows of a result are compared, spread over all of it."""

Product = Callable[[Tensor, Tensor], Tensor]
LAYOUT = {"forward": "TN", "dgrad": "NN", "wgrad": "NT"}

m, n, k, batch = (symbol(name) for name in ("m", "n", "k", "batch"))


class Gemm:
    """c[m, n] = a[m, k] b[k, n], `batch` times; a and b lie in memory as `LAYOUT` says.

    The three cases of one layer (tokens, inputs, outputs) are one group: forward m = tokens, n = outputs, k = inputs;
    dgrad m = tokens, n = inputs, k = outputs; wgrad m = outputs, n = inputs, k = tokens.
    """

    name, implementation, budgets = "gemm", "matmul", LIBRARY
    flop = gemm_flop(m, n, k, batch)
    bytes = item * batch * (m * k + k * n + m * n)

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield every layer in the three directions."""
        dtype = main_dtype(machine)
        for use, (tokens, inputs, outputs, times) in layers(machine, suite, budgets=self.budgets):
            group = "x".join(map(str, sorted((tokens, inputs, outputs))))
            for direction, sizes in (
                ("forward", (tokens, outputs, inputs)),
                ("dgrad", (tokens, inputs, outputs)),
                ("wgrad", (outputs, inputs, tokens)),
            ):
                shape = dict(zip("mnk", sizes, strict=True)) | {"batch": times, "item": ITEM[dtype]}
                if fits(machine, evaluate(self.bytes, shape), factor=SETS_AND_RESULT):
                    yield Case("gemm", direction, dtype, self.implementation, shape, group, LAYOUT[direction], use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return the product; operands are views of what training holds: x, W[outputs, inputs] and dy."""
        draw = Draw(machine, case.dtype, seed)
        rows, columns, inner, times = (int(case.shape[name]) for name in ("m", "n", "k", "batch"))
        several = (times,) if times > 1 else ()

        def operands() -> tuple[Tensor, Tensor]:
            a = draw.normal(*several, inner, rows).mT if case.layout == "NT" else draw.normal(*several, rows, inner)
            b = (
                draw.normal(*several, columns, inner).mT
                if case.layout == "TN"
                else draw.normal(*several, inner, columns)
            )
            return a, b

        sets = rotated(machine, evaluate(self.bytes, case.shape), operands)
        run = self.product(case, machine)
        step = max(1, rows // CHECKED_ROWS)

        def of(out: Tensor) -> float:
            a, b = sets[0]
            return relative_error(out[..., ::step, :], a[..., ::step, :].double() @ b.double())

        return Work(run, sets, Check(lambda: run(*sets[0]), of), TOLERANCE[case.dtype])

    def product(self, case: Case, machine: Machine) -> Product:
        """Return the function that multiplies the operands of a case."""
        return torch.bmm if case.shape["batch"] > 1 else torch.mm


class TaskMapped(Gemm):
    """The same by kernels of task mappings, each tuned for its size before it is measured (Hidet, arXiv 2210.09603)."""

    name, implementation, budgets = "gemm task-mapped", "task-mapped", TUNED

    def product(self, case: Case, machine: Machine) -> Product:
        """Return the tuned kernel of a case."""
        return tuned_product(case, machine)


SETS_AND_RESULT = 8
FAMILIES = (Gemm(), TaskMapped())
