"""Softmax over rows of attention scores, and cross-entropy over rows of logits in fp32."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from calibration.kernels.family import Machine
from calibration.kernels.stream import Kernel, Stream, Widths, usual
from calibration.kernels.work import Draw, elements, item
from sim.costs import volume

aten = torch.ops.aten


def _softmax(x: Tensor) -> Tensor:
    """Softmax written out."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def _softmax_saved(draw: Draw, r: int, c: int) -> tuple[Tensor, Tensor]:
    return draw.normal(r, c), torch.softmax(draw.normal(r, c), -1)


SOFTMAX = Kernel(lambda d, r, c: (d.normal(r, c),), lambda x: torch.softmax(x, -1), lambda _, x: _softmax(x))
SOFTMAX_BACKWARD = Kernel(
    _softmax_saved,
    lambda dy, y: aten._softmax_backward_data(dy, y, -1, y.dtype),
    lambda _, dy, y: y * (dy - (dy * y).sum(-1, keepdim=True)),
)


def _scores(machine: Machine) -> Widths:
    """Return rows of keys: heads times tokens of them."""
    widths = usual(machine)
    return replace(widths, columns=(64, 16384 if machine.kind == "cuda" else 2048))


def _logits(draw: Draw, r: int, c: int) -> tuple[Tensor, Tensor]:
    return draw.normal(r, c), draw.integers(c, r)


def _entropy_saved(draw: Draw, r: int, c: int) -> tuple[Tensor, Tensor, torch.dtype]:
    return torch.log_softmax(draw.normal(r, c).float(), -1), draw.integers(c, r), draw.dtype


def _entropy_backward(logged: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient of the mean to logits of `dtype`, in the kernels that autograd runs."""
    one = logged.new_ones(())
    loss = aten.nll_loss_backward(one, logged, target, None, 1, -100, one * len(target))
    out: Tensor = aten._log_softmax_backward_data(loss, logged, -1, logged.dtype).to(dtype)
    return out


def _entropy_slopes(_: Tensor, logged: Tensor, target: Tensor, __: torch.dtype) -> Tensor:
    return (logged.exp() - functional.one_hot(target, logged.shape[-1])) / len(target)


ENTROPY = Kernel(
    _logits,
    lambda x, target: functional.cross_entropy(x.float(), target),
    lambda _, x, target: -_softmax(x).gather(-1, target[:, None]).log().mean(),
)
ENTROPY_BACKWARD = Kernel(_entropy_saved, _entropy_backward, _entropy_slopes)


def _vocabularies(machine: Machine) -> Widths:
    if machine.kind == "cuda":
        return Widths((128, 8192), (32768, 131072), 2**25, 2**28, 2**29)
    return Widths((16, 1024), (1024, 32768), 2**20, 2**23, 2**24)


FAMILIES = (
    Stream(
        "softmax",
        "softmax",
        "any",
        volume.softmax("forward", item) * elements,
        {"eager": SOFTMAX},
        widths=_scores,
        seed=50,
    ),
    Stream(
        "softmax backward",
        "softmax",
        "backward",
        volume.softmax("backward", item) * elements,
        {"eager": SOFTMAX_BACKWARD},
        widths=_scores,
        seed=50,
    ),
    Stream(
        "cross entropy",
        "cross_entropy",
        "forward",
        volume.cross_entropy("forward", item) * elements,
        {"eager": ENTROPY},
        widths=_vocabularies,
        seed=51,
    ),
    Stream(
        "cross entropy backward",
        "cross_entropy",
        "backward",
        volume.cross_entropy("backward", item) * elements,
        {"eager": ENTROPY_BACKWARD},
        widths=_vocabularies,
        seed=51,
    ),
)
"""Cross-entropy in fp32: 12 and 8 bytes a logit, 18 and 10 for 16-bit logits with their casts (read e, write 4)."""
