"""MLPs: dense, and a mixture of experts with its routing and all-to-all (GShard, arXiv 2006.16668)."""

from collections.abc import Iterator

from sim.costs.algebra import Expr, symbol
from sim.costs.kernels import BYTES_16BIT
from sim.costs.layers.ops import Op, Sizes, ep_group, etp_group, gemm, hidden, moved, tp
from sim.costs.layers.structure import BlockKind

experts, top_k, moe_ffn = symbol("experts"), symbol("experts_per_token"), symbol("moe_ffn")
ep, etp = symbol("ep"), symbol("etp")
expert_hidden = symbol("expert_hidden")
"""Columns of what routed experts read and write: the hidden width, or the latent one between two projections."""


def _gated(
    name: str, tokens: Expr, width: Expr, kind: BlockKind, batch: Expr = 1, columns: Expr = hidden
) -> Iterator[Op]:
    """Yield up-projection, activation and down-projection of `batch` equal MLPs of `tokens` rows each."""
    prefix = f"{name} " if name else ""
    yield from gemm(f"{prefix}mlp up", tokens, (2 if kind.gated else 1) * width, columns, batch)
    size = batch * tokens * width
    yield moved(f"{prefix}activation", "forward", (6 if kind.gated else 4) * size)
    yield moved(f"{prefix}activation dgrad", "backward_input", (10 if kind.gated else 6) * size)
    yield from gemm(f"{prefix}mlp down", tokens, columns, width, batch)


def dense(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    """Yield the MLP that every token passes."""
    yield from _gated("", size.tokens, size.of("ffn") / tp, kind)


def routed_rows(size: Sizes) -> Expr:
    """Return the rows that one rank's experts compute on: balanced, times capacity or the busiest rank's excess."""
    return size.tokens / tp * etp * top_k * symbol("expert_load")


def experts_mlp(kind: BlockKind, size: Sizes) -> Iterator[Op]:
    """Yield router, dispatch, expert products, combine, and the shared experts that every token passes.

    A rank routes its part of the tokens, exchanges rows with the other ranks of its expert group, and gathers
    them once more where an expert is itself split.
    """
    own = size.tokens / tp
    yield from gemm("router", own, experts, hidden)
    if kind.latent:
        yield from gemm("latent down", own, expert_hidden, hidden)
    rows = routed_rows(size)
    yield moved("permute", "forward", 4 * own * top_k * expert_hidden)
    yield moved("permute dgrad", "backward_input", 4 * own * top_k * expert_hidden)
    local = experts / ep
    yield from _gated("expert", rows / local, moe_ffn / etp, kind, local, expert_hidden)
    yield moved("unpermute", "forward", 6 * own * top_k * expert_hidden)
    yield moved("unpermute dgrad", "backward_input", 6 * own * top_k * expert_hidden)
    sent = BYTES_16BIT * own * top_k * expert_hidden * symbol("expert_load")
    for phase in ("forward", "backward_input"):
        for name in ("dispatch", "combine"):
            yield Op(f"{name} {phase}", phase, "ep", ep_group.all_to_all(sent), 0, sent)
            whole = etp_group.all_gather(BYTES_16BIT * rows * expert_hidden)
            yield Op(f"{name} split {phase}", phase, "ep", whole, 0, sent)
    if kind.latent:
        yield from gemm("latent up", own, hidden, expert_hidden)
    if kind.shared:
        yield from dense(kind, size)
