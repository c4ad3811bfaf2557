"""Token mixers: attention (fused or over stored scores, grouped heads, windows), MLA, cross-attention, Mamba-2."""

from collections.abc import Iterator
from typing import NamedTuple

from sim.costs import kernels, volume
from sim.costs.algebra import Expr, minimum, symbol
from sim.costs.kernels import element_bytes
from sim.costs.layers import tempo
from sim.costs.layers.ops import (
    Op,
    Sizes,
    cp,
    cp_group,
    gathered_again,
    gemm,
    head_dim,
    heads,
    hidden,
    in_core,
    in_fp32,
    kv_columns,
    micro_batch,
    moved,
    native,
    norm,
    query_width,
    repeated,
    residual,
    sequence_parallel,
    tp,
    tp_group,
    traffic_seconds,
    v_width,
)
from sim.costs.layers.ring import exchanges, in_chunks
from sim.costs.layers.structure import BlockKind

FLASH_BACKWARD_FLOP = 2.5  # dQ, dK, dV, dP and the recomputed scores against two products (arXiv 2205.14135)


def core(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    """Yield core attention: one fused kernel, or products, softmax and dropout over the scores."""
    if kind.eager:
        yield from _stored("", kind, size, size.seq, size.of("keys"))
    else:
        # Blocks of queries pass whole blocks of keys: a narrow window costs them as much as a short sequence does.
        loop = minimum(size.of("reach"), size.seq / cp)
        yield from (in_chunks(op, size) for op in _fused("attention", size.tokens, loop, size.of("keys")))


def cross_core(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    """Yield `core` of cross-attention, to all of the encoder's output."""
    encoder = symbol("encoder_seq")
    if kind.eager:
        yield from _stored("cross ", kind, size, encoder, encoder)
    else:
        yield from _fused("cross attention", size.tokens, encoder, encoder)


def _stored(name: str, kind: BlockKind, size: Sizes, length: Expr, keys: Expr) -> Iterator[Op]:
    """Yield core attention over stored scores of `length` keys, of which a query sees `keys` in the mean."""
    rows = micro_batch * heads / tp * size.seq / cp
    batch, scores, each = micro_batch * heads / tp, rows * length, query_width / heads
    tiled, beside = each + symbol("in_tiles") * (symbol("tiled_head") - each), {"m": size.seq / cp, "batch": batch}
    slowdown = symbol("gemm_slowdown") * (1 + symbol("misaligned") * (symbol("misaligned_slowdown") - 1))
    for phase, direction, products in (("forward", "forward", 1), ("backward_input", "dgrad", 2)):
        for part, n, k in (("scores", length, each), ("context", each, length)):
            in_tiles = {"n": tiled if n is each else n, "k": tiled if k is each else k}
            time = products * slowdown * kernels.seconds("gemm", direction, **in_tiles, **beside, element=element_bytes)
            flop = products * kernels.gemm_flop(size.seq / cp, n, k, batch) * keys / length
            moved_bytes = products * kernels.gemm_bytes(size.seq / cp, n, k, batch, element=element_bytes)
            yield Op(f"{name}{part} {direction}", phase, "compute", time, flop, moved_bytes)
    # PyTorch adds the mask inside the product: it is copied to where the scores come, and read there.
    yield repeated(native, moved, f"{name}score mask", "forward", 2 * element_bytes * scores)
    soft = [volume.softmax(direction, element_bytes) * scores for direction in kernels.BOTH]
    yield moved(f"{name}softmax", "forward", soft[0], "softmax", columns=length)
    yield moved(f"{name}softmax dgrad", "backward_input", soft[1], "softmax", "backward", length)
    if kind.dropout:
        masked = volume.dropout(element_bytes) * scores
        yield moved(f"{name}attention dropout", "forward", masked, "dropout", "forward")
        yield moved(f"{name}attention dropout dgrad", "backward_input", masked, "dropout", "backward")
        yield tempo.dropout_again(masked)


def _fused(name: str, tokens: Expr, seq: Expr, keys: Expr) -> Iterator[Op]:
    """Yield a fused attention kernel over `keys` keys a query."""
    rows, width = heads / tp * tokens, (query_width + v_width) / tp
    flop = 2 * tokens * keys * width  # 4 s^2 b h / t, halved by the causal mask
    for direction, factor in (("forward", 1), ("backward", FLASH_BACKWARD_FLOP)):
        moves = 2 * element_bytes * tokens * width * factor
        each = (query_width + v_width) / (2 * heads)
        yield fused(name, direction, moves, flop=factor * flop, seq=seq, rows=rows, head_dim=each)


def fused(name: str, direction: str, size: Expr, **shape: Expr) -> Op:
    """Return a fused attention kernel that moves `size` bytes.

    shape: `flop`, `seq` (keys), `rows` (queries), and `head_dim` where there is one.
    """
    phase = "forward" if direction == "forward" else "backward_input"
    time = symbol("attention_slowdown") * symbol("attention_kernel") * kernels.seconds("attention", direction, **shape)
    return Op(f"{name} {direction}", phase, "compute", time, shape["flop"], size)


def context_parallel(name: str, kind: BlockKind, keys: Expr, mixed: list[Op]) -> Iterator[Op]:
    """Yield what context-parallel ranks, each with so many rows of `keys`, exchange beside core attention, whose
    operations are `mixed` and have `name` in front."""
    beside = ("context forward", "context dgrad") if kind.eager else ("attention forward", "attention backward")
    kernels_of = {op.name: op for op in mixed}
    yield from exchanges(name, [kernels_of[f"{name}{each}"] for each in beside], keys, kind.mixer == "mla")


def attention(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    """Yield the projections and the core of one attention sub-layer."""
    tokens = size.tokens
    if kind.mixer == "mla":
        yield from _latent_projections(kind, size)
        columns = query_width / tp
    else:
        columns = query_width / tp + 2 * kv_columns
        yield from gemm("qkv", tokens, columns, hidden)
        joined = element_bytes * tokens * columns
        yield in_fp32("qkv gradients joined", "backward_input", 2 * joined)
        yield in_fp32("qkv bias wgrad", "backward_weight", joined, symbol("qkv_bias"))
    if kind.qk_norm:
        yield from _head_norms("", kind, tokens, tokens)
    if kind.rope:
        turned = (
            volume.rope(element_bytes) * tokens * (query_width / tp + (kv_columns if kind.mixer == "attention" else 0))
        )
        yield moved("rope", "forward", turned)
        yield moved("rope dgrad", "backward_input", turned)
    mixed = list(core(kind, size))
    yield from mixed
    yield from context_parallel("", kind, tokens, mixed)
    yield from gemm("attention out", tokens, hidden, v_width / tp)
    if kind.cross:
        yield from _cross(kind, size)


def _head_norms(name: str, kind: BlockKind, queries: Expr, keys: Expr) -> Iterator[Op]:
    """Yield the norms of queries and keys: of every head's (Qwen3, arXiv 2505.09388; Gemma 3), or whole (OLMo 2)."""
    for what, rows, columns in (("query", queries, query_width / tp), ("key", keys, kv_columns)):
        width = columns if kind.whole_qk_norm else head_dim
        yield from norm(f"{name}{what} norm", rows * columns / width, kind.root_mean_square, width)


def _latent_projections(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    """Yield MLA's projections: down to the latents and their norms, repeated on every rank, and up to its heads.

    DeepSeek-V2 (arXiv 2405.04434, section 2.1).
    """
    q_rank, kv_rank = symbol("q_lora_rank"), symbol("kv_lora_rank")
    yield from gemm("qkv", size.latent_tokens, q_rank + kv_rank + symbol("rope_head_dim"), hidden)
    if kind.latent_queries:
        yield from norm("query latent norm", size.latent_tokens, kind.root_mean_square, q_rank)
    yield from norm("key-value latent norm", size.latent_tokens, kind.root_mean_square, kv_rank)
    yield from gemm("query up", size.tokens, query_width / tp, symbol("query_input"))
    yield from gemm("key-value up", size.tokens, (heads * head_dim + v_width) / tp, kv_rank)


def latent_parallel(size: Sizes) -> Iterator[Op]:
    """Yield the collectives of MLA, whose up-projections are the first products that tensor parallelism splits.

    With sequence parallelism Megatron-LM's ranks make the latents of their own tokens and gather those
    (`multi_latent_attention.py`); torchtitan's gather the hidden states and each make all latents. What goes back are
    the gradients of the latents, and of the rotary key that all heads share, summed over the heads of all ranks.
    """
    own, sp, whole = gathered_again, sequence_parallel, size.boundary_bytes
    read = {"query up": symbol("query_input"), "key-value up": symbol("kv_lora_rank"), "": symbol("rope_head_dim")}
    latents = {product: element_bytes * size.tokens * columns for product, columns in read.items()}
    gathers = {product: tp_group.all_gather(each) for product, each in latents.items()}
    half = tp_group.all_gather(whole)
    entered = own * sum(gathers.values()) + (sp - own) * half
    moves = (1 - own) * whole + own * sum(latents.values())
    yield Op("attention reduce", "forward", "tp", (1 - sp) * tp_group.all_reduce(whole) + sp * half + entered, 0, moves)
    yield Op("attention gradient gather", "backward_input", "tp", sp * half, 0, whole)
    for product, each in latents.items():
        back = own * gathers[product] + (1 - own) * tp_group.all_reduce(each)
        beside = f"{product} wgrad" if product else ""
        name = f"{product or 'rotary key'} gradient reduce"
        yield Op(name, "backward_input", "tp", back, 0, each, beside)
        if product:
            again = own * gathers[product]
            yield Op(f"{product} input gather", "backward_input", "tp", again, 0, each, f"{product} dgrad")


def _cross(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    """Yield cross-attention to the encoder's output (T5, arXiv 1910.10683)."""
    tokens, read = size.tokens, symbol("encoder_seq") * micro_batch / cp
    yield from gemm("cross query", tokens, query_width / tp, hidden)
    yield from gemm("cross key-value", read, 2 * kv_columns, hidden)
    if kind.qk_norm:
        yield from _head_norms("cross ", kind, tokens, read)
    mixed = list(cross_core(kind, size))
    yield from mixed
    yield from context_parallel("cross ", kind, read, mixed)
    yield from gemm("cross out", tokens, hidden, v_width / tp)
    yield from residual("cross residual", size.norm_tokens, kind.dropout)


def mamba(size: Sizes) -> Iterator[Op]:
    """Yield a Mamba-2 mixer: projections, short convolution and the chunked dual form (arXiv 2405.21060, section 6)."""
    inner, states = symbol("ssm_width"), symbol("ssm_states")
    tokens, projected = size.tokens, (2 * inner + states + symbol("ssm_heads")) / tp
    yield from gemm("in projection", tokens, projected, hidden)
    yield from _whole_sequences(element_bytes * tokens * projected, element_bytes * tokens * inner / tp)
    yield from _samples_first(2 * element_bytes * tokens * (projected + inner / tp))
    yield moved("convolution", "forward", 2 * element_bytes * tokens * (inner + states) / tp)
    yield moved("convolution dgrad", "backward_input", 4 * element_bytes * tokens * (inner + states) / tp)
    yield from _scan(tokens, size.of("core_flop"))
    yield moved("gated norm", "forward", 3 * element_bytes * tokens * inner / tp)
    yield moved("gated norm dgrad", "backward_input", 5 * element_bytes * tokens * inner / tp)
    yield from gemm("out projection", tokens, hidden, inner / tp)


def _samples_first(moves: Expr) -> Iterator[Op]:
    """Yield the copies that turn [token, sample] into [sample, token] before a scan and back behind it, where
    Megatron-Core's microbatch has several samples (`MambaMixer._ssm_training`, 0.16.1)."""
    for name, phase in (("", "forward"), (" dgrad", "backward_input")):
        yield in_core(minimum(1, micro_batch - 1), repeated(2, moved, f"scan layout{name}", phase, moves / 2))


class Scan(NamedTuple):
    """One direction of a scan: its FLOP over the forward's, how often products are made again (`_scan`), how often its
    kernels move elements of the inputs' size, and those of the chunks' states: bytes in fp32, times in 16 bits."""

    phase: str
    flop: int
    again: int
    inputs: int
    states_fp32_bytes: int
    states_short: int


SCANS = {"forward": Scan("forward", 1, 0, 3, 8, 2), "backward": Scan("backward_input", 2, 1, 11, 24, 5)}
"""Counted in the kernels of state-spaces/mamba (`ops/triton/ssd_combined.py`): forward five, backward fourteen."""


def _scan(tokens: Expr, forward_flop: Expr) -> Iterator[Op]:
    """Yield the scan over chunks: products at the rate of attention to as many keys as a chunk has, and the traffic of
    its kernels, which leave the states of all chunks in memory for each other (`sim.costs.other_kernels.scan_times`
    has how much longer newer devices take).

    Backward, scores and states are made again, and what the decays do to the scores is one more product within.
    """
    inner, state, ssm_heads = (symbol(f"ssm_{name}") for name in ("width", "state", "heads"))
    chunk = symbol("scan_chunk")
    between = 4 * state * inner
    kept, again = tokens * state * inner / chunk / tp, forward_flop - between / 2
    for direction, scan in SCANS.items():
        flop = tokens * (scan.flop * forward_flop + scan.again * again) / tp
        shape = {"seq": chunk, "rows": ssm_heads / tp * tokens, "head_dim": inner / ssm_heads}
        moved_bytes = scan.inputs * element_bytes * tokens * inner / tp
        moved_bytes += (scan.states_fp32_bytes + scan.states_short * element_bytes) * kept
        slower = symbol("attention_slowdown") * symbol(f"scan_{direction}")
        products = slower * kernels.seconds("attention", direction, flop=flop, **shape)
        traffic = traffic_seconds(moved_bytes) * (symbol("scan_traffic") if direction == "backward" else 1)
        time, counted = products + traffic, scan.flop * tokens * forward_flop / tp
        yield Op(f"scan {direction}", scan.phase, "compute", time, counted, moved_bytes)


def _whole_sequences(projected: Expr, mixed: Expr) -> Iterator[Op]:
    """Yield how context-parallel ranks get all tokens of some heads for the convolution and the scan, and their own
    tokens back: all-to-all of the `projected` and of the `mixed` bytes, which nothing hides.

    Megatron-LM's (megatron-core 0.16.1, core/ssm/mamba_context_parallel.py); where a head's group is on several ranks
    its states are sent to each, which is left out.
    """
    for phase in ("forward", "backward_input"):
        for name, moves in (("heads", projected), ("tokens", mixed)):
            yield Op(f"{name} exchange {phase}", phase, "cp", cp_group.all_to_all(moves), 0, moves)
