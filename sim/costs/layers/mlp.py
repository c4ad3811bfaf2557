"""MLPs: dense, and a mixture of experts with its routing and all-to-all (GShard, arXiv 2006.16668)."""

from collections.abc import Iterator

from sim.costs import volume
from sim.costs.algebra import Expr, minimum, symbol
from sim.costs.kernels import element_bytes
from sim.costs.layers import tempo
from sim.costs.layers.ops import (
    Op,
    Sizes,
    ep_group,
    etp_group,
    gemm,
    hidden,
    in_core,
    in_fp32,
    moved,
    repeated,
    sequence_parallel,
    tp,
    tp_group,
    traffic_seconds,
    where,
)
from sim.costs.layers.structure import BlockKind

experts, top_k, moe_ffn = symbol("experts"), symbol("experts_per_token"), symbol("moe_ffn")
expert_hidden = symbol("expert_hidden")
"""Columns that the routed experts read and write: the hidden width, or the latent one (LatentMoE)."""

ep, etp = symbol("ep"), symbol("etp")
expert_load = symbol("expert_capacity") + minimum(symbol("expert_imbalance"), ep)
"""Rows of the busiest expert rank over the mean: its capacity, or its excess, where at most it has those of all."""


apart = 1 - symbol("fused_experts")
"""0 where experts' products activate and cast what they give (the plan's `fused_experts`), else 1."""


def _gated(
    name: str, tokens: Expr, width: Expr, columns: Expr, kind: BlockKind, batch: Expr = 1, apart: Expr = 1
) -> Iterator[Op]:
    """Yield up-projection, activation and down-projection of `batch` equal MLPs of `tokens` rows of `columns` each.

    apart: 1, or 0 where the products activate, and cast what the next one reads.
    """
    prefix = f"{name} " if name else ""
    yield from gemm(f"{prefix}mlp up", tokens, (2 if kind.gated else 1) * width, columns, batch, read={"dgrad": apart})
    op, size = "swiglu" if kind.gated else "gelu", batch * tokens * width
    more = tempo.side(kind, size)
    moves = {d: volume.activation(d, element_bytes, kind.gated) * size + more for d in ("forward", "backward")}
    up_bytes = element_bytes * size * (2 if kind.gated else 1)
    yield in_fp32(f"{prefix}mlp up bias wgrad", "backward_weight", up_bytes, symbol("mlp_bias"))
    yield where(apart, moved(f"{prefix}activation", "forward", moves["forward"], op, "forward"))
    yield where(apart, moved(f"{prefix}activation dgrad", "backward_input", moves["backward"], op, "backward"))
    yield from gemm(f"{prefix}mlp down", tokens, columns, width, batch, read={"forward": apart})


def dense(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    """Yield the MLP that every token passes."""
    yield from _gated("", size.tokens, size.of("ffn") / tp, hidden, kind)


def routed_rows(size: Sizes) -> Expr:
    """Return the rows that one rank's experts compute on: balanced, times capacity or the busiest rank's excess."""
    return size.tokens / tp * etp * top_k * expert_load


def _sorts(rows: Expr, local: Expr) -> Iterator[Op]:
    """Yield how rows that came from all ranks are put in the order of `local` experts, and back before they return.

    Megatron-Core's all-to-all alone, where a rank has several (`MoEAlltoAllTokenDispatcher`, 0.16.1: permutation 2,
    `sort_chunks_by_idxs`): DeepEP's kernels deliver tokens once, and `permute` alone copies them.
    """
    on = (1 - symbol("dispatch_once")) * minimum(1, local - 1)
    for name, phase in (("", "forward"), (" dgrad", "backward_input")):
        yield in_core(on, repeated(2, moved, f"sort{name}", phase, 2 * element_bytes * rows * expert_hidden))


def _padded(rows: Expr) -> Iterator[Op]:
    """Yield how each expert's rows are made a multiple of what products of 8 or 4 bits read, and theirs are cut again
    (Transformer Engine's `Fp8Padding` and `Fp8Unpadding` in `TEGroupedMLP`).

    HybridEP's kernels leave room for it (`_HybridEPManager.dispatch`, 0.16.1).
    """
    on = (1 - symbol("hybrid_ep")) * symbol("low_precision")
    for name, phase in (("", "forward"), (" dgrad", "backward_input")):
        yield in_core(on, repeated(2, moved, f"expert padding{name}", phase, 2 * element_bytes * rows * expert_hidden))


def _clamped(rows: Expr) -> Iterator[Op]:
    """Yield how both halves of what an expert's first product gives are clamped, and joined again."""
    size = 2 * rows * moe_ffn / etp
    for name, phase, way, kernels in (("", "forward", "forward", 3), (" dgrad", "backward_input", "backward", 7)):
        each = volume.clamp(way, element_bytes) * size / kernels
        yield in_core(apart, repeated(kernels, moved, f"expert clamp{name}", phase, each))


def _late_biases(rows: Expr, local: Expr) -> Iterator[Op]:
    """Yield the biases of experts' outputs as Megatron-Core adds them: one of `local` experts after the other, by two
    kernels forward and five backward, between which the traffic of those that join and cast all rows is shared."""
    for name, phase, way, kernels in (("", "forward", "forward", 2), (" dgrad", "backward_input", "backward", 5)):
        each = volume.weighted_bias(way, element_bytes) * rows / local * expert_hidden / kernels
        yield in_core(symbol("mlp_bias"), repeated(kernels * local, moved, f"expert bias{name}", phase, each))


HYBRID_COMBINE = 1.12
"""Times that HybridEP's combine takes what links carry as fast as its dispatch: 8 to 36 ranks of a GB200, kernels alone
on 16 SMs (DeepEP, docs/README_Hybrid-EP.md; `tests/costs/test_collectives.py` has the table)."""


def _exchange(name: str, phase: str, tokens: Expr, sent: Expr) -> Expr:
    """Return the seconds of `dispatch` or `combine`, whose gradients go the other way, with `sent` bytes of rows.

    HybridEP's dispatch sends with a token the fp32 weights of all experts of the node that it goes to, and its gradient
    theirs (`HybridEPDispatch` in Megatron-Core 0.16.1; DeepEP, docs/Hybrid-EP_Implementation.md, buffers).
    """
    once, hybrid = symbol("dispatch_once"), symbol("hybrid_ep")
    weights = hybrid * 4 * tokens * experts / ep * ep_group.n_in if name == "dispatch" else 0
    longer = 1 + hybrid * (HYBRID_COMBINE - 1) if (name == "combine") == (phase == "forward") else 1
    return (1 - once) * ep_group.all_to_all(sent) + once * longer * ep_group.once_per_rank(
        sent / top_k + weights * expert_load, top_k
    )


def _routing_maps(tokens: Expr) -> Op:
    """Return how HybridEP's ranks gather each other's maps, a byte for every token and expert, and read them once."""
    on, maps = symbol("hybrid_ep") * minimum(1, ep - 1), tokens * experts * ep
    return Op("routing maps", "forward", "ep", on * (ep_group.all_gather(maps) + traffic_seconds(maps)), 0, on * maps)


def experts_mlp(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    """Yield router, dispatch, expert products, combine, and the shared experts that every token passes.

    A rank routes its part of the tokens, exchanges rows with the other ranks of its expert group, and gathers
    them once more where an expert is itself split. Without sequence parallelism the tensor-parallel ranks then
    gather what each of them routed (backward: the gradients of it).
    """
    own = size.tokens / tp
    yield from gemm("router", own, experts, hidden, plain=True)
    if kind.latent:
        yield from gemm("latent down", own, expert_hidden, hidden)
        yield from gemm("latent up", own, hidden, expert_hidden)
    rows = routed_rows(size)
    sent = element_bytes * own * top_k * expert_hidden
    yield moved("permute", "forward", 2 * sent)
    yield moved("permute dgrad", "backward_input", 2 * sent)
    local = experts / ep
    yield from _sorts(rows, local)
    yield from _gated("expert", rows / local, moe_ffn / etp, expert_hidden, kind, local, apart)
    if kind.clamped:
        yield from _clamped(rows)
    yield from _late_biases(rows, local)
    yield from _padded(rows)
    yield moved("unpermute", "forward", 3 * sent)
    yield moved("unpermute dgrad", "backward_input", 3 * sent)
    sent = sent * expert_load
    yield _routing_maps(own)
    for phase in ("forward", "backward_input"):
        for name in ("dispatch", "combine"):
            yield Op(f"{name} {phase}", phase, "ep", _exchange(name, phase, own, sent), 0, sent)
            yield Op(
                f"{name} split {phase}",
                phase,
                "ep",
                etp_group.all_gather(element_bytes * rows * expert_hidden),
                0,
                sent,
            )
        gather = (1 - sequence_parallel) * tp_group.all_gather(size.boundary_bytes)
        yield Op(f"experts gather {phase}", phase, "tp", gather, 0, size.boundary_bytes)
    if kind.shared:
        yield from dense(kind, size)
