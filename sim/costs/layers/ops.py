"""What layers are written in: operations over declared symbols, and the sizes they depend on.

Sizes are per tensor-parallel rank and microbatch; `sequence_parallel`, `selective`, `full` are 0/1 switches. Tensor
parallelism after Megatron-LM (arXiv 1909.08053), sequence parallelism and selective recompute after Korthikanti et
al. 2022 (arXiv 2205.05198). Activations take `element_bytes` an element unless a precision recipe says otherwise.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sim.costs import kernels, volume
from sim.costs.algebra import Expr, maximum, minimum, symbol
from sim.costs.collectives import Group
from sim.costs.kernels import element_bytes

COMMUNICATION = ("tp", "cp", "ep", "pp")
"""What a pass waits for; of pipeline messages those that block."""


@dataclass(frozen=True)
class Op:
    """One kernel or collective of a layer.

    phase: forward, backward_input, backward_weight or recompute; kind: compute, tp, cp or ep; seconds, flop and
    moved bytes per microbatch and rank; `overlap` names the product a collective runs beside, `pieces` those that equal
    parts of it run with piece by piece, with the plan's `tp_comm_overlap`. FLOP of core attention are halved by the
    causal mask in every form, as model FLOP are (eager kernels compute all).
    An operation may stand for several `launches`; `product`: it is a matrix product.
    """

    name: str
    phase: str
    kind: str
    seconds: Expr
    flop: Expr = 0
    bytes: Expr = 0
    overlap: str = ""
    launches: Expr = 1
    product: bool = False
    pieces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kernels.belong(self)


def repeated(times: Expr, make: Callable[..., Op], *given: Any) -> Op:
    """Return `times` launches of the operation `make(*given)`, one after the other, as one."""
    with kernels.repeating(times):
        op = make(*given)
    return replace(
        op, seconds=times * op.seconds, flop=times * op.flop, bytes=times * op.bytes, launches=times * op.launches
    )


hidden, vocab, seq = symbol("hidden"), symbol("vocab"), symbol("seq")
heads, head_dim = symbol("heads"), symbol("head_dim")
query_width, v_width, kv_columns = symbol("query_width"), symbol("v_width"), symbol("kv_columns")
tp, cp, micro_batch, sequence_parallel = (symbol(n) for n in ("tp", "cp", "micro_batch", "sequence_parallel"))
native = symbol("native")
"""1 for PyTorch's own parallelism (DTensor, FSDP2), 0 for Megatron-LM's."""
gathered_again = sequence_parallel * (1 - native)
"""1 where a rank keeps its part of a product's gathered input and gathers it once more for the backward."""
tp_group, cp_group, ep_group, etp_group = (Group.named(n) for n in ("tp", "cp", "ep", "etp"))


@dataclass(frozen=True)
class Sizes:
    """Symbols of one kind of layer: those with its index differ between the kinds of a model."""

    index: int

    def of(self, name: str) -> Expr:
        """Return the symbol of this kind's `name`."""
        return symbol(f"{name}_{self.index}")

    @property
    def seq(self) -> Expr:
        """Tokens of a sample."""
        return self.of("seq")

    @property
    def tokens(self) -> Expr:
        """Tokens of a microbatch on one context-parallel rank."""
        return self.of("seq") * micro_batch / cp

    @property
    def norm_tokens(self) -> Expr:
        """Tokens that one rank holds outside the tensor-parallel region."""
        return outside(self.tokens)

    @property
    def latent_tokens(self) -> Expr:
        """Tokens of which one rank makes MLA's latents: those of its own part, or all (PyTorch's, torchtitan)."""
        return native * self.tokens + (1 - native) * self.norm_tokens

    @property
    def boundary_bytes(self) -> Expr:
        """Bytes of the hidden state of all tokens."""
        return element_bytes * self.tokens * hidden


def outside(tokens: Expr) -> Expr:
    """Return the part of `tokens` that one rank holds outside the tensor-parallel region."""
    return tokens / (1 + sequence_parallel * (tp - 1))


def gemm(
    name: str,
    m: Expr,
    n: Expr,
    k: Expr,
    batch: Expr = 1,
    plain: bool = False,
    narrow: Mapping[str, Expr] | None = None,
    read: Mapping[str, Expr] | None = None,
) -> Iterator[Op]:
    """Yield y[m, n] = x[m, k] W^T with its two gradients, at the precision recipe's rate and operand size.

    `batch` products run as one grouped kernel. Casting an operand to 8 or 4 bits is memory traffic of its own, which
    `read` is the share of by direction that reads it (1 where it says nothing; 0: what made it casts it).
    `plain`: no recipe touches it (the output head and the router: DeepSeek-V3, arXiv 2412.19437, section 3.3.1).
    `narrow`: whether rows of n or k elements are (`kernels.narrow`); those of all three products are rows of these.
    """
    for direction, (rows, columns, inner) in {"forward": (m, n, k), "dgrad": (m, k, n), "wgrad": (n, k, m)}.items():
        share = (read or {}).get(direction, 1)
        yield product(name, direction, rows, columns, inner, batch, plain, narrow=narrow, read=share)


PHASE_OF = {"forward": "forward", "dgrad": "backward_input", "wgrad": "backward_weight"}


def product(
    name: str,
    direction: str,
    m: Expr,
    n: Expr,
    k: Expr,
    batch: Expr = 1,
    plain: bool = False,
    op: str = "gemm",
    narrow: Mapping[str, Expr] | None = None,
    read: Expr = 1,
) -> Op:
    """Return one of `gemm`'s three products, of (m, k) and (k, n), timed as a kernel `op`."""
    cast_bytes = symbol("cast_bytes") - (1 - read) * element_bytes
    cast = cast_bytes * batch * m * k if direction != "wgrad" and not plain else 0
    time = kernels.product_seconds(direction, m, n, k, batch, plain, op, rows=narrow)
    return Op(
        name if direction == "forward" else f"{name} {direction}",
        PHASE_OF[direction],
        "compute",
        time + cast / (symbol("cast_rate") * symbol(kernels.parameter("elementwise", "any", "bandwidth"))),
        kernels.gemm_flop(m, n, k, batch),
        kernels.gemm_bytes(m, n, k, batch, element=element_bytes) + cast,
        product=True,
    )


def moved(
    name: str,
    phase: str,
    size: Expr,
    op: str = "elementwise",
    direction: str = "any",
    columns: Expr = 1,
    rows: Expr | None = None,
) -> Op:
    """Return a memory-bound operation that moves `size` bytes in rows of `columns` elements, timed as a kernel `op`.

    torch.compile fuses neighbours and leaves the share `unfused_compiled` of the traffic (`unfused`), and so many of
    the `rows` (None: not known, or the kernel's time does not depend on them).
    """
    size = unfused(size)
    shape = {"bytes": size, "columns": columns}
    given = {n: shape[n] for n in kernels.form_of(op, direction).inputs}
    if rows is not None and (op, direction) in kernels.BY_ROW:
        given["rows"] = unfused(rows)
    time = symbol("memory_bound_slowdown") * kernels.seconds(op, direction, **given)
    return Op(name, phase, "compute", time, 0, size)


def unfused(size: Expr) -> Expr:
    """Return what torch.compile leaves of `size` bytes of neighbouring memory-bound operations."""
    return size * (1 - symbol("compiled") * (1 - symbol("unfused_compiled")))


def elementwise_seconds(size: Expr) -> Expr:
    """Return the seconds of `size` bytes of element-wise traffic that belongs to another operation, floors left out."""
    return traffic_seconds(unfused(size))


def traffic_seconds(size: Expr) -> Expr:
    """Return the seconds of `size` bytes that a kernel moves which torch.compile leaves as it is, floors left out."""
    return symbol("memory_bound_slowdown") * size / symbol(kernels.parameter("elementwise", "any", "bandwidth"))


def in_fp32(name: str, phase: str, size: Expr, switch: Expr = 1) -> Op:
    """Return an element-wise operation that only fp32 training pays, where `switch` is 1.

    The kernels of mixed-precision training do such work on the side: what is left of it is in the run level.
    """
    on = switch * (1 - symbol("master_bytes") / volume.FP32)
    op = moved(name, phase, size)
    return replace(op, seconds=on * op.seconds, bytes=on * op.bytes)


def in_core(on: Expr, op: Op) -> Op:
    """Return an operation that only Megatron-Core's layers have, where `on` is 1."""
    return where(on * symbol("core"), op)


def where(on: Expr, op: Op) -> Op:
    """Return an operation that there is where `on` is 1."""
    return replace(op, seconds=on * op.seconds, bytes=on * op.bytes, launches=on * op.launches)


def norm(name: str, rows: Expr, root_mean_square: bool = False, columns: Expr = hidden) -> Iterator[Op]:
    """Yield a normalisation of rows: reads x and writes y forward; reads dy and x and writes dx backward.

    One by the root mean square ran as a row of fp32 kernels in PyTorch until it had a kernel for it
    (`composite_norm`).
    """
    each = [volume.norm(direction, element_bytes) for direction in kernels.BOTH]
    if root_mean_square:
        parts = [volume.composite_norm(direction, element_bytes) for direction in kernels.BOTH]
        each = [one + symbol("composite_norm") * (many - one) for one, many in zip(each, parts, strict=True)]
    sizes = [one * rows * columns for one in each]
    yield moved(name, "forward", sizes[0], "norm", columns=columns, rows=rows)
    yield moved(f"{name} dgrad", "backward_input", sizes[1], "norm", "backward", columns, rows)


def residual(name: str, rows: Expr, dropout: bool) -> Iterator[Op]:
    """Yield bias + dropout + add."""
    sizes = [volume.residual(direction, element_bytes, dropout) * rows * hidden for direction in kernels.BOTH]
    yield moved(name, "forward", sizes[0], "residual", "forward")
    yield moved(f"{name} dgrad", "backward_input", sizes[1], "residual", "backward", rows=rows)


def tensor_parallel(half: str, product: str, size: Expr, last: str = "") -> Iterator[Op]:
    """Yield the collectives of one half of a block, whose first product is `product`, on `size` bytes.

    last: its last product, where Transformer Engine runs what is gathered and scattered in pieces with both.

    Forward: an all-reduce, or all-gather and reduce-scatter with sequence parallelism. Backward: the gradient
    of the half's input is reduced beside the first product's weight gradient (Megatron-LM's asynchronous
    reduction, arXiv 2205.05198, section 4.2.2). Sequence parallelism first gathers the gradient of the half's output,
    which nothing hides, and gathers the first product's input again beside its input gradient; PyTorch's
    (`torch.distributed.tensor.parallel`) has kept it.
    """
    reduce, gather = tp_group.all_reduce(size), tp_group.all_gather(size)
    sp = sequence_parallel
    both, back = ((product, last), (f"{last} dgrad",)) if last else ((), ())
    yield Op(f"{half} reduce", "forward", "tp", (1 - sp) * reduce + 2 * sp * gather, 0, size, pieces=both)
    yield Op(f"{half} gradient gather", "backward_input", "tp", sp * gather, 0, size, pieces=back)
    yield Op(f"{half} input gather", "backward_input", "tp", gathered_again * gather, 0, size, f"{product} dgrad")
    beside = (1 - sp) * reduce + sp * gather
    yield Op(f"{half} gradient reduce", "backward_input", "tp", beside, 0, size, f"{product} wgrad")


def total(ops: Iterable[Op], quantity: str, kind: str | None = None, phase: str | None = None) -> Expr:
    """Return the sum of `seconds`, `flop` or `bytes` over the operations of a kind and phase."""
    return sum(getattr(op, quantity) for op in ops if kind in (None, op.kind) and phase in (None, op.phase))


def exposed(ops: list[Op], phase: str, kind: str) -> Expr:
    """Return the seconds of collectives in `phase` that the product they run beside does not hide.

    What runs side by side slows both: `overlap_slowdown` of the shorter one is paid in any case. Without the plan's
    `tp_overlap` nothing hides those of tensor parallelism; with its `tp_comm_overlap` those that no product runs beside
    run in pieces with one.
    """
    beside = {op.name: op.seconds for op in ops if op.kind == "compute"}
    asynchronous = symbol("tp_overlap") if kind == "tp" else 1

    def shown(op: Op) -> Expr:
        if op.pieces:
            each, on = op.seconds / len(op.pieces), symbol("tp_comm_overlap") * sequence_parallel
            return (1 - on) * op.seconds + on * sum(in_pieces(each, beside.get(name, 0)) for name in op.pieces)
        if not op.overlap:
            return op.seconds
        return asynchronous * hidden_beside(op.seconds, beside[op.overlap]) + (1 - asynchronous) * op.seconds

    return sum(shown(op) for op in ops if op.kind == kind and op.phase == phase)


def hidden_beside(time: Expr, cover: Expr) -> Expr:
    """Return what `time` adds to a concurrent `cover`: `contention.two_streams` with one slowdown, less `cover`."""
    return maximum(time - cover, 0) + symbol("overlap_slowdown") * minimum(time, cover)


def in_pieces(time: Expr, cover: Expr) -> Expr:
    """Return what a collective of `time` adds to a product of `cover` where both run in as many pieces as ranks.

    Its first or last piece has nothing beside it, nor has one of the product: the others run as `hidden_beside`
    (Transformer Engine's userbuffers, `transformer_engine/common/comm_gemm_overlap`; arXiv 2406.06858, section 3).
    """
    beside = 1 - 1 / tp
    return maximum(time / tp, time - beside * cover) + beside * symbol("overlap_slowdown") * minimum(time, cover)
