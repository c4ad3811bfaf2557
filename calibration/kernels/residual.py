"""Bias + dropout + add behind a sub-layer, and dropout alone (arXiv 1207.0580), as torch runs them eagerly."""

import torch
from torch import Tensor
from torch.nn import functional

from calibration.kernels.stream import Kernel, Stream
from calibration.kernels.work import Draw, elements, item
from sim.costs import volume

P = 0.1
KEPT = 1 / (1 - P)


def _mask(draw: Draw, r: int, c: int) -> Tensor:
    """Return what forward keeps: bytes on a GPU, factors of the tensor's own type on a CPU."""
    kept = draw.flips(1 - P, r, c)
    return kept if draw.device.type == "cuda" else KEPT * kept.to(draw.dtype)


def _undrop(dy: Tensor, mask: Tensor) -> Tensor:
    """Return the gradient in front of dropout, as autograd computes it."""
    if mask.dtype != torch.bool:
        return dy * mask
    out: Tensor = torch.ops.aten.native_dropout_backward(dy, mask, KEPT)
    return out


def _kept(mask: Tensor) -> Tensor:
    return KEPT * (mask > 0).double()


DROPOUT = Kernel(
    lambda d, r, c: (d.normal(r, c),),
    lambda x: functional.dropout(x, P),
    lambda out, x: x * KEPT * (out != 0),
)
DROPOUT_BACKWARD = Kernel(
    lambda d, r, c: (d.normal(r, c), _mask(d, r, c)), _undrop, lambda _, dy, mask: dy * _kept(mask)
)


def _joined(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    return x + functional.dropout(y + bias, P)


def _joined_reference(out: Tensor, x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """Return the sum with the branch dropped where `out` lies nearer to x than to x and the branch."""
    branch = KEPT * (y + bias)
    kept = (out.double() - x).abs() > branch.abs() / 2
    return x + branch * kept


def _split(dx: Tensor, dy: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, of the branch, and of its bias; `dx` came from the other users of x."""
    branch = _undrop(dy, mask)
    return dx + dy, branch, branch.sum(0)


WITH_DROPOUT = Kernel(lambda d, r, c: (d.normal(r, c), d.normal(r, c), d.normal(c)), _joined, _joined_reference)
WITH_DROPOUT_BACKWARD = Kernel(
    lambda d, r, c: (d.normal(r, c), d.normal(r, c), _mask(d, r, c)),
    _split,
    lambda _, dx, dy, mask: (dx + dy, dy * _kept(mask), (dy * _kept(mask)).sum(0)),
)
ADD = Kernel(lambda d, r, c: (d.normal(r, c), d.normal(r, c)), torch.add, lambda _, x, y: x + y)
ADD_BACKWARD = Kernel(
    lambda d, r, c: (d.normal(r, c), d.normal(r, c)),
    lambda dx, dy: (dx + dy, dy.sum(0)),
    lambda _, dx, dy: (dx + dy, dy.sum(0)),
)

FAMILIES = (
    Stream(
        "residual",
        "residual",
        "forward",
        volume.residual("forward", item, True) * elements,
        {"dropout": WITH_DROPOUT},
        seed=40,
    ),
    Stream(
        "residual backward",
        "residual",
        "backward",
        volume.residual("backward", item, True) * elements,
        {"dropout": WITH_DROPOUT_BACKWARD},
        seed=40,
    ),
    Stream(
        "residual add", "residual", "forward", volume.residual("forward", item, False) * elements, {"add": ADD}, seed=41
    ),
    Stream(
        "residual add backward",
        "residual",
        "backward",
        volume.residual("backward", item, False) * elements,
        {"add": ADD_BACKWARD},
        seed=41,
    ),
    Stream("dropout", "dropout", "forward", volume.dropout(item) * elements, {"eager": DROPOUT}, seed=42),
    Stream(
        "dropout backward", "dropout", "backward", volume.dropout(item) * elements, {"eager": DROPOUT_BACKWARD}, seed=42
    ),
)
"""Bytes as sim.costs.layers.ops.residual charges a fused kernel with and without dropout (mask of one byte).

Without dropout the bias is added by the product's own kernel; its gradient is summed in backward in either case.
"""
