"""LayerNorm whose backward pass reads its output instead of its input (Tempo, arXiv 2210.10246).

The normalised input is (y - beta) / gamma, and the gradient needs no more of the input than that:
dx = (g - mean(g) - n mean(g n)) rstd with g = dy gamma and n the normalised input. The output is the input of the
product after it, which saves it in any case; of the layer's own bytes only rstd, a number a row, remains.

Where a gamma is nearly zero, y says nothing of n. A call that finds one saves n instead of y, which is as exact as
`nn.LayerNorm` and as large as its input: nothing is gained. To decide it, every call on a GPU waits for the smallest
gamma.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from calibration.layers.tempo_kernels import kernels

LEAST_GAMMA = 0.01
"""A gamma below it is too small: n is then wrong by up to 100 times the rounding of y."""


class _Norm(torch.autograd.Function):
    """y = n gamma + beta over the last dimension, which saves y (or n) and rstd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, least: float) -> Tensor:
        """Return y of the shape of x [..., columns]."""
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], gamma, beta, eps)
        inverted = gamma is None or bool(gamma.abs().min() >= least)
        ctx.inverted = inverted
        ctx.save_for_backward(y if inverted else ((x - mean) * rstd).to(x.dtype), rstd, gamma, beta)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        """Return the gradients of x, gamma and beta."""
        kept, rstd, gamma, beta = ctx.saved_tensors
        columns, kind = kept.shape[-1], torch.promote_types(kept.dtype, torch.float32)
        vectors = _vectors(gamma, beta, ctx.inverted, torch.ones(columns, dtype=kind, device=kept.device))
        rows = [t.reshape(-1, columns).contiguous() for t in (kept, dy)]
        dx, sums = kernels(kept).norm_backward(rows[0], rstd.reshape(-1), vectors, rows[1])
        made = [None if p is None else s.to(p.dtype) for p, s in zip((gamma, beta), sums, strict=True)]
        return dx.view(kept.shape), *made, None, None


def _vectors(gamma: Tensor | None, beta: Tensor | None, inverted: bool, one: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return gamma, and what to subtract from the saved rows and to multiply them by, for the normalised input."""
    scale = one if gamma is None else gamma.to(one.dtype)
    shift = beta.to(one.dtype) if inverted and beta is not None else torch.zeros_like(one)
    return scale, shift, one / scale if inverted else one


class OutputLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last dimension that saves its output instead of its input.

    least_gamma: a call with a smaller |gamma| saves the normalised input. As the output has been rounded, the gradient
    of gamma is less accurate in bf16: its relative error, 1.7e-3 from the input, is 2.5e-3 with gamma 1 and beta up to
    0.5, 8.9e-3 with gamma 0.1 and beta 0.5, 3.5e-2 with gamma 0.1 and beta 2. A larger `least_gamma` bounds it.
    """

    least_gamma = LEAST_GAMMA

    @classmethod
    def of(cls, norm: nn.LayerNorm, least_gamma: float = LEAST_GAMMA) -> Self:
        """Return a layer in the place of `norm`, with its own parameters."""
        made = cls(norm.normalized_shape, norm.eps, norm.elementwise_affine, device="meta")
        made.weight, made.bias, made.least_gamma = norm.weight, norm.bias, least_gamma
        return made.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised x, of its shape."""
        if not torch.is_grad_enabled():
            return super().forward(x)
        y: Tensor = _Norm.apply(x, self.weight, self.bias, self.eps, self.least_gamma)  # type: ignore[no-untyped-call]
        return y
