"""CUDA's choices while tracing on fake CPU tensors: which kernel runs decides what is saved for backward.

On CPU `dropout` saves a scaled mask in the data type, attention falls back to plain products where head sizes
differ or dropout is on, and RMSNorm is spelt out; on CUDA a byte mask, one fused kernel that keeps the fp32
logsumexp (arXiv 2205.14135), and one fused kernel that keeps the fp32 reciprocal of the norm.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

F = TypeVar("F", bound=Callable[..., Any])
WEIGHT_GRADIENTS: ContextVar[bool] = ContextVar("weight gradients", default=True)
"""False in a backward pass to activations alone: torch does not tell Python functions which gradients it wants."""

LIBRARY = torch.library.Library("trainsim", "DEF")  # type: ignore[no-untyped-call]


def _shapes(schema: str) -> Callable[[F], F]:
    """Declare an operation of which only the results' shapes are known: it runs on fake tensors."""

    def register(fake: F) -> F:
        LIBRARY.define(schema)  # type: ignore[no-untyped-call]
        torch.library.register_fake("trainsim::" + schema.partition("(")[0], fake, lib=LIBRARY)
        return fake

    return register


@_shapes("attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal) -> (Tensor, Tensor)")
def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    batch, heads, queries, dim = q.shape
    # Laid out as the queries are if those are dense, else (batch, query, head, dim): whether merging the heads copies.
    by_query = q.transpose(1, 2)
    like = torch.empty_like(by_query) if v.shape[-1] == dim else q.new_empty(batch, queries, heads, v.shape[-1])
    out = like.transpose(1, 2)
    return out, q.new_empty(batch, heads, queries, dtype=torch.float32)


@_shapes(
    "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor out, Tensor lse, bool causal)"
    " -> (Tensor, Tensor, Tensor)"
)
def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@_shapes("rms_norm(Tensor x, Tensor? weight, int columns) -> (Tensor, Tensor)")
def _rms_norm(x: Tensor, weight: Tensor | None, columns: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.numel() // columns, dtype=torch.float32)


@_shapes("rms_norm_backward(Tensor grad, Tensor x, Tensor rstd, Tensor? weight, int columns) -> Tensor")
def _rms_norm_backward(grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor | None, columns: int) -> Tensor:
    return torch.empty_like(x)


@_shapes("rms_norm_backward_weight(Tensor grad, Tensor x, Tensor rstd, Tensor weight, int columns) -> Tensor")
def _rms_norm_backward_weight(grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, columns: int) -> Tensor:
    return torch.empty_like(weight)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        out, lse = torch.ops.trainsim.attention(q, k, v, mask, causal)
        ctx.save_for_backward(q, k, v, mask, out, lse)
        ctx.causal = causal
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, mask, out, lse = ctx.saved_tensors
        grads = torch.ops.trainsim.attention_backward(grad, q, k, v, mask, out, lse, ctx.causal)
        bias = torch.empty_like(mask) if ctx.needs_input_grad[3] else None
        return *grads, bias, None


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, columns: int) -> Tensor:
        out, rstd = torch.ops.trainsim.rms_norm(x, weight, columns)
        ctx.save_for_backward(x, rstd, weight)
        ctx.columns = columns
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, rstd, weight = ctx.saved_tensors
        args = (grad, x, rstd, weight, ctx.columns)
        to_weight = ctx.needs_input_grad[1] and WEIGHT_GRADIENTS.get()
        dx = torch.ops.trainsim.rms_norm_backward(*args) if ctx.needs_input_grad[0] else None
        dw = torch.ops.trainsim.rms_norm_backward_weight(*args) if to_weight else None
        return dx, dw, None


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return `functional.dropout` with a byte mask."""
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    return dropout(input, p, train)


def rms_norm(
    input: Tensor, normalized_shape: Iterable[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Return `functional.rms_norm` as one kernel."""
    return _RMSNorm.apply(input, weight, torch.Size(normalized_shape).numel())  # type: ignore[no-any-return, no-untyped-call]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return `functional.scaled_dot_product_attention` as one kernel; shapes (batch, heads, length, head_dim)."""
    if query.dim() == 3:
        query, key, value = (t.unsqueeze(1) for t in (query, key, value))
        return attention(query, key, value, attn_mask, dropout_p, is_causal).squeeze(1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, float("-inf")).to(query.dtype)
    return _Attention.apply(query, key, value, attn_mask, is_causal)  # type: ignore[no-any-return, no-untyped-call]


CUDA: Mapping[Callable[..., Any], Callable[..., Tensor]] = {
    functional.dropout: dropout,
    torch.dropout: _dropout,
    functional.scaled_dot_product_attention: attention,
    functional.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
}


class Choices(TorchFunctionMode):
    """Replaces torch functions by `table`'s while active."""

    def __init__(self, table: Mapping[Callable[..., Any], Callable[..., Tensor]] = CUDA) -> None:
        super().__init__()
        self.table = table

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.table:
            return self.table[func](*args, **(kwargs or {}))
        if func is functional.multi_head_attention_forward:  # its own calls are not seen by this mode
            known = {f: f.__name__ for f in self.table if vars(functional).get(f.__name__) is f}
            inner: dict[str, Any] = {name: self.table[f] for f, name in known.items()}
            with patch.multiple(functional, **inner):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
