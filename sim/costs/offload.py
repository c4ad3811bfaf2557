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
  passes have for what they save: in pieces as large as a layer's, whatever they are of, as DeepSpeed's are of so many
  parameters (`sub_group_size`, ZeRO-Infinity, arXiv 2104.07857). So do weights without another master copy (FSDP's fp32
  shards, training in fp32), as far as the rank updates them.

Outputs are as those of `stage`, in bytes of one rank and seconds; they are a model of their own, so that steps without
offload cost nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from sim.costs import memory, sharding, stage
from sim.costs.algebra import Compiled, Expr, Interpreted, compile_expressions, composed, maximum, minimum, symbol
from sim.costs.layers import ends
from sim.costs.layers.ops import COMMUNICATION
from sim.costs.layers.structure import Structure
from sim.costs.overlap import Cover, covers, held_up, outlasts
from sim.costs.side_by_side import ROOM, Beside, Pass, one_after_other, side_by_side, slowed

UPDATE_ROOM = 3
"""Layers whose gradients or optimizer states are on the device at once: one comes, one is used, one leaves."""
optimizer, activations, weights, gradients = (
    symbol(f"offload_{n}") for n in ("optimizer", "activations", "weights", "gradients")
)
rate = symbol("host_bytes_per_s")


class Apart(NamedTuple):
    """Seconds that the parts of a backward in two wait for copies, and what of the first one's is aside (`Waits`)."""

    input_offload: Expr
    weight_offload: Expr
    input_aside: Expr


class Rows(NamedTuple):
    """Seconds that a rank waits more between two passes of a kind in a row, as the first leaves no room; and what the
    second backward waits less, with the link for itself."""

    forward_row: Expr
    backward_row: Expr
    weight_row: Expr
    backward_spared: Expr


class Waits(NamedTuple):
    """Seconds that forwards and backwards of a chunk wait for copies: of a rank that is never idle (all that it waits
    for the link is the backward's), and what of both is aside: later and earlier stages do not wait for it."""

    forward: Expr
    backward: Expr
    forward_aside: Expr
    backward_aside: Expr


def expressions(structure: Structure) -> dict[str, Expr]:
    """Return the outputs.

    Per chunk and microbatch: moved_bytes of activations; seconds of copies in either direction: forward_h2d (weights),
    forward_d2h (activations), backward_h2d (both and gradients), backward_d2h (gradients); staged_bytes (the room for
    copies, all through the step); and what passes wait: forward_offload, backward_offload, forward_aside and
    backward_aside (see `Waits`), of a backward in two parts input_offload, weight_offload and input_aside, of passes in
    a row forward_row, backward_row, weight_row and backward_spared (see `Rows`), <end>_ of all these what the
    embedding's and the head's passes wait more. Per rank and step, by where it is: moved_optimizer, moved_weights,
    moved_gradients, staged_update (bytes), update_h2d, update_d2h (seconds), update_kernels (seconds of the optimizer
    that copies run beside: its kernels, and what it waits for the host that issues them), update_pieces (how many
    layers' copies they are, at least 1), optimizer_offload (what the update waits), throttled (by how much an update's
    last backwards, of all chunks, end later: `_throttled`).
    late_backward: as of `stage`, what gradients that wait for their room leave of it. <a>_by_<b>: how much slower
    copies of either direction (h2d, d2h) are beside collectives, and these beside them.
    """
    given = parts(structure)
    return composed(outputs(tuple(given)), {part_name(name): e for name, e in given.items()})


ENDS = ("", "embedding_", "head_")
"""Prefixes of what a plain chunk, one with the embedding and one with the head (alone, with both) wait."""


def parts(structure: Structure) -> dict[str, Expr]:
    """Return what `outputs` reads: all that it does not work out, and every `Pass` by `<end><pass>_<field>`.

    Apart, since the waits name each of these many times, and SymPy walks an expression as often.
    """
    chunk = stage.chunk(structure)
    counts = [symbol(f"layers_{k}") for k in range(len(structure.kinds))]
    layers = sum(counts)
    moved = activations * chunk["saved_bytes"]
    weight = weights * sharding.weight_bytes * _parameters(counts, sharding.zero3)
    gradient = gradients * sharding.reduce_bytes * _parameters(counts, sharding.zero2)
    again = maximum(0, 1 - symbol("first_sums") / symbol("microbatches")) * gradient
    embedding, head = stage.phases(ends.embedding(structure)), stage.head(structure, chunk)
    alone = {k: (1 - minimum(1, stage.pp - 1)) * v for k, v in embedding.items()}
    traffic, passes = stage.traffic(structure), dict[str, Pass]()
    for end, more in zip(ENDS, ([], [embedding], [head, alone]), strict=True):
        times = {k: v + sum(one.get(k, 0) for one in more) for k, v in chunk.items()}
        first = stage.forward_seconds(times) + chunk["forward_dp"] + chunk["forward_host"]
        both = stage.backward_seconds(times) + chunk["recompute"] + chunk["backward_dp"] + times["backward_host"]
        inner = [sum(times[f"{phase}_{c}"] for c in COMMUNICATION) for phase in ("forward", "input")]
        passes |= {
            f"{end}forward": Pass(
                first, inner[0], traffic["gather"], chunk["forward_dp"], weight / rate, moved / rate, 1, 0
            ),
            f"{end}backward": Pass(
                both, inner[1], traffic["gather"] + traffic["scatter"], chunk["backward_dp"],
                (weight + moved + again) / rate, gradient / rate,
                _ahead(weight, moved + again, 1), _ahead(weight, moved + again, 0),
            ),
        }  # fmt: skip
        # In two parts either has its own collectives and copies beside it.
        made = times["weight_compute"] + times["weight_host"]
        passes |= {
            f"{end}input": Pass(
                both - made - chunk["backward_dp"] + chunk["input_dp"], inner[1], traffic["gather"], chunk["input_dp"],
                (weight + moved) / rate, 0, _ahead(weight, moved, 1), _ahead(weight, moved, 0),
            ),
            f"{end}weight": Pass(
                made + chunk["weight_dp"], 0, traffic["scatter"], chunk["weight_dp"], again / rate, gradient / rate
            ),
        }  # fmt: skip
    kinds = range(len(structure.kinds))
    saved, copied, summed = zip(*(_of_layer(structure, k) for k in kinds), strict=True)
    rooms = (moved, 2 * ROOM, saved), (weight, ROOM, copied), (gradient, UPDATE_ROOM, summed)
    largest = [maximum(*(minimum(1, n) * x for n, x in zip(counts, each, strict=True)), 0) for _, _, each in rooms]
    parts = {
        "layers": layers,
        "moved_bytes": moved,
        "staged_bytes": sum(minimum(size, room * x) for (size, room, _), x in zip(rooms, largest, strict=True)),
        "late_backward": _late(chunk, traffic["scatter"], gradient / rate, layers),
    }
    fields = {f"{name}_{field}": value for name, p in passes.items() for field, value in p._asdict().items()}
    return parts | fields | _of_rank(structure)


@lru_cache
def outputs(names: tuple[str, ...]) -> dict[str, Expr]:
    """Return `expressions` over the symbols of these parts."""
    e = {name: symbol(part_name(name)) for name in names}
    layers = e["layers"]

    def given(name: str) -> Pass:
        return Pass(*(e[f"{name}_{field}"] for field in Pass._fields))

    # Where a backward follows its forward at once, the last layers' activations stay.
    stay = symbol("turns") * minimum(1, ROOM / maximum(layers, 1)) * e["forward_d2h"]
    stays = dict(zip(ENDS, (0, 0, stay), strict=True))
    out = {name: e[name] for name in names if name.endswith("_bytes") or name.startswith(("moved", "staged", "update"))}
    out |= {name: e[name] for name in names if name.startswith(("optimizer_offload", "throttled", "late"))}
    out |= {f"{name}_{way}": e[f"{name}_{way}"] for name in ("forward", "backward") for way in ("h2d", "d2h")}
    for way in ("h2d", "d2h"):
        out |= {f"{a}_by_{b}": slowed(a, b) for a, b in ((way, "collective"), ("collective", way))}
    several = minimum(1, stage.pp - 1)  # alone a stage has both ends, and the head's speak for them
    names = ("forward_offload", "backward_offload", *Waits._fields[2:], *Apart._fields, *Rows._fields)
    base: list[Expr] = [0] * len(names)
    for end, share in zip(ENDS, (1, several, 1), strict=True):
        forward, whole, first, weight = (given(f"{end}{n}") for n in ("forward", "backward", "input", "weight"))
        waits = _waits(forward, whole, layers, stays[end])
        apart = _apart(forward, first, weight, layers, stays[end])
        every = [*waits, *apart, *_rows(forward, whole, weight, layers, waits, apart)]
        out |= {f"{end}{name}": share * (a - b) for name, a, b in zip(names, every, base, strict=True)}
        base = base if end else every
    return out


def part_name(name: str) -> str:
    """Return the name of the symbol that stands for a part."""
    return f"offload_part_{name}"


def _ahead(weight: Expr, others: Expr, layers: int) -> Expr:
    """Return how many layers' copies may be done before a backward begins: so many of weights, two of what else
    comes."""
    return ROOM - (ROOM - layers) * weight / maximum(weight + others, 1)


def _of_layer(structure: Structure, kind: int) -> tuple[Expr, Expr, Expr]:
    """Return the bytes of activations, weights and gradients that are copied beside the passes of one such layer."""
    one = [int(k == kind) for k in range(len(structure.kinds))]
    return (
        activations * stage.layer(structure, kind)["saved_bytes"],
        weights * sharding.weight_bytes * _parameters(one, sharding.zero3),
        gradients * sharding.reduce_bytes * _parameters(one, sharding.zero2),
    )


def _late(chunk: Mapping[str, Expr], scatter: Expr, out: Expr, layers: Expr) -> Expr:
    """Return the seconds for which ZeRO-2 and 3 reduce gradients after the message of a backward has left."""
    late, most = chunk["late_backward"], _left(scatter, covers(chunk)[1], out, layers)
    return late - _waiting() * maximum(0, late - most)


def _throttled(structure: Structure, reduced: Expr, rank: "_Swaps") -> Expr:
    """Return by how many seconds the last backwards of a rank before an update, of all its chunks, end later.

    A layer has room for its gradients when those of the third layer before it have left, and these have been reduced
    first: a backward runs no faster than the reductions beside it, and other ranks wait for its message. (What copies
    beside it delay it anyway does not count twice.)
    """
    chunks = symbol("virtual_stages")
    layers = maximum(1, stage.on_rank(structure, lambda k: 1) / chunks)
    backward = Cover(*(each / chunks for each in stage.rank_covers(structure)[1]))
    time, out = reduced / chunks, rank.gradient / rate / chunks
    left = outlasts(time, backward)
    late = time / layers + (1 - 1 / layers) * (left - held_up(left, backward))
    copied = maximum(0, out + rank.weight / rate / chunks - sum(backward))
    return chunks * stage.overlap_dp * _waiting() * maximum(0, late - _left(time, backward, out, layers) - copied)


def _left(time: Expr, backward: Cover, out: Expr, layers: Expr) -> Expr:
    """Return the most of reductions of `time` seconds that is left at the end of a backward whose gradients leave in
    `out` seconds: its last layer has waited for all but those that have room beside it."""
    n = maximum(layers, 1)
    return maximum(time, minimum(UPDATE_ROOM, n) * time - sum(backward) - out) / n


def _waiting() -> Expr:
    """Return 1 where a share of gradients, however small, is in host memory: their layer waits for its room."""
    return minimum(1, 1e12 * gradients)


def _of_rank(structure: Structure) -> dict[str, Expr]:
    states, out, raw = stage.states(structure), dict[str, Expr](), stage.updates(structure)
    counts, alone = [symbol(f"rank_layers_{k}") for k in range(len(structure.kinds))], _layers_alone(structure)
    late = stage.late_updates(structure, {where: states[f"optimizer_{where}"] for where in stage.held(structure)})
    for where in stage.held(structure):
        rank = _swaps(counts, states[f"optimizer_bytes_{where}"])
        h2d, d2h = rank.in_bytes / rate, rank.out_bytes / rate
        pieces, update = rank.pieces(alone), states[f"optimizer_{where}"] + late[where]
        out |= {
            f"moved_optimizer_{where}": rank.optimizer,
            f"moved_weights_{where}": rank.weight,
            f"moved_gradients_{where}": rank.gradient,
            f"staged_update_{where}": rank.staged / pieces * minimum(pieces, UPDATE_ROOM),
            f"update_h2d_{where}": h2d,
            f"update_d2h_{where}": d2h,
            f"update_kernels_{where}": update,
            f"update_pieces_{where}": pieces,
            f"optimizer_offload_{where}": _swapped(h2d, d2h, update, pieces),
            f"throttled_{where}": _throttled(structure, raw[f"reduced_{where}"], rank),
        }
    return out


class _Swaps(NamedTuple):
    """Bytes that come to an update and leave after it; `master`: of weights that it reads."""

    optimizer: Expr
    weight: Expr
    gradient: Expr
    master: Expr

    @property
    def in_bytes(self) -> Expr:
        return self.optimizer + self.gradient + self.master

    @property
    def out_bytes(self) -> Expr:
        return self.optimizer + self.weight

    @property
    def staged(self) -> Expr:
        return self.optimizer + self.weight + self.gradient

    def pieces(self, layers: Sequence["_Swaps"]) -> Expr:
        """Return in how many pieces they are copied, as large as the largest of these single layers; at least one."""
        largest = maximum(*(one.in_bytes + one.out_bytes for one in layers), 1)
        return maximum(1, (self.in_bytes + self.out_bytes) / largest)


def _swaps(counts: Sequence[Expr | int], optimizer_bytes: Expr) -> _Swaps:
    """Return what the update of so many layers of each kind swaps, with `optimizer_bytes` of states on the rank."""
    # Where there is no other fp32 copy, the update reads its part of the weights themselves.
    own_master = 1 - (1 - sharding.fsdp) * memory.mixed
    return _Swaps(
        optimizer * optimizer_bytes,
        weights * sharding.weight_bytes * _parameters(counts, sharding.zero3),
        gradients * sharding.reduce_bytes * _parameters(counts, sharding.zero2),
        own_master * weights * sharding.weight_bytes * _parameters(counts, sharding.zero1),
    )


def _layers_alone(structure: Structure) -> list[_Swaps]:
    """Return what the update of one layer of each kind swaps."""
    n = len(structure.kinds)
    alone = [[int(i == k) for i in range(n)] for k in range(n)]
    return [_swaps(one, sharding.optimizer_state_bytes * _parameters(one, sharding.zero1)) for one in alone]


def _parameters(counts: Sequence[Expr | int], by: Expr) -> Expr:
    """Return a rank's parameters of so many layers of each kind, sharded where `by` is 1."""
    return sum(
        n * sharding.sharded(memory.layer_parameters(k), memory.expert_parameters(k), by) for k, n in enumerate(counts)
    )


def _waits(forward: Pass, backward: Pass, layers: Expr, staying: Expr) -> Waits:
    """Return what passes wait for copies; `staying` seconds of those of activations are not made in either direction.

    They are those of the layers that nothing waits for, so that they only relieve the link and slow nothing.
    """
    made, own, through = _alone(forward, backward, layers, staying)
    link, again = one_after_other(made), _summed(backward, layers) - forward.own - backward.own
    both = own[0], maximum(own[1], maximum(link.h2d, link.d2h, again) - own[0])
    return Waits(*both, *(a - b for a, b in zip(both, through, strict=True)))


def _apart(forward: Pass, first: Pass, weight: Pass, layers: Expr, staying: Expr) -> Apart:
    """Return what the parts of a backward wait, arguments as of `_waits`; for a link that is busy all the time the
    first one does."""
    made, own, through = _alone(forward, first, layers, staying)
    later, link = _later(first, weight, layers), one_after_other((*made, weight))
    again = _summed(weight, layers) - forward.own - first.own - weight.own
    both = maximum(own[1], maximum(link.h2d, link.d2h, again) - own[0] - later)
    return Apart(both, later, both - through[1])


def _later(first: Pass, weight: Pass, layers: Expr) -> Expr:
    """Return what the second part of a backward waits for its copies: the link is free for them when those of the first
    part have come, as its last two layers run."""
    n, beside = maximum(layers, 1), side_by_side(weight)
    ahead = minimum(1, ROOM / n) * minimum(weight.own + beside.h2d, first.own)
    return maximum(_waited(weight, layers, beside._replace(h2d=0)), beside.h2d + weight.own / n - ahead)


def _summed(one: Pass, layers: Expr) -> Expr:
    """Return the least seconds from a pass that makes gradients to the next one: a layer's sum has to leave and to come
    back in between."""
    return (one.own + 2 * one.d2h) / maximum(layers, 1)


def _rows(forward: Pass, backward: Pass, weight: Pass, layers: Expr, waits: Waits, apart: Apart) -> Rows:
    """Return what a rank waits more, or less, where these passes follow others of their kind."""
    first, second, third = (maximum(*side_by_side(one)) for one in (forward, backward, weight))
    second, third = (maximum(x, _summed(one, layers) - one.own) for x, one in ((second, backward), (third, weight)))
    return Rows(
        maximum(0, first - waits.forward), maximum(0, second - waits.backward),
        maximum(0, third - apart.weight_offload), maximum(0, waits.backward - second),
    )  # fmt: skip


def _alone(forward: Pass, backward: Pass, layers: Expr, staying: Expr) -> tuple[list[Pass], list[Expr], list[Expr]]:
    """Return the passes with the copies that are made, and what both wait for their own copies: where they follow
    another pass at once, and where their rank has waited for a message."""
    made = [forward._replace(d2h=forward.d2h - staying), backward._replace(h2d=backward.h2d - staying)]
    delays = [side_by_side(p).delay for p in made]
    own, through = (
        [_waited(p, layers, side_by_side(p)._replace(delay=d)) for p, d in zip(passes, delays, strict=True)]
        for passes in ((forward, backward), [p._replace(before=p.ahead) for p in (forward, backward)])
    )
    return made, own, through


def _waited(one: Pass, layers: Expr, beside: Beside) -> Expr:
    """Return what a pass waits for the copies beside it: for the link, or because they slow it.

    It waits for the link where a layer's copies take longer than the layer, but for the layers that are ahead or may
    leave later.
    """
    late = zip((one.before, ROOM), (beside.h2d, beside.d2h), strict=True)
    return maximum(beside.delay, *(maximum(0, layers - n) / maximum(layers, 1) * t for n, t in late))


def _swapped(h2d: Expr, d2h: Expr, update: Expr, pieces: Expr) -> Expr:
    """Return what an update waits for copies: the first piece in, the last one out, and what the copies of the others,
    both ways at once, take longer than their update or make it take."""
    beside = side_by_side(Pass(update, h2d=h2d, d2h=d2h))
    return (h2d + d2h) / pieces + (1 - 1 / pieces) * maximum(*beside)


@lru_cache
def offload_walked(structure: Structure) -> Compiled:
    """Return `expressions` to be walked (cached): for a look at one plan."""
    own = Interpreted(parts(structure)).as_compiled()
    waits = Interpreted(outputs(own.outputs)).as_compiled()
    return own.then(waits, {part_name(name): name for name in own.outputs})


@lru_cache
def offload_model(structure: Structure) -> Compiled:
    """Return `expressions` as one function (cached), compiled where that takes a second: of stacks of several kinds of
    layers it takes a minute."""
    given = parts(structure)
    own = compile_expressions(given) if len(structure.kinds) == 1 else Interpreted(given).as_compiled()
    return own.then(_compiled(own.outputs), {part_name(name): name for name in own.outputs})


def offload_costs(several: bool) -> Callable[[Structure], Compiled]:
    """Return which of both evaluates a plan: one of `several` stages of their own asks for each of them."""
    return offload_model if several else offload_walked


@lru_cache
def _compiled(names: tuple[str, ...]) -> Compiled:
    return compile_expressions(outputs(names))
