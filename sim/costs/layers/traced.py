"""Layers and ends of a traced network: the kernels that a layer table lists, through the same forms as all others."""

from sim.costs.algebra import Expr
from sim.costs.kernels import FALLBACK, element_bytes
from sim.costs.layers.attention import fused
from sim.costs.layers.ops import Op, micro_batch, moved, product, repeated
from sim.costs.layers.structure import TracedKind
from sim.specs import table
from sim.specs.traced import NO_SIZE, Pair

DIRECTIONS = {"forward": "forward", "backward_input": "dgrad", "backward_weight": "wgrad"}
ONE = (1, 0)


def size(pair: Pair) -> Expr:
    """Return a size of the table at the plan's micro-batch."""
    return table.at(pair, micro_batch)


def operations(kind: TracedKind, end: bool = False) -> list[Op]:
    """Return all kernels of a part, forward and backward; no precision recipe touches an `end` of the network."""
    return [
        repeated(_kernel(f"{op.kind} {n}", op, phase, end), op.count)
        for phase in table.PHASES
        for n, op in enumerate(kind.part.ops(phase), 1)
        if all(getattr(op, name) != NO_SIZE for name in table.SIZES[op.kind])
    ]


def _kernel(name: str, op: table.Op, phase: table.Phase, end: bool) -> Op:
    """Return one launch; no recipe touches products of activations and of groups (more than one at once)."""
    x = op.inputs(micro_batch, phase)
    if op.kind in table.PRODUCTS:
        return product(name, DIRECTIONS[phase], **x, plain=end or op.batch != ONE, op=op.kind)
    if op.kind == "attention":
        return fused(name, "forward" if phase == "forward" else "backward", _attention_bytes(op, phase), **x)
    direction = "forward" if phase == "forward" else "backward"
    if (op.kind, direction) not in FALLBACK:
        direction = "any"
    return moved(name, phase, x["bytes"], op.kind, direction, x.get("columns", 1))


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
    """Return the gradients alive at once: a kernel's input and output of the largest size, and the layer's own."""
    return 2 * size(kind.part.temporary) + size(kind.part.boundary)
