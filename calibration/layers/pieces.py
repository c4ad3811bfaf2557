"""Tempo's layers in pieces: rows of torch's own operations, a part of the numbers at a time.

Where no fused kernel is (`calibration.layers.tempo_kernels.kernels` says where), and what those are held against.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from calibration.layers.gelu_table import ENTRIES, entries, table

PIECE = 2**15
"""Numbers that are worked on at once: few enough that what is made on the way is small beside the gradient."""


@dataclass(frozen=True)
class TorchKernels:
    """Operations of torch, on any device and dtype; 16-bit numbers are computed with in fp32."""

    def gelu(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return GELU of x, and where x is right of its minimum."""
        return functional.gelu(x), x >= table().at

    def gelu_backward(self, y: Tensor, right: Tensor, dy: Tensor) -> Tensor:
        """Return dy times the derivative at output y, right of the minimum or left of it."""
        held, kind = table(), torch.promote_types(y.dtype, torch.float32)
        derivatives = entries(kind, y.device)
        rises = functional.pad(derivatives.diff(), (0, 1))
        steps = torch.as_tensor(held.steps, dtype=kind, device=y.device)
        dx = torch.empty_like(y)
        for outputs, side, above, out in _parts((y.view(-1), right.view(-1), dy.view(-1), dx.view(-1)), PIECE):
            u = (outputs.to(kind) - held.minimum).clamp_(min=0).sqrt_()
            u.mul_(torch.where(side, steps[1], steps[0])).clamp_(max=ENTRIES - 1)
            entry = u.nan_to_num(nan=0.0).floor_().clamp_(max=ENTRIES - 2)
            u.sub_(entry)
            index = entry.int().add_(side, alpha=ENTRIES)
            slope = derivatives.index_select(0, index).addcmul_(u, rises.index_select(0, index))
            out.copy_(slope.mul_(above))
        return dx

    def norm_backward(self, kept: Tensor, rstd: Tensor, vectors: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of x, and the sums of those of gamma and beta."""
        gamma, shift, inverse = vectors
        dx, sums = torch.empty_like(kept), torch.zeros(2, kept.shape[-1], dtype=gamma.dtype, device=kept.device)
        rows = max(1, PIECE // max(1, kept.shape[-1]))
        for part, above, out, deviation in _parts((kept, dy, dx, rstd), rows):
            n, g = part.to(gamma.dtype, copy=True), above.to(gamma.dtype, copy=True)
            n.sub_(shift).mul_(inverse)
            sums += torch.stack([(g * n).sum(0), g.sum(0)])
            g.mul_(gamma)
            projected = (g * n).mean(-1, keepdim=True)
            out.copy_(g.sub_(g.mean(-1, keepdim=True)).sub_(n.mul_(projected)).mul_(deviation[:, None]))
        return dx, sums

    def core_backward(self, shares: Tensor, kept: Tensor, scale: float, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the scores and the dropout's output."""
        d = torch._softmax_backward_data(d.mul_(kept).mul_(scale), shares, -1, shares.dtype)
        return d, (shares * kept).mul_(scale)


def _parts(tensors: Sequence[Tensor], length: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield so many of the first dimension of all of them at a time."""
    yield from zip(*(torch.split(t, length) for t in tensors), strict=True)
