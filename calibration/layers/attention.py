"""The core of attention on stored scores: softmax, dropout and the product with the values.

As usual, and as one function that keeps one matrix of scores less (Tempo, arXiv 2210.10246).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from calibration.layers.tempo_kernels import kernels
from calibration.layers.transforms import transformed
from sim.specs.fields import InputError


class AttentionCore(nn.Module):
    """softmax(scores), dropout with probability p, product with the values; on any device dropout keeps byte masks.

    Saves the softmax's output, the mask and the dropout's output: 2 e + 1 bytes a score.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.p = p

    def forward(self, scores: Tensor, values: Tensor) -> Tensor:
        """Return the context [..., queries, columns] of scores [..., queries, keys] (scaled and masked) and values
        [..., keys, columns]."""
        shares = torch.softmax(scores, -1)
        if self.training and self.p:
            shares = torch.native_dropout(shares, self.p, True)[0]
        return shares @ values


class _Core(torch.autograd.Function):
    """The same, which makes the dropout's output again."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor, p: float) -> Tensor:
        """Return the context."""
        shares = torch.softmax(scores, -1)
        dropped, kept = torch.native_dropout(shares, p, True)
        # As torch's own product does: a part of a larger tensor (queries, keys and values in one) is copied unless
        # its matrices can be told apart where they are.
        flat = values.reshape(-1, *values.shape[-2:])
        ctx.scale = 1 / (1 - p) if p < 1 else 0.0
        context = torch.bmm(dropped.view(-1, *dropped.shape[-2:]), flat)
        ctx.save_for_backward(shares, kept, flat.to(context.dtype))  # autocast computes products in 16 bit
        return context.view(*scores.shape[:-1], flat.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        """Return the gradients of scores and values."""
        shares, kept, flat = ctx.saved_tensors
        above, rows = dy.reshape(-1, *dy.shape[-2:]), (-1, shares.shape[-1])
        d_scores, dropped = kernels(shares).core_backward(
            shares.view(rows), kept.view(rows), ctx.scale, torch.bmm(above, flat.mT).to(shares.dtype).view(rows)
        )
        d_values = torch.bmm(dropped.to(above.dtype).view(-1, *shares.shape[-2:]).mT, above)
        return d_scores.view(shares.shape), d_values.view(*dy.shape[:-2], *flat.shape[-2:]), None


class RecomputedCore(AttentionCore):
    """`AttentionCore` that saves the softmax's output and the mask alone, e + 1 bytes a score.

    Without dropout there is nothing to make again, and it is `AttentionCore`. With it scores and values have equal
    leading dimensions.
    """

    def forward(self, scores: Tensor, values: Tensor) -> Tensor:
        """Return the context, as `AttentionCore.forward`.

        Raises:
            InputError: leading dimensions differ.
        """
        if not (self.training and self.p and torch.is_grad_enabled()) or transformed():
            return super().forward(scores, values)
        if scores.shape[:-2] != values.shape[:-2]:
            raise InputError("values", tuple(values.shape), f"leading dimensions {tuple(scores.shape[:-2])}, as scores")
        context: Tensor = _Core.apply(scores, values, self.p)  # type: ignore[no-untyped-call]
        return context
