"""A whole layer: its sub-layers with norms, residuals and collectives, and what the backward pass repeats."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import sympy as sp

from sim.costs.algebra import Expr, symbol
from sim.costs.layers import traced
from sim.costs.layers.adapters import adapted
from sim.costs.layers.attention import attention, core, cross_core, latent_parallel, mamba
from sim.costs.layers.mlp import dense, experts_mlp
from sim.costs.layers.ops import Op, Sizes, gemm, hidden, native, norm, residual, tensor_parallel, tp
from sim.costs.layers.recurrent import recurrent
from sim.costs.layers.structure import BlockKind, Kind, TracedKind
from sim.specs.blocks import GATES
from sim.specs.model import Model


def block(kind: Kind, index: int) -> list[Op]:
    """Return all operations of one layer, forward and backward, without recompute."""
    if isinstance(kind, TracedKind):
        return traced.operations(kind)
    size = Sizes(index)
    rows = size.norm_tokens
    ops = [op for name in norm_names(kind) for op in norm(name, rows, kind.root_mean_square)]
    if kind.joins:
        # The prediction module joins the hidden state and the next token's embedding (DeepSeek-V3, section 2.2).
        ops += gemm("join", size.tokens, hidden / tp, 2 * hidden)
        ops += tensor_parallel("join", "join", size.boundary_bytes)
    if kind.mixer in GATES:
        ops += recurrent(kind, size)
    elif kind.mixer != "none":
        ops += _mixer(kind, size)
    if kind.mlp != "none":
        ops += _mlp(kind, size)
    return list(adapted(kind, size, ops)) if kind.adapted else ops


def norm_names(kind: BlockKind) -> list[str]:
    """Return a name for every norm of the hidden width."""
    usual = ["attention norm" if kind.mixer != "none" else "mlp norm", "mlp norm"]
    return [usual[i] if i < len(usual) else f"norm {i + 1}" for i in range(kind.norms)]


LATENT_UP = {"query up", "key-value up", "rope"}
"""What Megatron-LM's module mla_up_proj repeats (core/transformer/multi_latent_attention.py)."""


def separate_norms(kind: BlockKind) -> set[str]:
    """Return the names of the norms that run by themselves in Megatron-LM: before MLA and before experts.

    All others are part of the kernel of the product after them, which keeps their output (TransformerEngine's
    LayerNormLinear; megatron-core 0.16.1, core/models/gpt/gpt_layer_specs.py and core/models/mamba, bert, T5).
    """
    alone = {"attention norm": kind.mixer == "mla", "mlp norm": kind.mlp == "moe"}
    return {name for name in norm_names(kind) if alone.get(name)}


def _mixer(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    first, last = ("in projection", "out projection") if kind.mixer == "mamba" else ("qkv", "attention out")
    yield from mamba(size) if kind.mixer == "mamba" else attention(kind, size)
    yield from residual("attention residual", size.norm_tokens, kind.dropout)
    if kind.mixer == "mla":
        yield from latent_parallel(size)
    elif not (kind.parallel and _whole_mlp(kind)):  # a parallel block reduces both halves at once
        yield from tensor_parallel("attention", first, size.boundary_bytes, last)
    if kind.cross:
        yield from tensor_parallel("cross", "cross query", size.boundary_bytes, "cross out")


def _mlp(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    yield from dense(kind, size) if kind.mlp == "dense" else experts_mlp(kind, size)
    if not kind.parallel or kind.mixer == "none":
        yield from residual("mlp residual", size.norm_tokens, kind.dropout)
    if _whole_mlp(kind):
        yield from tensor_parallel("mlp", "mlp up", size.boundary_bytes, "mlp down")


def _whole_mlp(kind: BlockKind) -> bool:
    """Return whether every token passes an MLP that tensor parallelism splits."""
    return kind.mlp == "dense" or kind.shared


def repeats_some(model: Model, framework: str) -> bool:
    """Return whether selective recompute has anything to repeat: in PyTorch always, in Megatron-LM the scores, a norm
    that stands alone or the experts' activation."""
    kinds = [kind for kind in map(BlockKind.of, model.blocks) if isinstance(kind, BlockKind)]
    return framework == "torch" or any(kind.eager or kind.mlp == "moe" or separate_norms(kind) for kind in kinds)


def _attended(kind: BlockKind, index: int) -> set[str]:
    """Return the names of core attention's operations."""
    own = core(kind, Sizes(index)) if kind.mixer in ("attention", "mla") else ()
    crossed = cross_core(kind, Sizes(index)) if kind.cross else ()
    return {op.name for op in (*own, *crossed)}


def _by_modules(kind: BlockKind) -> set[str]:
    """Return the names of what Megatron-LM's modules layernorm, moe_act and mla_up_proj repeat."""
    return {*separate_norms(kind), "expert clamp", "expert activation"} | (LATENT_UP if kind.mixer == "mla" else set())


def repeats(kind: Kind, index: int) -> Callable[[Op], Expr]:
    """Return how much of an operation of the forward pass the backward pass repeats, switched by `full` and
    `selective`: 0 to 1.

    Full repeats the forward pass with its collectives. Selective repeats core attention where the scores are
    stored (eager; Megatron-LM's module core_attn), else the norms that stand alone, the experts' activation and MLA's
    products up from the latents (layernorm, moe_act, mla_up_proj), and with `experts_again` all that experts do in a
    layer (moe); PyTorch's (`native`, torchtitan) keeps every second product and fused attention, and repeats the rest,
    stored scores (batched products and softmax) among it; its full recompute stops once every saved tensor is back,
    before the last product (`torch.utils.checkpoint`, early_stop). Of a traced layer only full recompute is known.
    """
    full, selective = symbol("full"), symbol("selective")
    attended = set[str]() if isinstance(kind, TracedKind) else _attended(kind, index)
    eager = isinstance(kind, BlockKind) and kind.eager
    chosen = set[str]() if isinstance(kind, TracedKind) else attended if eager else _by_modules(kind)
    experts = set[str]()
    if isinstance(kind, BlockKind) and kind.mlp == "moe":
        experts = {op.name for op in experts_mlp(kind, Sizes(index))}
    unneeded = set[str]()
    if not isinstance(kind, TracedKind) and kind.mlp == "dense" and not kind.parallel and not kind.dropout:
        unneeded = {"mlp down", "mlp reduce", "mlp residual"}

    def share(op: Op) -> Expr:
        megatron = 1 if op.name in chosen else symbol("experts_again") if op.name in experts else 0
        others = 0 if op.kind != "compute" else 1 if op.flop == 0 else sp.Rational(1, 2)
        torch = int(eager) if op.name in attended else others
        whole = full * (1 - native) if op.name in unneeded else full
        return whole + selective * ((1 - native) * megatron + native * torch)

    return share


def recomputed(kind: Kind, index: int) -> list[Op]:
    """Return what the backward pass repeats (`repeats`)."""
    share = repeats(kind, index)
    return [
        replace(op, phase="recompute", seconds=part * op.seconds, flop=part * op.flop, bytes=part * op.bytes)
        for op in block(kind, index)
        if op.phase == "forward"
        for part in (share(op),)
    ]
