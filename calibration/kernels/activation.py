"""Activations: GELU (arXiv 1606.08415; erf, and its tanh form) and SwiGLU (arXiv 2002.05202)."""

from math import pi, sqrt

import torch
from torch import Tensor
from torch.nn import functional

from calibration.kernels.stream import Kernel, Stream
from calibration.kernels.work import Draw, elements, item
from sim.costs import volume

aten = torch.ops.aten


def _gelu(x: Tensor, approximate: str) -> Tensor:
    """GELU written out: x times the normal distribution function."""
    if approximate == "none":
        return x * (1 + torch.erf(x / sqrt(2))) / 2
    return x * (1 + torch.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2


def _slope(x: Tensor, approximate: str) -> Tensor:
    """Return the derivative of `_gelu`."""
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(_gelu(leaf, approximate).sum(), leaf)[0]


def _forward(approximate: str) -> Kernel:
    return Kernel(
        lambda d, r, c: (d.normal(r, c),),
        lambda x: functional.gelu(x, approximate=approximate),
        lambda _, x: _gelu(x, approximate),
    )


def _backward(approximate: str) -> Kernel:
    return Kernel(
        lambda d, r, c: (d.normal(r, c), d.normal(r, c)),
        lambda dy, x: aten.gelu_backward(dy, x, approximate=approximate),
        lambda _, dy, x: dy * _slope(x, approximate),
    )


def _swiglu_inputs(draw: Draw, r: int, c: int) -> tuple[Tensor, ...]:
    """Return gate, value, what forward keeps of the gate, and the gradient."""
    gate, value = draw.normal(r, c), draw.normal(r, c)
    return gate, value, functional.silu(gate), draw.normal(r, c)


def _swiglu_slopes(_: Tensor, gate: Tensor, value: Tensor, __: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(gate)
    return dy * value * s * (1 + gate * (1 - s)), dy * gate * s


SWIGLU = Kernel(
    lambda d, r, c: (d.normal(r, c), d.normal(r, c)),
    lambda gate, value: functional.silu(gate) * value,
    lambda _, gate, value: gate * torch.sigmoid(gate) * value,
)
SWIGLU_BACKWARD = Kernel(
    _swiglu_inputs,
    lambda gate, value, kept, dy: (aten.silu_backward(dy * value, gate), dy * kept),
    _swiglu_slopes,
)

FAMILIES = (
    Stream(
        "gelu",
        "gelu",
        "forward",
        volume.activation("forward", item, False) * elements,
        {"erf": _forward("none"), "tanh": _forward("tanh")},
        seed=20,
    ),
    Stream(
        "gelu backward",
        "gelu",
        "backward",
        volume.activation("backward", item, False) * elements,
        {"erf": _backward("none"), "tanh": _backward("tanh")},
        seed=20,
    ),
    Stream(
        "swiglu", "swiglu", "forward", volume.activation("forward", item, True) * elements, {"eager": SWIGLU}, seed=21
    ),
    Stream(
        "swiglu backward",
        "swiglu",
        "backward",
        volume.activation("backward", item, True) * elements,
        {"eager": SWIGLU_BACKWARD},
        seed=21,
    ),
)
"""Elements are those of the output."""
