"""Tensor and sequence parallelism of one layer's products, as Megatron-LM splits them (arXiv 1909.08053, 2205.05198).

Rows of the first product of each half and columns of the second are split over the ranks of a group; with sequence
parallelism what lies between the halves is split along the sequence (dimension 1).

PyTorch's own (`torch.distributed.tensor.parallel` on DTensor) was tried in its place: on gloo and torch 2.13 its
collectives run, and gradients agree to 3e-8, but it follows another law than the one that `sim.costs` predicts. With
sequence parallelism it keeps the gathered input of a product split by columns for the backward, where here (and in
Megatron-LM) a rank keeps its part and gathers again: two gathers a layer fewer, tp times the bytes of that input. The
gradient of a table split by rows it makes whole on every rank.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

DIMENSION = {"qkv": 0, "up": 0, "out": 1, "down": 1, "tokens": 0, "head": 0}
"""Which dimension of a module's weight is split; a bias where that is 0."""


@dataclass(frozen=True)
class Split:
    """One rank of a tensor-parallel group of `size`; `sequence`: whether sequence parallelism is on."""

    group: dist.ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    sequence: bool = False

    def part(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's part of a tensor."""
        return tensor.chunk(self.size, dim)[self.rank]

    def sum(self, tensor: Tensor, maximum: bool = False) -> Tensor:
        """Return the sum (or the maximum) of the ranks' tensors, element by element, in place."""
        tensor = tensor.contiguous()
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM, group=self.group)
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the ranks' parts of a sequence put together."""
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous(), group=self.group)
        return torch.cat(parts, 1)

    def scatter(self, tensor: Tensor) -> Tensor:
        """Return this rank's part of the sum of the ranks' sequences.

        By an exchange of parts: gloo has no reduce-scatter.
        """
        parts = torch.stack(tensor.chunk(self.size, 1))
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts, group=self.group)
        return received.sum(0)


class Enter(Function):
    """As it is forward; backward the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: Split) -> Tensor:
        """Return x[...]."""
        ctx.split = split
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient summed over the ranks."""
        return ctx.split.sum(gradients[0]), None


class Leave(Function):
    """The sum over the ranks forward, or with sequence parallelism this rank's part of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: Split) -> Tensor:
        """Return the sum of x[batch, seq, hidden] over the ranks."""
        ctx.split = split
        return split.scatter(x) if split.sequence else split.sum(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient, gathered where the sequence was split."""
        return ctx.split.gather(gradients[0]) if ctx.split.sequence else gradients[0], None


class Gathered(Function):
    """A product of a sequence that is gathered for it, and once more for its weight's gradient (arXiv 2205.05198)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, split: Split) -> Tensor:
        """Return x[batch, seq / size, n] gathered, times the transpose of weight[m, n]."""
        ctx.save_for_backward(x, weight)
        ctx.split = split
        return functional.linear(split.gather(x), weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of x and weight."""
        x, weight = ctx.saved_tensors
        whole, gradient = ctx.split.gather(x), gradients[0]
        mine = ctx.split.scatter(gradient @ weight)
        return mine, gradient.flatten(0, 1).mT @ whole.flatten(0, 1), None


def _through(function: type[Function], *given: Any) -> Tensor:
    out: Tensor = function.apply(*given)  # type: ignore[no-untyped-call]
    return out


class Columns(nn.Module):
    """A product whose outputs are split over the ranks."""

    def __init__(self, whole: nn.Linear, split: Split) -> None:
        super().__init__()
        self.split = split
        self.weight = nn.Parameter(split.part(whole.weight.detach(), 0).clone())
        self.bias = None if whole.bias is None else nn.Parameter(split.part(whole.bias.detach(), 0).clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's outputs of x[batch, seq, hidden]."""
        if not self.split.sequence:
            return functional.linear(_through(Enter, x, self.split), self.weight, self.bias)
        out = _through(Gathered, x, self.weight, self.split)
        return out if self.bias is None else out + self.bias

    @classmethod
    def of(cls, whole: nn.Linear, split: Split) -> "nn.Linear | Columns":
        """Return the product, split if there is more than one rank."""
        return cls(whole, split) if split.size > 1 else whole


class Rows(nn.Module):
    """A product whose inputs are split over the ranks; its bias is added once, after the sum."""

    def __init__(self, whole: nn.Linear, split: Split) -> None:
        super().__init__()
        self.split = split
        self.weight = nn.Parameter(split.part(whole.weight.detach(), 1).clone())
        self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return the product of x[batch, seq, n / size], summed over the ranks."""
        out = _through(Leave, functional.linear(x, self.weight), self.split)
        return out if self.bias is None else out + self.bias


class Table(nn.Module):
    """An embedding whose rows are split over the ranks."""

    def __init__(self, whole: nn.Embedding, split: Split) -> None:
        super().__init__()
        self.split = split
        self.weight = nn.Parameter(split.part(whole.weight.detach(), 0).clone())

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the rows of tokens[batch, seq]."""
        index = tokens - self.split.rank * len(self.weight)
        other = (index < 0) | (index >= len(self.weight))
        found = functional.embedding(index.masked_fill(other, 0), self.weight).masked_fill(other[..., None], 0.0)
        return _through(Leave, found, self.split)

    @classmethod
    def of(cls, whole: nn.Embedding, split: Split) -> "nn.Embedding | Table":
        """Return the embedding, split if there is more than one rank."""
        return cls(whole, split) if split.size > 1 else whole


def cross_entropy(logits: Tensor, targets: Tensor, split: Split) -> Tensor:
    """Return the mean fp32 cross-entropy of targets[n] by logits[n, vocab / size] (arXiv 1909.08053, section 3)."""
    logits = logits.float()
    if split.size == 1:
        return functional.cross_entropy(logits, targets)
    shifted = logits - split.sum(logits.detach().amax(1), maximum=True)[:, None]
    index = targets - split.rank * logits.shape[1]
    other = (index < 0) | (index >= logits.shape[1])
    found = shifted.gather(1, index.masked_fill(other, 0)[:, None])[:, 0].masked_fill(other, 0.0)
    whole = Split(split.group, split.rank, split.size)  # rows of the loss are never split
    target, total = (_through(Leave, part, whole) for part in (found, shifted.exp().sum(1)))
    loss: Tensor = (total.log() - target).mean()
    return loss
