"""What a host spends on issuing kernels: Python, dispatcher and autograd, beside the kernels or in turn with them."""

from collections.abc import Sequence

from sim.costs.algebra import Expr, maximum, symbol
from sim.costs.layers import traced
from sim.costs.layers.ops import Op
from sim.costs.layers.structure import Kind, TracedKind
from sim.specs.blocks import GATES


def host_seconds(kind: Kind, ops: Sequence[Op], repeated: Expr) -> dict[str, tuple[Expr, Expr]]:
    """Return by pass what issuing takes beside the kernels of a device, and by itself on a host processor.

    repeated: 1 where the backward pass repeats the forward pass. A layer table tells what operations both have. Of
    other layers the forward ones are known: two gradients for each product make about twice as many backward, also of
    recurrent layers, which launch a step's kernels again and again.
    """
    if isinstance(kind, TracedKind):
        forward, backward = traced.issued(kind, "forward"), traced.issued(kind, *traced.BACKWARD)
    else:
        forward = _launched(ops) if kind.mixer in GATES else (_launched(ops)[0], symbol("issue_s") / 3)
        backward = 2 * forward[0], 2 * forward[1]
    passes = {"forward": forward, "backward": tuple(b + repeated * f for b, f in zip(backward, forward, strict=True))}
    return {name: (maximum(symbol("host_s_per_launch") * n, own), own) for name, (n, own) in passes.items()}


def _launched(ops: Sequence[Op]) -> tuple[Expr, Expr]:
    """Return how many kernels a forward pass launches, and the seconds in which a host processor issues them."""
    held = [(op.launches, op.flop == 0) for op in ops if op.kind == "compute" and op.phase == "forward"]
    return sum(n for n, _ in held), sum(n * traced.ISSUE[pointwise] for n, pointwise in held)
