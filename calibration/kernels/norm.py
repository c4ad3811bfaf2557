"""LayerNorm (arXiv 1607.06450) and RMSNorm (arXiv 1910.07467) over rows, forward and backward."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from calibration.kernels.stream import Kernel, Stream
from calibration.kernels.work import Draw, elements, item
from sim.costs import volume

EPSILON = 1e-5


def _layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm written out."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight + bias


def _rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm written out."""
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight


def _gradients(norm: Callable[..., Tensor], dy: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of `norm` to its arguments."""
    leaves = tuple(leaf.detach().requires_grad_() for leaf in leaves)
    return torch.autograd.grad(norm(*leaves), leaves, dy)


def _layernorm_saved(draw: Draw, r: int, c: int) -> tuple[Tensor, ...]:
    """Return the gradient, x, weight, bias, and the statistics that forward keeps."""
    x, weight, bias = draw.normal(r, c), draw.normal(c), draw.normal(c)
    _, mean, deviation = torch.native_layer_norm(x, [c], weight, bias, EPSILON)
    return draw.normal(r, c), x, weight, bias, mean, deviation


def _layernorm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, ...]:
    backward = torch.ops.aten.native_layer_norm_backward
    out: tuple[Tensor, ...] = backward(dy, x, [x.shape[-1]], mean, deviation, weight, bias, [True, True, True])
    return out


def _rmsnorm_saved(draw: Draw, r: int, c: int) -> tuple[Tensor, ...]:
    """Return the gradient, the output with its graph, x and weight."""
    x, weight = draw.normal(r, c).requires_grad_(), draw.normal(c).requires_grad_()
    return draw.normal(r, c), functional.rms_norm(x, (c,), weight, EPSILON), x, weight


FORWARD = {
    "layernorm": Kernel(
        lambda d, r, c: (d.normal(r, c), d.normal(c), d.normal(c)),
        lambda x, weight, bias: functional.layer_norm(x, x.shape[-1:], weight, bias, EPSILON),
        lambda _, *x: _layernorm(*x),
    ),
    "rmsnorm": Kernel(
        lambda d, r, c: (d.normal(r, c), d.normal(c)),
        lambda x, weight: functional.rms_norm(x, x.shape[-1:], weight, EPSILON),
        lambda _, *x: _rmsnorm(*x),
    ),
}
BACKWARD = {
    "layernorm": Kernel(
        _layernorm_saved,
        _layernorm_backward,
        lambda _, dy, x, weight, bias, *__: _gradients(_layernorm, dy, x, weight, bias),
    ),
    "rmsnorm": Kernel(
        _rmsnorm_saved,
        lambda dy, y, x, weight: torch.autograd.grad(y, (x, weight), dy, retain_graph=True),
        lambda _, dy, __, x, weight: _gradients(_rmsnorm, dy, x, weight),
    ),
}

FAMILIES = (
    Stream("norm", "norm", "any", volume.norm("forward", item) * elements, FORWARD, seed=30),
    Stream("norm backward", "norm", "backward", volume.norm("backward", item) * elements, BACKWARD, seed=30),
)
"""Forward reads x and writes y; backward reads dy and x and writes dx."""
