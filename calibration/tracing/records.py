"""From an operation as torch dispatches it to the kernels it stands for, with their sizes.

A record is (kind, sizes, causal, masked, channels); `sizes` follow `sim.specs.table.SIZES`, as `channels` do
`sim.specs.table.Op`. Bytes are what an eager kernel reads and writes once; views are free.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from sim.specs.fields import InputError

aten = torch.ops.aten


class Record(NamedTuple):
    """One kernel at one micro-batch size."""

    kind: str
    sizes: tuple[int, ...]
    causal: bool = False
    masked: bool = False
    channels: int | None = None


Call = Callable[[tuple[Any, ...], Any], Iterator[Record]]


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in nested arguments or results."""
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def storage_key(t: Tensor) -> int:
    """Return what identifies a tensor's storage while that is alive."""
    return int(t.untyped_storage()._cdata)


def extent(t: Tensor) -> int:
    """Return the bytes behind a tensor: an expanded one is no larger than its storage."""
    return min(t.numel() * t.itemsize, t.untyped_storage().nbytes())


def total(*trees: Any) -> int:
    """Return the bytes behind all tensors: each view of a storage once, of no storage more than there is."""
    found: dict[int, dict[Any, Tensor]] = {}
    for t in tensors(trees):
        found.setdefault(storage_key(t), {})[t.storage_offset(), t.shape, t.stride()] = t
    stored = (list(views.values()) for views in found.values())
    return sum(min(sum(map(extent, views)), views[0].untyped_storage().nbytes()) for views in stored)


def _mm(args: tuple[Any, ...], _: Any) -> Iterator[Record]:
    (m, k), n = args[0].shape, args[1].shape[1]
    yield Record("gemm", (m, n, k, 1))


def _bmm(args: tuple[Any, ...], _: Any) -> Iterator[Record]:
    (batch, m, k), n = args[0].shape, args[1].shape[2]
    yield Record("gemm", (m, n, k, batch))


def _implicit(x: Tensor, weight: Tensor, out: Tensor, transposed: bool, groups: int) -> tuple[int, int, int]:
    """Return (m, n, k) of a group's implicit product; a transposed convolution is the input gradient of a plain one."""
    small = x if transposed else out
    m = small.shape[0] * prod(small.shape[2:])
    filters, taps = weight.shape[0] // groups, weight.shape[1] * prod(weight.shape[2:])
    return (m, taps, filters) if transposed else (m, filters, taps)


def _kind(weight: Tensor) -> str:
    """Return what runs a convolution: one that sees a single place at a time is a product of matrices."""
    return "convolution" if prod(weight.shape[2:]) > 1 else "gemm"


def _channels(weight: Tensor, transposed: bool) -> int | None:
    """Return the channels of the images (of a group) that a convolution reads; None of a transposed one, a product."""
    return None if transposed or _kind(weight) == "gemm" else weight.shape[1]


def _convolution(args: tuple[Any, ...], out: Any) -> Iterator[Record]:
    transposed, groups = args[6], args[8]
    sizes = (*_implicit(args[0], args[1], out, transposed, groups), groups)
    yield Record(_kind(args[1]), sizes, channels=_channels(args[1], transposed))


def _convolution_backward(args: tuple[Any, ...], _: Any) -> Iterator[Record]:
    grad, x, weight, transposed, groups, mask = args[0], args[1], args[2], args[7], args[9], args[10]
    m, n, k = _implicit(x, weight, grad, transposed, groups)
    channels = _channels(weight, transposed)
    if mask[0]:
        yield Record(_kind(weight), (m, k, n, groups), channels=channels)
    if mask[1]:
        yield Record(_kind(weight), (n, k, m, groups), channels=channels)
    if mask[2]:
        yield Record("elementwise", (total(grad) + grad.shape[1] * grad.itemsize,))


BLOCK = 8
"""Channels that oneDNN keeps together on a host processor (its layouts nChw8c and nChw16c)."""


def copied(func: Any, args: tuple[Any, ...], out: Any) -> int:
    """Return the bytes that a host processor's convolution copies: what it reads and what it writes, in whole blocks of
    channels; 0 for any other operation."""
    if func.overloadpacket is aten.convolution:
        return sum(map(_blocked, (args[0], out)))
    return sum(map(_blocked, args[:2])) if func.overloadpacket is aten.convolution_backward else 0


def _blocked(t: Tensor) -> int:
    return t.numel() // t.shape[1] * -(-t.shape[1] // BLOCK) * BLOCK * t.itemsize


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Iterator[Record]:
    batch, heads, queries, dim = q.shape
    sizes = (batch, heads, k.shape[1], dim, v.shape[-1], queries, k.shape[2])
    yield Record("attention", sizes, causal, mask is not None)


def _attention_forward(args: tuple[Any, ...], _: Any) -> Iterator[Record]:
    q, k, v, mask, causal = args
    return _attention(q, k, v, mask, causal)


def _attention_backward(args: tuple[Any, ...], _: Any) -> Iterator[Record]:
    _, q, k, v, mask, _, _, causal = args
    return _attention(q, k, v, mask, causal)


def _norm(columns: Callable[[tuple[Any, ...]], int]) -> Call:
    """Return the reader of a normalisation; a backward one (with an output mask) is a kernel per wanted gradient."""

    def read(args: tuple[Any, ...], out: Any) -> Iterator[Record]:
        mask = args[-1] if isinstance(args[-1], list) and isinstance(args[-1][0], bool) else None
        inputs, results = tensors(args), tensors(out)
        width = columns(args)
        if mask is None:
            yield Record("norm", (total(inputs) + total(results), width))
            return
        if mask[0]:
            yield Record("norm", (total(inputs) + total(out[0]), width))
        if any(mask[1:]):
            yield Record("norm", (total(args[:2]) + total(out[1:]), width))

    return read


def _softmax(args: tuple[Any, ...], out: Any) -> Iterator[Record]:
    backward = isinstance(args[1], Tensor)
    dim = args[2] if backward else args[1]
    yield Record("softmax", (total(args) + total(out), args[0].shape[dim]))


def _lookup(args: tuple[Any, ...], out: Any) -> Iterator[Record]:
    """Read as many rows as are written, not the whole table."""
    yield Record("embedding", (2 * total(out) + total(args[1:]),))


def _lookup_backward(args: tuple[Any, ...], out: Any) -> Iterator[Record]:
    yield Record("embedding", (total(args) + total(out),))


def _bags(table: int) -> Call:
    """Return the reader of sums over rows of the table that is argument `table`, whose numbers follow it."""

    def read(args: tuple[Any, ...], out: Any) -> Iterator[Record]:
        weight, numbers = args[table : table + 2]
        rows = numbers.numel() * weight.shape[1] * weight.itemsize
        yield Record("embedding", (rows + total(args[:table], args[table + 1 :]) + total(out),))

    return read


def _picked(args: tuple[Any, ...], out: Any) -> Iterator[Record]:
    """Read the one log-probability of every target, not all of them."""
    logs, target, weight = args[:3]
    yield Record("elementwise", (target.numel() * logs.itemsize + total(target, weight) + total(out),))


def _picked_backward(args: tuple[Any, ...], out: Any) -> Iterator[Record]:
    """Write a gradient of zeros but at the targets: the log-probabilities (argument 1) are not read."""
    yield Record("elementwise", (total(args[0], args[2:]) + total(out),))


def _scatter(in_place: bool) -> Call:
    """Read new values and their places; read and write what they are added to (a copy of it if not in place)."""

    def read(args: tuple[Any, ...], _: Any) -> Iterator[Record]:
        target, *places, values = tensors(args)
        yield Record("elementwise", (3 * total(values) + total(places) + (0 if in_place else 2 * total(target)),))

    return read


def _placed(in_place: bool) -> Call:
    """Read as many new values as there are places, or one for all of them, and write these (into a copy if not in
    place)."""

    def read(args: tuple[Any, ...], _: Any) -> Iterator[Record]:
        target, _, places, values = args[:4]
        written = places.numel() * target.itemsize
        read = min(written, extent(values)) if isinstance(values, Tensor) else 0
        yield Record("elementwise", (read + written + total(places) + (0 if in_place else 2 * total(target)),))

    return read


def _last_of_shape(args: tuple[Any, ...]) -> int:
    return prod(next(a for a in args if isinstance(a, list | tuple) and all(type(i) is int for i in a)))


READERS: Mapping[Any, Call] = {
    aten.mm: _mm,
    aten.addmm: lambda args, out: _mm(args[1:], out),
    aten.bmm: _bmm,
    aten.baddbmm: lambda args, out: _bmm(args[1:], out),
    aten.addbmm: lambda args, out: _bmm(args[1:], out),
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    torch.ops.trainsim.attention: _attention_forward,
    torch.ops.trainsim.attention_backward: _attention_backward,
    torch.ops.trainsim.rms_norm: _norm(lambda a: a[2]),
    torch.ops.trainsim.rms_norm_backward: _norm(lambda a: a[4]),
    torch.ops.trainsim.rms_norm_backward_weight: _norm(lambda a: a[4]),
    aten.native_layer_norm: _norm(_last_of_shape),
    aten.native_layer_norm_backward: _norm(_last_of_shape),
    aten.native_group_norm: _norm(lambda a: a[4] * a[5] // a[6]),
    aten.native_group_norm_backward: _norm(lambda a: a[6] * a[7] // a[8]),
    aten.native_batch_norm: _norm(lambda a: a[0].numel() // a[0].shape[1]),
    aten.native_batch_norm_backward: _norm(lambda a: a[1].numel() // a[1].shape[1]),
    aten._softmax: _softmax,
    aten._log_softmax: _softmax,
    aten._safe_softmax: _softmax,
    aten._softmax_backward_data: _softmax,
    aten._log_softmax_backward_data: _softmax,
    aten.embedding: _lookup,
    aten.gather: _lookup,
    aten.index: _lookup,
    aten.index_select: _lookup,
    aten.embedding_dense_backward: _lookup_backward,
    aten._embedding_bag: _bags(0),
    aten._embedding_bag_forward_only: _bags(0),
    aten._embedding_bag_backward: _lookup_backward,
    aten._embedding_bag_dense_backward: _lookup_backward,
    aten._embedding_bag_per_sample_weights_backward: _bags(1),
    aten.nll_loss_forward: _picked,
    aten.nll_loss_backward: _picked_backward,
    aten.nll_loss2d_forward: _picked,
    aten.nll_loss2d_backward: _picked_backward,
    aten.index_put: _scatter(in_place=False),
    aten.index_put_: _scatter(in_place=True),
    aten._unsafe_index_put: _scatter(in_place=False),
    aten._index_put_impl_: _scatter(in_place=True),
    aten.index_add: _scatter(in_place=False),
    aten.index_add_: _scatter(in_place=True),
    aten.scatter_add: _scatter(in_place=False),
    aten.scatter_add_: _scatter(in_place=True),
    aten.scatter: _placed(in_place=False),
    aten.scatter_: _placed(in_place=True),
}
OPAQUE = (
    "rnn_layer", "cudnn_rnn", "_thnn_fused", "flash_attention", "efficient_attention", "cudnn_attention",
    "_trilinear", "conv_tbc",
)  # fmt: skip
"""Parts of the names of kernels that hold products and have no record here."""
ALLOCATIONS = (aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided)
OVERWRITES = (aten.copy_, aten.fill_, aten.zero_)


def records(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Record]:
    """Return the kernels of one dispatched operation (none for a view or an allocation).

    Raises:
        InputError: an operation with products inside that has no record.
    """
    packet = func.overloadpacket
    reader = READERS.get(packet)
    if reader:
        return list(reader(args, out))
    if packet in flop_registry or any(part in func.name() for part in OPAQUE):
        raise InputError("module", func.name(), "operations whose products can be counted")
    if packet in ALLOCATIONS or getattr(func, "is_view", False):
        return []
    inputs, results = tensors((args, kwargs)), tensors(out)
    mutable = func._schema.is_mutable
    known = {storage_key(t) for t in inputs}
    if not results or (not mutable and all(storage_key(t) in known for t in results)):
        return []
    read = inputs[1:] if packet in OVERWRITES else inputs
    moved = total(read) + total(results)
    return [Record("elementwise", (moved,))] if moved else []
