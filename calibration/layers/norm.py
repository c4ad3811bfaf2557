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

from calibration.layers.gelu import PIECE

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
        dx = torch.empty_like(kept, memory_format=torch.contiguous_format)
        sums = [torch.zeros(columns, dtype=kind, device=kept.device) for _ in range(2)]
        rows = max(1, PIECE // columns)
        both = [t.reshape(-1, columns).split(rows) for t in (kept, dy, dx)]
        for part, above, out, deviation in zip(*both, rstd.reshape(-1, 1).split(rows), strict=True):
            n, g = part.to(kind, copy=True), above.to(kind, copy=True)
            if ctx.inverted and beta is not None:
                n.sub_(beta)
            if ctx.inverted and gamma is not None:
                n.div_(gamma)
            sums[0] += (g * n).sum(0)
            sums[1] += g.sum(0)
            if gamma is not None:
                g.mul_(gamma)
            projected = (g * n).mean(-1, keepdim=True)
            out.copy_(g.sub_(g.mean(-1, keepdim=True)).sub_(n.mul_(projected)).mul_(deviation))
        made = [None if p is None else s.to(p.dtype) for p, s in zip((gamma, beta), sums, strict=True)]
        return dx, *made, None, None


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
