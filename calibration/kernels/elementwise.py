"""Plain vector kernels: sum and product of two tensors, and a copy in place."""

import torch

from calibration.kernels.stream import Kernel, Stream
from calibration.kernels.work import elements, item

ADD = Kernel(lambda d, r, c: (d.normal(r, c), d.normal(r, c)), torch.add, lambda _, a, b: a + b)
MUL = Kernel(lambda d, r, c: (d.normal(r, c), d.normal(r, c)), torch.mul, lambda _, a, b: a * b)
COPY = Kernel(lambda d, r, c: (d.normal(r, c), d.normal(r, c)), lambda to, source: to.copy_(source), lambda _, a, b: b)

FAMILIES = (
    Stream("elementwise", "elementwise", "any", 3 * item * elements, {"add": ADD, "mul": MUL}, seed=10),
    Stream("elementwise copy", "elementwise", "any", 2 * item * elements, {"copy": COPY}, seed=11),
)
"""Two operands read and one written; one read and one written."""
