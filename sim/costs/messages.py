"""Messages between pipeline stages: their bytes, and how long passes stand still for them where sends block."""

from collections.abc import Mapping

from sim.costs.algebra import Expr, minimum, symbol
from sim.costs.collectives import send
from sim.costs.layers.ops import sequence_parallel, tp, tp_group

pp = symbol("pp")


def sends_whole() -> Expr:
    """Return 1 where every rank sends all of a boundary, which it has; 0 where each sends its part, and without
    sequence parallelism the receivers gather the whole."""
    return (1 - symbol("scatter_gather")) * (1 - sequence_parallel)


def messages(e: Mapping[str, Expr]) -> tuple[Expr, Expr, Expr]:
    """Return the bytes of a boundary message, the share of a pipeline's hops that leave a node, and their number."""
    return e["boundary_buffer_bytes"] / 2 * (1 + sends_whole() * (tp - 1)), symbol("pp_inter"), pp - 1


def received(boundary: Expr, inter: Expr) -> Expr:
    """Return the seconds until a boundary of so many bytes has come, gathered where it came in parts."""
    gathered = (1 - sends_whole()) * (1 - sequence_parallel) * tp_group.all_gather(boundary)
    return minimum(1, pp - 1) * gathered + sent(boundary, inter)


def sent(boundary: Expr, inter: Expr) -> Expr:
    """Return the seconds until a boundary is sent."""
    whole = sends_whole()
    return minimum(1, pp - 1) * ((1 - whole) * send(boundary / tp, inter) + whole * send(boundary, inter))


def waits(boundary: Expr) -> dict[str, tuple[Expr, Expr, Expr]]:
    """Return how long the passes that block wait: of any chunk, and how much longer those of the first and the last.

    A pass waits for what it receives and for what it sends; at an end of the pipeline for one of the two.
    """
    before, after = symbol("pp_inter"), symbol("pp_inter_out")
    between, blocking = minimum(1, pp * symbol("virtual_stages") - 2), symbol("blocking_sends")
    out = {}
    for phase, source, target in (("forward_pp", before, after), ("input_pp", after, before)):
        coming, going = received(boundary, source), sent(boundary, target)
        begins, ends = -between * coming, (1 - between) * coming - going
        sides = (begins, ends) if phase == "forward_pp" else (ends, begins)
        out[phase] = (blocking * (between * coming + going), blocking * sides[0], blocking * sides[1])
    return out
