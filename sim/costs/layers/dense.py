"""Operations of a dense transformer block, of the embedding and of the output head, per tensor-parallel rank.

Everything is a function of declared symbols: the model's dimensions, `tp`, `micro_batch`, and the 0/1 switches
`sequence_parallel`, `selective`, `full`. Tensor parallelism after Megatron-LM (arXiv 1909.08053), sequence
parallelism and selective recompute after Korthikanti et al. 2022 (arXiv 2205.05198). 16-bit activations.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sim.costs import kernels
from sim.costs.algebra import Expr, maximum, symbol
from sim.costs.collectives import Group
from sim.specs.model import Model

FLASH_BACKWARD_FLOP = 2.5  # dQ, dK, dV, dP and the recomputed scores against two products (arXiv 2205.14135)


@dataclass(frozen=True)
class Op:
    """One kernel or collective of a layer.

    phase: forward, backward_input, backward_weight or recompute; kind: compute or tp; seconds, flop and
    moved bytes per microbatch and rank; `overlap` names the product a collective runs beside. FLOP of
    core attention are halved by the causal mask in every form, as model FLOP are (eager kernels compute all).
    """

    name: str
    phase: str
    kind: str
    seconds: Expr
    flop: Expr = 0
    bytes: Expr = 0
    overlap: str = ""


@dataclass(frozen=True)
class Structure:
    """What decides which operations exist, as against how large they are."""

    eager: bool
    gated: bool
    dropout: bool
    rope: bool
    tied: bool

    @classmethod
    def of(cls, model: Model) -> "Structure":
        """Return the structure of `model`."""
        return cls(
            eager=model.attention == "eager",
            gated=model.gated_mlp,
            dropout=model.dropout > 0,
            rope=model.positions == "rope",
            tied=model.tied_embeddings,
        )


hidden, ffn, vocab, seq = symbol("hidden"), symbol("ffn"), symbol("vocab"), symbol("seq")
heads, query_width, kv_width = symbol("heads"), symbol("query_width"), symbol("kv_width")
tp, micro_batch, sequence_parallel = symbol("tp"), symbol("micro_batch"), symbol("sequence_parallel")
tokens = seq * micro_batch
norm_tokens = tokens / (1 + sequence_parallel * (tp - 1))
"""Tokens that one rank holds outside the tensor-parallel region."""
boundary_bytes = kernels.BYTES_16BIT * tokens * hidden
tp_group = Group.named("tp")


def gemm(name: str, m: Expr, n: Expr, k: Expr) -> Iterator[Op]:
    """Yield y[m, n] = x[m, k] W^T with its two gradients."""
    shapes = {
        "forward": ("forward", (m, n, k)),
        "dgrad": ("backward_input", (m, k, n)),
        "wgrad": ("backward_weight", (n, k, m)),
    }
    for direction, (phase, (rows, columns, inner)) in shapes.items():
        yield Op(
            name if direction == "forward" else f"{name} {direction}",
            phase,
            "compute",
            kernels.seconds("gemm", direction, m=rows, n=columns, k=inner, batch=1),
            kernels.gemm_flop(rows, columns, inner),
            kernels.gemm_bytes(rows, columns, inner),
        )


def moved(name: str, phase: str, size: Expr, op: str = "elementwise", columns: Expr = 1) -> Op:
    """Return a memory-bound operation that moves `size` bytes in rows of `columns` elements."""
    shape = {"bytes": size} if op == "elementwise" else {"bytes": size, "columns": columns}
    return Op(name, phase, "compute", kernels.seconds(op, "any", **shape), 0, size)


def norm(name: str) -> Iterator[Op]:
    """Yield a normalisation: reads x and writes y forward; reads dy and x and writes dx backward."""
    yield moved(name, "forward", 4 * norm_tokens * hidden, "norm", hidden)
    yield moved(f"{name} dgrad", "backward_input", 6 * norm_tokens * hidden, "norm", hidden)


def attention(structure: Structure) -> Iterator[Op]:
    """Yield core attention: one fused kernel, or products, softmax and dropout over the scores."""
    rows = micro_batch * heads / tp * seq
    width = query_width / tp
    if not structure.eager:
        flop = 2 * tokens * seq * width  # 4 s^2 b h / t, halved by the causal mask
        for phase, direction, factor in (
            ("forward", "forward", 1),
            ("backward_input", "backward", FLASH_BACKWARD_FLOP),
        ):
            time = kernels.seconds("attention", direction, flop=factor * flop, seq=seq, rows=rows)
            yield Op(f"attention {direction}", phase, "compute", time, factor * flop, 8 * tokens * width * factor)
        return
    head_dim, batch, scores = query_width / heads, micro_batch * heads / tp, rows * seq
    for phase, direction, products in (("forward", "forward", 1), ("backward_input", "dgrad", 2)):
        for name, n, k in (("scores", seq, head_dim), ("context", head_dim, seq)):
            time = products * kernels.seconds("gemm", direction, m=seq, n=n, k=k, batch=batch)
            flop = products * kernels.gemm_flop(seq, n, k, batch) / 2
            yield Op(
                f"{name} {direction}",
                phase,
                "compute",
                time,
                flop,
                products * kernels.gemm_bytes(seq, n, k, batch),
            )
    yield moved("softmax", "forward", 4 * scores, "softmax", seq)
    yield moved("softmax dgrad", "backward_input", 6 * scores, "softmax", seq)
    if structure.dropout:
        yield moved("attention dropout", "forward", 5 * scores)
        yield moved("attention dropout dgrad", "backward_input", 5 * scores)


def residual(name: str, structure: Structure) -> Iterator[Op]:
    """Yield bias + dropout + add: two reads, a write and a byte mask."""
    mask = 1 if structure.dropout else 0
    yield moved(name, "forward", (6 + mask) * norm_tokens * hidden)
    yield moved(f"{name} dgrad", "backward_input", (6 + (4 + mask) * mask) * norm_tokens * hidden)


def block(structure: Structure) -> list[Op]:
    """Return all operations of one transformer block, forward and backward, without recompute."""
    up = 2 * ffn if structure.gated else ffn
    ops = [
        *norm("attention norm"),
        *gemm("qkv", tokens, (query_width + 2 * kv_width) / tp, hidden),
        *attention(structure),
        *gemm("attention out", tokens, hidden, query_width / tp),
        *residual("attention residual", structure),
        *norm("mlp norm"),
        *gemm("mlp up", tokens, up / tp, hidden),
        moved("activation", "forward", (6 if structure.gated else 4) * tokens * ffn / tp),
        moved("activation dgrad", "backward_input", (10 if structure.gated else 6) * tokens * ffn / tp),
        *gemm("mlp down", tokens, hidden, ffn / tp),
        *residual("mlp residual", structure),
        *tensor_parallel("attention", "qkv"),
        *tensor_parallel("mlp", "mlp up"),
    ]
    if structure.rope:
        turned = 4 * tokens * (query_width + kv_width) / tp
        ops += [moved("rope", "forward", turned), moved("rope dgrad", "backward_input", turned)]
    return ops


def tensor_parallel(half: str, product: str) -> Iterator[Op]:
    """Yield the collectives of one half of a block, whose first product is `product`.

    Forward: an all-reduce, or all-gather and reduce-scatter with sequence parallelism. Backward: the gradient
    of the half's input is reduced beside the first product's weight gradient (Megatron-LM's asynchronous
    reduction). Sequence parallelism first gathers the gradient of the half's output, which nothing hides, and
    gathers the first product's input again beside its input gradient.
    """
    reduce, gather = tp_group.all_reduce(boundary_bytes), tp_group.all_gather(boundary_bytes)
    sp = sequence_parallel
    yield Op(f"{half} reduce", "forward", "tp", (1 - sp) * reduce + 2 * sp * gather, 0, boundary_bytes)
    yield Op(f"{half} gradient gather", "backward_input", "tp", sp * gather, 0, boundary_bytes)
    yield Op(f"{half} input gather", "backward_input", "tp", sp * gather, 0, boundary_bytes, f"{product} dgrad")
    beside = (1 - sp) * reduce + sp * gather
    yield Op(f"{half} gradient reduce", "backward_input", "tp", beside, 0, boundary_bytes, f"{product} wgrad")


def embedding(structure: Structure) -> list[Op]:
    """Return the operations of the vocabulary-parallel embedding."""
    table = 4 * tokens * hidden
    mask = norm_tokens * hidden * 5 if structure.dropout else 0
    forward = (1 - sequence_parallel) * tp_group.all_reduce(boundary_bytes)
    gather = sequence_parallel * tp_group.all_gather(boundary_bytes)
    return [
        moved("embedding", "forward", table + mask),
        moved("embedding wgrad", "backward_weight", 10 * tokens * hidden + mask),
        Op("embedding reduce", "forward", "tp", forward + gather, 0, boundary_bytes),
        Op("embedding gradient gather", "backward_input", "tp", gather, 0, boundary_bytes),
    ]


def head() -> list[Op]:
    """Return the operations of final norm, vocabulary-parallel logits and cross-entropy (fp32 softmax)."""
    logits = tokens * vocab / tp
    gather = sequence_parallel * tp_group.all_gather(boundary_bytes)
    backward = (1 - sequence_parallel) * tp_group.all_reduce(boundary_bytes) + gather
    statistics = 3 * tp_group.all_reduce(4 * tokens)  # row maximum, target logit, sum of exponentials
    return [
        *norm("final norm"),
        *gemm("logits", tokens, vocab / tp, hidden),
        moved("cross-entropy", "forward", 18 * logits, "softmax", vocab / tp),
        moved("cross-entropy dgrad", "backward_input", 10 * logits, "softmax", vocab / tp),
        Op("logits gather", "forward", "tp", gather + statistics, 0, boundary_bytes),
        Op("logits input gather", "backward_input", "tp", gather, 0, boundary_bytes, "logits dgrad"),
        Op("logits gradient reduce", "backward_input", "tp", backward, 0, boundary_bytes, "logits wgrad"),
    ]


def recomputed(structure: Structure) -> list[Op]:
    """Return what the backward pass repeats, switched by `full` and `selective`.

    Full repeats the forward pass with its collectives. Selective repeats core attention where the scores are
    stored (eager), else the norms and the activation (Megatron-LM modules layernorm and mlp_act).
    """
    full, selective = symbol("full"), symbol("selective")
    forward = [op for op in block(structure) if op.phase == "forward"]
    core = {op.name for op in attention(structure)} if structure.eager else {"attention norm", "mlp norm", "activation"}
    return [
        Op(op.name, "recompute", op.kind, share * op.seconds, share * op.flop, share * op.bytes)
        for op in forward
        for share in (full + selective if op.name in core else full,)
    ]


def total(ops: list[Op], quantity: str, kind: str | None = None, phase: str | None = None) -> Expr:
    """Return the sum of `seconds`, `flop` or `bytes` over the operations of a kind and phase."""
    return sum(getattr(op, quantity) for op in ops if kind in (None, op.kind) and phase in (None, op.phase))


def exposed_tp(ops: list[Op], phase: str) -> Expr:
    """Return the seconds of collectives in `phase` that the product they run beside does not hide."""
    beside = {op.name: op.seconds for op in ops if op.kind == "compute"}
    return sum(
        maximum(op.seconds - beside[op.overlap], 0) if op.overlap else op.seconds
        for op in ops
        if op.kind == "tp" and op.phase == phase
    )
