"""Embedding tables: rows read by token, and their gradients added up."""

import torch
from torch.nn import functional

from calibration.kernels.family import Machine
from calibration.kernels.stream import Kernel, Stream, Widths, usual
from calibration.kernels.work import elements, item
from sim.costs import volume

ROWS_A_TOKEN = 4
"""Table rows for every token of a case: the gradient of a table is written whole, as torch does."""


def _looked_up(machine: Machine) -> Widths:
    widths = usual(machine)
    return Widths(widths.rows, widths.columns, widths.few // 2, widths.most // 2, widths.beyond // 2)


def _table(tokens: int) -> int:
    return max(256, ROWS_A_TOKEN * tokens)


FORWARD = Kernel(
    lambda d, r, c: (d.normal(_table(r), c), d.integers(_table(r), r)),
    lambda table, tokens: functional.embedding(tokens, table),
    lambda _, table, tokens: table[tokens],
)
BACKWARD = Kernel(
    lambda d, r, c: (d.normal(r, c), d.integers(_table(r), r)),
    lambda dy, tokens: torch.ops.aten.embedding_dense_backward(dy, tokens, _table(len(tokens)), -1, False),
    lambda _, dy, tokens: dy.new_zeros(_table(len(tokens)), dy.shape[-1]).index_add(0, tokens, dy),
)

FAMILIES = (
    Stream(
        "embedding",
        "embedding",
        "forward",
        volume.embedding("forward", item) * elements,
        {"gather": FORWARD},
        widths=_looked_up,
        seed=60,
    ),
    Stream(
        "embedding backward",
        "embedding",
        "backward",
        volume.embedding("backward", item) * elements,
        {"dense": BACKWARD},
        widths=_looked_up,
        seed=60,
    ),
)
