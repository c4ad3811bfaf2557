"""Attention over context-parallel ranks: kernels on chunks of the sequence, what travels, what adds results up.

Ring Attention (arXiv 2310.01889) with both ends of the sequence on one rank, so that the causal mask is balanced: every
exchange brings the work of half of a rank's own queries times keys.

PyTorch's (`ring` = 1; torch 2.6 to 2.13, `torch.distributed.tensor.experimental._attention`, later
`_context_parallel/_attention.py`) gathers all keys and values in one collective that only the kernel on a rank's own
chunk hides (`_AllGatherRotater`, the default), in the forward pass and again in the backward pass, and passes their
fp32 gradients on after every chunk by a permutation (`_AllToAllRotater`), the last of which nothing hides. Results are
added up by element-wise kernels in fp32 (`_SDPAMerger`, `_partial_update`, `convert_to_f32`). Key and value heads are
repeated before (`repeat_kv` in torchtitan's `models/llama/model.py`), so that all of it has the width of the queries.
The last rank has most to do: all of its queries are updated at each exchange.

Other frameworks are taken to exchange beside the whole kernel and to add up inside it.
"""

from dataclasses import replace

from sim.costs import kernels
from sim.costs.algebra import Expr, minimum, symbol
from sim.costs.kernels import element_bytes
from sim.costs.layers.ops import (
    Op,
    Sizes,
    cp,
    cp_group,
    elementwise_seconds,
    hidden_beside,
    kv_columns,
    query_width,
    tp,
    v_width,
)

ring = symbol("ring")
"""1 where attention over context-parallel ranks is PyTorch's."""
FP32 = 4
CAST = element_bytes + FP32
"""Bytes of an element read in 16 bit and written in fp32, or the other way round."""
ADDED = CAST + FP32
"""Bytes of a 16-bit element added to an fp32 one."""
JOINED = 2 * FP32
"""Bytes of an fp32 element copied where parts are joined (`torch.cat`)."""
MERGED = CAST + 3 * FP32 + 2 * FP32 + 3 * FP32
"""Bytes of an element of a partial result: cast, out - new, gate * that, out - that."""


def exchanged(latent: bool = False) -> Expr:
    """Return the key and value columns of a rank that travel between context-parallel ranks."""
    width = (query_width + v_width) / tp
    return width if latent else ring * width + (1 - ring) * 2 * kv_columns


def in_chunks(op: Op, size: Sizes) -> Op:
    """Return the fused attention of all keys as one kernel for every rank's keys, with what adds their results up.

    Keys and values are joined at every exchange, though sent at the first. Backward, an exchange adds to all gradients
    of the queries, and to those of the first half of the keys and values; these are joined with the rest, and both with
    each other to be sent. Once: keys and values made contiguous; zeroed sums; the first results cast or added, their
    sums laid out by heads and joined, and the last cast back.
    """
    forward = op.phase == "forward"
    queries, both = (v_width if forward else query_width) / tp, (query_width + v_width) / tp
    copied = 2 * element_bytes * both
    if forward:
        once, each = copied + 2 * CAST * queries, copied + MERGED * queries
    else:
        once = copied + (FP32 + ADDED + CAST) * (queries + both) + 2 * JOINED * both
        each = copied + ADDED * queries + (ADDED / 2 + 2 * JOINED) * both
    more = ring * size.tokens * (minimum(1, cp - 1) * once + (cp - 1) * each)
    time = elementwise_seconds(more) + (cp - 1) * symbol(kernels.parameter("attention", _direction(op), "t0"))
    return replace(op, seconds=op.seconds + time, bytes=op.bytes + more)


def _direction(op: Op) -> str:
    return "forward" if op.phase == "forward" else "backward"


def exchanges(name: str, attention: list[Op], keys: Expr, latent: bool) -> list[Op]:
    """Return what context-parallel ranks exchange beside the `attention` kernels of the forward and backward pass.

    name: in front of those of the exchanges; keys: rows of keys that a rank has. Elsewhere than in PyTorch backward
    passes keys and values round again and their gradients with them.
    """
    part = keys * exchanged(latent)
    whole = element_bytes * part * cp
    once = cp_group.all_gather(whole)
    forward, backward = attention
    sums = cp_group.shift(FP32 * part)
    gathered = [hidden_beside(once, op.seconds / cp) for op in attention]
    passed = (cp - 1) * hidden_beside(sums, backward.seconds / cp) + minimum(1, cp - 1) * sums
    other = 1 - ring
    return [
        Op(f"{name}key-value gather", "forward", "cp", ring * gathered[0], 0, ring * whole),
        Op(f"{name}key-value gather again", "backward_input", "cp", ring * gathered[1], 0, ring * whole),
        Op(f"{name}key-value gradients", "backward_input", "cp", ring * passed, 0, ring * FP32 * part * cp),
        Op(f"{name}key-value ring", "forward", "cp", other * once, 0, other * whole, forward.name),
        Op(
            f"{name}key-value gradient ring",
            "backward_input",
            "cp",
            other * 2 * once,
            0,
            other * 2 * whole,
            backward.name,
        ),
    ]


def saved(tokens: Expr) -> Expr:
    """Return the bytes that PyTorch's ring saves beyond what one fused kernel does.

    Keys and values as wide as the queries; and the context twice: ranks other than the last join its halves (`cat` lays
    them out by heads), so that the product after it saves a copy laid out by tokens.
    """
    wider = (query_width + v_width) / tp - 2 * kv_columns
    return minimum(1, cp - 1) * ring * element_bytes * tokens * (wider + v_width / tp)


def temporary(tokens: Expr) -> Expr:
    """Return the bytes that PyTorch's ring holds beside the gradients of queries, keys and values in a backward pass.

    Gathered keys and values; fp32 gradients of the queries; those of keys and values received, summed and joined.
    """
    queries, both = query_width / tp, (query_width + v_width) / tp
    held = FP32 * queries + (3 * FP32 + element_bytes * cp) * both + element_bytes * (both - 2 * kv_columns)
    return minimum(1, cp - 1) * ring * tokens * held
