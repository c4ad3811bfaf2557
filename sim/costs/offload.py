"""Costs of what host memory keeps: activations between a forward and its backward, optimizer states between updates.

Copies go layer by layer over the host link of each device, both directions at once (Mist, EuroSys 2025, hides them
behind compute in the same way). Activations have two layers' room in each direction: one layer runs while another is
copied. Optimizer states have room for three layers: one arrives, one is updated, one leaves. Outputs are as those of
`stage`, in bytes of one rank and seconds; they are a model of their own, so that steps without offload cost nothing.
"""

from functools import lru_cache

from sim.costs import stage
from sim.costs.algebra import Compiled, Expr, compile_expressions, maximum, minimum, symbol
from sim.costs.layers.ops import hidden_beside
from sim.costs.layers.structure import Structure

ROOM = 2
"""Layers of activations that are on the device in either direction."""
UPDATE_ROOM = 3
"""Layers whose optimizer states are on the device at once: one comes, one is updated, one leaves."""
optimizer, activations, rate = (symbol(n) for n in ("offload_optimizer", "offload_activations", "host_bytes_per_s"))


def expressions(structure: Structure) -> dict[str, Expr]:
    """Return the outputs.

    Per chunk and microbatch: moved_bytes of activations, copied (seconds in either direction), staged_bytes (the room
    for copies, all through the step), and what passes wait: forward_offload, backward_offload. Per rank and step, by
    where it is: moved_optimizer, staged_optimizer (bytes), swapped (seconds in either direction), optimizer_offload
    (what the update waits).
    """
    chunk, states = stage.chunk(structure), stage.states(structure)
    layers = sum(symbol(f"layers_{k}") for k in range(len(structure.kinds)))
    moved = activations * chunk["saved_bytes"]
    forward = stage.forward_seconds(chunk) + chunk["forward_dp"] + chunk["forward_host"]
    backward = stage.backward_seconds(chunk) + chunk["recompute"] + chunk["backward_dp"] + chunk["backward_host"]
    out = {
        "moved_bytes": moved,
        "copied": moved / rate,
        "staged_bytes": moved / maximum(layers, 1) * minimum(layers, 2 * ROOM),
        "forward_offload": _waited(moved / rate, forward, backward, layers),
        "backward_offload": _waited(moved / rate, backward, forward, layers),
    }
    on_rank = stage.on_rank(structure, lambda k: 1)
    for where in stage.held(structure):
        swapped = optimizer * states[f"optimizer_bytes_{where}"]
        out |= {
            f"moved_optimizer_{where}": swapped,
            f"staged_optimizer_{where}": swapped / maximum(on_rank, 1) * minimum(on_rank, UPDATE_ROOM),
            f"swapped_{where}": swapped / rate,
            f"optimizer_offload_{where}": _swapped(swapped / rate, states[f"optimizer_{where}"], maximum(on_rank, 1)),
        }
    return out


def _waited(copy: Expr, own: Expr, other: Expr, layers: Expr) -> Expr:
    """Return what a pass of `own` seconds waits for `copy` seconds of copies in its direction.

    It waits where a copy takes longer than the layer beside it, but for the layers that there is room for: those are
    copied beside the pass in the other direction (`other`), as long as the link is not busy all the time. Side by side
    both slow down: a short copy adds to the pass, a long one lasts longer itself.
    """
    share = maximum(0, layers - ROOM) / maximum(layers, 1)
    slowed = symbol("overlap_slowdown") * minimum(copy, own)
    return maximum(slowed, share * (copy - own + slowed), (copy + 2 * slowed - own - other) / 2)


def _swapped(copy: Expr, update: Expr, pieces: Expr) -> Expr:
    """Return what an update waits for `copy` seconds in and as many out: the first piece in, the last one out, and
    what the copies of the others take longer than their update."""
    most = 1 - 1 / pieces
    return 2 * copy / pieces + most * hidden_beside(copy, update)


@lru_cache
def offload_model(structure: Structure) -> Compiled:
    """Return `expressions` as one compiled function (cached)."""
    return compile_expressions(expressions(structure))
