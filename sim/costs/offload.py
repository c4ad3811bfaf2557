"""Costs of what host memory keeps: activations, weights and gradients beside passes, all but activations at updates.

Copies go layer by layer over the host link of each device, both directions at once (Mist, arXiv 2503.19050, hides them
behind compute in the same way). Of what a rank's layers hold (embedding and head stay on the device):

- activations leave in a forward and come back in its backward, with two layers' room in each direction;
- weights, sharded with ZeRO-3, come before every forward and again before every backward, one layer ahead (two layers'
  room); they do not change until the update, after which all of them leave;
- gradients (summed, sharded with ZeRO-2/3) come in every backward but the first since an update, and leave: one layer's
  come, one's are added to, one's leave. Once more they come to the update. So as much comes as leaves; closed forms
  spread what comes over the microbatches;
- optimizer states (those of embedding and head too) come to the update and leave, in the same three layers' room, which
  passes have for what they save. So do weights without another master copy (FSDP's fp32 shards, training in fp32), as
  far as the rank updates them.

Outputs are as those of `stage`, in bytes of one rank and seconds; they are a model of their own, so that steps without
offload cost nothing.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from sim.costs import memory, stage
from sim.costs.algebra import Compiled, Expr, Interpreted, compile_expressions, maximum, minimum, symbol
from sim.costs.layers.ops import hidden_beside
from sim.costs.layers.structure import Structure

ROOM = 2
"""Layers of activations that are on the device in either direction, and layers of weights."""
UPDATE_ROOM = 3
"""Layers whose gradients or optimizer states are on the device at once: one comes, one is used, one leaves."""
optimizer, activations, weights, gradients = (
    symbol(f"offload_{n}") for n in ("optimizer", "activations", "weights", "gradients")
)
rate, slowdown = symbol("host_bytes_per_s"), symbol("overlap_slowdown")


class Pass(NamedTuple):
    """A pass over a chunk: what it takes alone, and the copies beside it in either direction, in seconds.

    ahead: layers whose copies to the device may be done before the pass begins.
    """

    own: Expr
    h2d: Expr = 0
    d2h: Expr = 0
    ahead: Expr = ROOM


def expressions(structure: Structure) -> dict[str, Expr]:
    """Return the outputs.

    Per chunk and microbatch: moved_bytes of activations; seconds of copies in either direction: forward_h2d (weights),
    forward_d2h (activations), backward_h2d (both and gradients), backward_d2h (gradients); staged_bytes (the room for
    copies, all through the step); and what passes wait: forward_offload, backward_offload, and of a backward in two
    parts input_offload and weight_offload. Per rank and step, by where it is: moved_optimizer, moved_weights,
    moved_gradients, staged_update (bytes), update_h2d, update_d2h (seconds), optimizer_offload (what the update waits).
    """
    return _of_chunk(structure) | _of_rank(structure)


def _of_chunk(structure: Structure) -> dict[str, Expr]:
    chunk = stage.chunk(structure)
    counts = [symbol(f"layers_{k}") for k in range(len(structure.kinds))]
    layers = sum(counts)
    moved = activations * chunk["saved_bytes"]
    weight = weights * stage.weight_bytes * _parameters(counts, stage.zero3)
    gradient = gradients * stage.reduce_bytes * _parameters(counts, stage.zero2)
    again = maximum(0, 1 - symbol("first_sums") / symbol("microbatches")) * gradient
    first = _one(stage.forward_seconds(chunk) + chunk["forward_dp"] + chunk["forward_host"])
    both = stage.backward_seconds(chunk) + chunk["recompute"] + chunk["backward_dp"] + chunk["backward_host"]
    both, made = _one(both), _one(chunk["weight_compute"])
    forward = Pass(first, weight / rate, moved / rate, 1)
    backward = Pass(both, (weight + moved + again) / rate, gradient / rate, _ahead(weight, moved + again))
    by_input = Pass(both - made, (weight + moved) / rate, 0, _ahead(weight, moved))
    by_weight = Pass(made, again / rate, gradient / rate)
    waits = {each: _waited(each, layers) for each in (forward, backward, by_input, by_weight)}
    link = _link(forward, backward) - waits[forward]
    rooms = (moved, 2 * ROOM), (weight, ROOM), (gradient, UPDATE_ROOM)
    return {
        "moved_bytes": moved,
        "forward_h2d": forward.h2d,
        "forward_d2h": forward.d2h,
        "backward_h2d": backward.h2d,
        "backward_d2h": backward.d2h,
        "staged_bytes": sum(size / maximum(layers, 1) * minimum(layers, room) for size, room in rooms),
        "forward_offload": waits[forward],
        "backward_offload": maximum(waits[backward], link),
        "input_offload": maximum(waits[by_input], link - waits[by_weight]),
        "weight_offload": waits[by_weight],
    }


def _one(total: Expr) -> Expr:
    """Return a time as one term: SymPy would write out a factor and a sign before each of the sum's."""
    return maximum(0, total)


def _ahead(weight: Expr, others: Expr) -> Expr:
    """Return how many layers' copies may be done before a backward begins: one of weights, two of what else comes."""
    return ROOM - weight / maximum(weight + others, 1)


def _of_rank(structure: Structure) -> dict[str, Expr]:
    states, out = stage.states(structure), dict[str, Expr]()
    counts = [symbol(f"rank_layers_{k}") for k in range(len(structure.kinds))]
    pieces = maximum(sum(counts), 1)
    weight = weights * stage.weight_bytes * _parameters(counts, stage.zero3)
    gradient = gradients * stage.reduce_bytes * _parameters(counts, stage.zero2)
    # Where there is no other fp32 copy, the update reads its part of the weights themselves.
    own_master = 1 - (1 - stage.fsdp) * memory.mixed
    master = own_master * weights * stage.weight_bytes * _parameters(counts, stage.zero1)
    for where in stage.held(structure):
        swapped = optimizer * states[f"optimizer_bytes_{where}"]
        h2d, d2h = (swapped + gradient + master) / rate, (swapped + weight) / rate
        out |= {
            f"moved_optimizer_{where}": swapped,
            f"moved_weights_{where}": weight,
            f"moved_gradients_{where}": gradient,
            f"staged_update_{where}": (swapped + weight + gradient) / pieces * minimum(pieces, UPDATE_ROOM),
            f"update_h2d_{where}": h2d,
            f"update_d2h_{where}": d2h,
            f"optimizer_offload_{where}": _swapped(h2d, d2h, states[f"optimizer_{where}"], pieces),
        }
    return out


def _parameters(counts: Sequence[Expr], by: Expr) -> Expr:
    """Return a rank's parameters of so many layers of each kind, sharded where `by` is 1."""
    return sum(
        n * stage.sharded(memory.layer_parameters(k), memory.expert_parameters(k), by) for k, n in enumerate(counts)
    )


def _waited(one: Pass, layers: Expr) -> Expr:
    """Return what a pass waits for the copies beside it: for the link, or because they slow it.

    It waits for the link where a layer's copies take longer than the layer, but for the layers that are ahead or may
    leave later.
    """
    late = (maximum(0, layers - n) / maximum(layers, 1) * t for n, t in zip((one.ahead, ROOM), _late(one), strict=True))
    slowed = slowdown * (minimum(one.h2d, one.own) + minimum(one.d2h, one.own))
    # Where the pass lasts no longer than both copies, these run at once for a while: of what runs slower then, each
    # slows the pass less than alone.
    copied = one.own * (1 + 2 * slowdown) + slowdown * (one.h2d + one.d2h)
    return maximum(minimum(slowed, (1 + slowdown) / (1 + 3 * slowdown) * copied - one.own), *late)


def _late(one: Pass) -> list[Expr]:
    """Return how much longer the copies of a pass take than it does alone, in either direction.

    Beside it they are slower, as long as it runs; and that is longer where copies in the other direction slow it too.
    """
    beside = (
        one.own + slowdown * minimum(one.own / (1 + slowdown), other / (1 + 2 * slowdown))
        for other in (one.d2h, one.h2d)
    )
    return [copy + slowdown * minimum(copy, t) - one.own for copy, t in zip((one.h2d, one.d2h), beside, strict=True)]


def _link(*passes: Pass) -> Expr:
    """Return what passes wait together where one direction of the link is busy all the time."""
    return maximum(*_late(Pass(*(sum(p[i] for p in passes) for i in range(3)))))


def _swapped(h2d: Expr, d2h: Expr, update: Expr, pieces: Expr) -> Expr:
    """Return what an update waits for copies: the first piece in, the last one out, and what the copies of the others
    take longer than their update."""
    most = 1 - 1 / pieces
    return (h2d + d2h) / pieces + most * hidden_beside(maximum(h2d, d2h), update)


@lru_cache
def offload_walked(structure: Structure) -> Interpreted:
    """Return `expressions` to be walked (cached): for a look at one plan."""
    return Interpreted(expressions(structure))


@lru_cache
def offload_model(structure: Structure) -> Compiled | Interpreted:
    """Return `expressions` as one function (cached), compiled where that takes a second: of stacks of several kinds of
    layers it takes a minute."""
    return compile_expressions(expressions(structure)) if len(structure.kinds) == 1 else offload_walked(structure)
