"""Layers and ends of a traced network: the kernels that a layer table lists, through the same forms as all others."""

from collections.abc import Mapping

from sim.costs import kernels
from sim.costs.algebra import Expr, maximum, symbol
from sim.costs.kernels import FALLBACK, element_bytes
from sim.costs.layers.attention import fused
from sim.costs.layers.ops import Op, micro_batch, moved, product, repeated
from sim.costs.layers.structure import TracedKind
from sim.specs import table
from sim.specs.traced import NO_SIZE, Pair

DIRECTIONS = {"forward": "forward", "backward_input": "dgrad", "backward_weight": "wgrad"}
ISSUE: dict[str, Expr] = {
    "elementwise": symbol("pointwise_issue_s"),
    "convolution": symbol("convolution_issue_s"),
}
"""Seconds in which a host processor issues operations of some kinds; any other as long as `OTHER_ISSUE`."""
OTHER_ISSUE = symbol("product_issue_s")
BACKWARD: tuple[table.Phase, ...] = ("backward_input", "backward_weight")
ONE = (1, 0)


def size(pair: Pair) -> Expr:
    """Return a size of the table at the plan's micro-batch."""
    return table.at(pair, micro_batch)


def operations(kind: TracedKind, end: bool = False) -> list[Op]:
    """Return all kernels of a part, forward and backward; no precision recipe touches an `end` of the network."""
    found = [
        repeated(op.count, _kernel, f"{op.kind} {n}", op, phase, end)
        for phase in table.PHASES
        for n, op in enumerate(kind.part.ops(phase), 1)
        if all(getattr(op, name) != NO_SIZE for name in table.SIZES[op.kind])
    ]
    return found + [_issue(kind, phase) for phase in table.PHASES] if end else found


def issued(kind: TracedKind, *phases: table.Phase) -> tuple[Expr, Expr]:
    """Return how many operations some phases have, and the seconds in which a host processor issues them."""
    ops = [op for phase in phases for op in kind.part.ops(phase)]
    return sum(op.count for op in ops), sum(op.count * issue_of(op) for op in ops)


def issue_of(op: table.Op) -> Expr:
    """Return the seconds in which a host processor issues an operation once."""
    return ISSUE.get(op.kind, OTHER_ISSUE)


def _issue(kind: TracedKind, phase: table.Phase) -> Op:
    """Return what a host processor adds for issuing an end's operations; a device beside its host hides it."""
    return Op(f"issue {phase}", phase, "compute", symbol("on_host") * issued(kind, phase)[1], launches=0)


def _kernel(name: str, op: table.Op, phase: table.Phase, end: bool) -> Op:
    """Return one launch; no recipe touches products of activations and of groups (more than one at once)."""
    x = op.inputs(micro_batch, phase)
    if op.kind in table.PRODUCTS:
        rows = (_narrow if op.kind == "gemm" else _few)(DIRECTIONS[phase], x, op)
        return product(name, DIRECTIONS[phase], **x, plain=end or op.batch != ONE, op=op.kind, narrow=rows)
    if op.kind == "attention":
        return fused(name, "forward" if phase == "forward" else "backward", _attention_bytes(op, phase), **x)
    direction = "forward" if phase == "forward" else "backward"
    if (op.kind, direction) not in FALLBACK:
        direction = "any"
    return moved(name, phase, x["bytes"], op.kind, direction, x.get("columns", 1))


def _narrow(direction: str, x: Mapping[str, Expr], _: table.Op) -> Mapping[str, Expr] | None:
    """Return whether rows of a product's matrices are narrow, None where none are; those of samples are not known."""
    sizes = kernels.in_rows(direction, x["m"], x["n"], x["k"])
    found = kernels.narrow(*(float(size) for size in sizes if getattr(size, "is_number", True)), kernels.ALIGNED)
    return found if any(found.values()) else None


def _few(direction: str, x: Mapping[str, Expr], op: table.Op) -> Mapping[str, Expr] | None:
    """Return what the few channels of a convolution make of it; None of others, and of groups, which nobody timed."""
    sizes = kernels.in_rows(direction, x["m"], x["n"], x["k"])
    if op.channels is None or op.channels >= kernels.ALIGNED or op.batch != ONE:
        return None
    if not all(getattr(size, "is_number", True) for size in sizes):
        return None
    return kernels.few_channels(direction, x["m"], x["n"], x["k"], op.channels)


def _attention_bytes(op: table.Op, phase: table.Phase) -> Expr:
    """Return the bytes of queries, keys, values and context, as often as their products are taken."""
    x = {name: table.at(getattr(op, name), micro_batch) for name in table.ATTENTION}
    rows = x["heads"] * x["query_len"] + x["kv_heads"] * x["key_len"]
    once = element_bytes * x["batch"] * rows * (x["head_dim"] + x["value_dim"])
    return once * (1 if phase == "forward" else op.flop(1, phase) / op.flop(1))


def block_bytes(kind: TracedKind, full: Expr, share: Expr) -> tuple[Expr, Expr]:
    """Return (kept, rebuilt) as `sim.costs.memory.block_bytes`; `full` keeps what the part in front hands over, in
    `share` of the layers."""
    saved, inflow = kind.part.saved, kind.part.inflow
    rebuilt = (max(0, saved[0] - inflow[0]), max(0, saved[1] - inflow[1]))
    return (1 - share * full) * size(saved) + share * full * size(inflow), full * size(rebuilt)


def gradient_bytes(kind: TracedKind) -> Expr:
    """Return what is alive beside what is kept: gradients, or on a host processor what a convolution copies in forward,
    if that is more."""
    copied = kind.part.copied_bytes(micro_batch)
    gradients = kind.part.gradient_bytes(micro_batch)
    return maximum(gradients, symbol("on_host") * copied) if copied else gradients
