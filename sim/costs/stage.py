"""Costs of a pipeline stage and of the whole step, as one set of symbolic expressions.

Inputs are the symbols of `inputs`; outputs are per model chunk (a rank holds `virtual_stages` of them) for one
microbatch, plus what the first stage (embedding), the last (head) and every step (gradient reduction,
optimizer) add. `layers_k` counts a chunk's layers of kind k and `rank_layers_k` a rank's: given as arrays, every
output of a chunk or of a rank is an array too. All times in seconds, sizes in bytes, per rank.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

from sim.costs import kernels, memory, volume
from sim.costs.algebra import Compiled, Expr, compile_expressions, maximum, minimum, symbol
from sim.costs.collectives import Group
from sim.costs.kernels import element_bytes
from sim.costs.layers import ends
from sim.costs.layers.block import block, recomputed
from sim.costs.layers.issue import halves, head_issue, host_seconds, lead_of_backward, runs_ahead
from sim.costs.layers.ops import COMMUNICATION, Op, exposed, native, total, tp
from sim.costs.layers.power import throttled
from sim.costs.layers.structure import Structure
from sim.costs.messages import received, waits
from sim.costs.overlap import (
    COVERED,
    Cover,
    alternating,
    beside_another,
    beside_last,
    beyond,
    covers,
    ends_of_passes,
    in_turn,
    overlapped,
)
from sim.costs.pairs import pair_outputs
from sim.costs.profile import ADAM_TENSORS
from sim.costs.sharding import (
    dp_group,
    edp_group,
    expert_replica,
    expert_shard,
    gathered_parameters,
    optimizer_state_bytes,
    reduce_bytes,
    reduced_once,
    shard_group,
    sharded,
    sharded_reduce,
    trained,
    unreduced,
    unsharded,
    weight_bytes,
    weights_shard,
    wrapped,
    zero1,
    zero2,
    zero3,
)

pp, overlap_dp = symbol("pp"), symbol("overlap_dp")

PASSES = {"forward_compute": "forward", "input_compute": "backward_input", "weight_compute": "backward_weight"}


def phases(ops: list[Op]) -> dict[str, Expr]:
    """Return the seconds of a set of operations by phase and kind."""
    times = {name: total(ops, "seconds", "compute", phase) for name, phase in PASSES.items()}
    for kind in COMMUNICATION:
        times[f"forward_{kind}"] = exposed(ops, "forward", kind)
        times[f"input_{kind}"] = exposed(ops, "backward_input", kind)
    return times


def forward_seconds(times: Mapping[str, Expr], prefix: str = "") -> Expr:
    """Return compute and exposed communication of a forward pass."""
    return sum(times[f"{prefix}forward_{x}"] for x in ("compute", *COMMUNICATION))


def backward_seconds(times: Mapping[str, Expr], prefix: str = "") -> Expr:
    """Return compute and exposed communication of a backward pass, without what it repeats."""
    return times[f"{prefix}weight_compute"] + sum(times[f"{prefix}input_{x}"] for x in ("compute", *COMMUNICATION))


@lru_cache
def layer(structure: Structure, index: int) -> dict[str, Expr]:
    """Return the times of one layer of kind `index` for one microbatch, its ZeRO-2/3 traffic and saved bytes."""
    kind = structure.kinds[index]
    ops, again = block(kind, index), recomputed(kind, index)
    times = phases(ops)
    times["recompute"] = memory.repeated * total(again, "seconds", "compute")
    longer = throttled(ops, sum(times[name] for name in PASSES))
    for name, phase in {**PASSES, "recompute": "recompute"}.items():
        held = again if phase == "recompute" else ops
        products = total([op for op in held if op.product], "seconds", "compute", phase)
        times[name] += longer * (memory.repeated if phase == "recompute" else 1) * products
    for c in COMMUNICATION:
        times[f"input_{c}"] += memory.repeated * exposed(again, "recompute", c)
    times["weight_compute"] += _accumulated(index)
    times |= beside_another(times)
    forward, backward = forward_seconds(times), backward_seconds(times) + times["recompute"]
    host = host_seconds(kind, ops, memory.repeated)
    waiting, share = _issued(*host["forward"], forward), lead_of_backward(structure)
    slack, ahead = maximum(0, backward - host["backward"][0]), forward - host["forward"][0]
    times["forward_host"] = waiting - share * minimum(waiting, slack)
    times |= halves(_issued(*host["backward"], backward), memory.repeated)
    lead = share * maximum(0, ahead + slack) + (1 - share) * maximum(0, ahead)
    times["forward_lead"] = int(runs_ahead(structure)) * lead
    times["behind"] = host["backward"][0] - backward
    kept, rebuilt = memory.block_bytes(kind, index, structure.statistics)
    # In PyTorch's networks the first layers of a chunk recompute: where others keep all, these are behind by then and
    # have freed as much. Published runs of a fork of Megatron-LM (Mist's) held both.
    rebuilt *= 1 - native * minimum(1, _layers(structure) * (1 - memory.repeated))
    return times | {
        "recompute_flop": memory.repeated * total(again, "flop"),
        "gather": _gathered(index, kind.mlp == "moe"),
        "scatter": _scattered(index, kind.mlp == "moe"),
        "saved_bytes": kept,
        "temporary": _temporary(structure, index, rebuilt + memory.gradient_bytes(kind, index), kept),
    }


def _issued(beside: Expr, own: Expr, kernels_s: Expr) -> Expr:
    """Return what issuing a layer's kernels adds to them: what they do not hide, or on a host processor all of it."""
    on_host = symbol("on_host")
    return (1 - on_host) * maximum(0, beside - kernels_s) + on_host * own


def _accumulated(index: int) -> Expr:
    """Return the seconds of adding one microbatch's weight gradients to the sum, beyond what the product writes."""
    parameters = memory.layer_parameters(index) + memory.expert_parameters(index)
    bandwidth = symbol(kernels.parameter("elementwise", "any", "bandwidth"))
    return symbol("memory_bound_slowdown") * trained * symbol("accumulate_bytes") * parameters / bandwidth


def _temporary(structure: Structure, index: int, alive: Expr, kept: Expr) -> Expr:
    """Return the most that a layer's backward adds: `alive` bytes of its own, and what PyTorch's FSDP2 has not reduced.

    That is the layer's weight gradients, and the fp32 copy that the layer above it is reduced from
    (`FSDPParamGroup.post_backward` lets go of it one layer later), for which that layer's activations are gone: `kept`
    bytes. The last layer of a chunk has none above it; when the first of two has one, no weights are gathered ahead.
    With its own copy a layer has all else behind it.
    """
    own, copy = unreduced(index)
    more, n = copy - minimum(copy, kept), _layers(structure)
    ahead = zero3 * element_bytes * gathered_parameters(index, 0)
    two, three = (minimum(1, maximum(0, n - k)) for k in (1, 2))
    return own + maximum(alive + three * more, alive + two * (more - ahead), more)


def _layers(structure: Structure) -> Expr:
    """Return the layers of a chunk."""
    return sum(symbol(f"layers_{k}") for k in range(len(structure.kinds)))


def _gathered(index: int, routed: bool) -> Expr:
    """Return the seconds of gathering one layer's sharded weights."""
    time = shard_group.all_gather(element_bytes * memory.layer_parameters(index))
    experts = element_bytes * memory.expert_parameters(index)
    return time + expert_shard.all_gather(experts) if routed else time


def _scattered(index: int, routed: bool) -> Expr:
    """Return the seconds of reducing one layer's gradients into shards, and over the copies of the shards."""
    time = sharded_reduce(reduce_bytes * memory.layer_parameters(index))
    experts = reduce_bytes * memory.expert_parameters(index)
    return time + sharded_reduce(experts, expert_shard, expert_replica) if routed else time


def chunk(structure: Structure) -> dict[str, Expr]:
    """Return the times of one chunk of layers for one microbatch, with ZeRO-2/3 traffic."""
    ones = [layer(structure, k) for k in range(len(structure.kinds))]
    counts = [symbol(f"layers_{k}") for k in range(len(ones))]

    def over(name: str) -> Expr:
        return sum(n * one[name] for n, one in zip(counts, ones, strict=True))

    out = {n: over(n) for n in ones[0] if n not in ("gather", "scatter", "temporary", "behind")}
    n, gather, scatter = sum(counts), over("gather"), over("scatter")
    forward, backward = covers(out)
    same_links, delayed = overlap_dp * (1 - symbol("dp_apart")), overlap_dp * symbol("delays")
    second = Cover(out["weight_compute"] + out["weight_host"], 0)
    first = Cover(backward.compute - second.compute, backward.inner)
    largest = {
        name: maximum(*(minimum(1, c) * one[name] for c, one in zip(counts, ones, strict=True)))
        for name in ("temporary", "saved_bytes")
    }
    temporary = largest["temporary"]
    # A forward beside a backward keeps a layer when that lets go of one (Megatron-Core 0.16.1,
    # models/common/model_chunk_schedule_plan.py, `run`): both are there while they run.
    if any(kind.mlp == "moe" for kind in structure.kinds):
        on = symbol("ep_overlap") * minimum(1, alternating() * symbol("microbatches"))
        temporary += on * largest["saved_bytes"]
    return out | {
        "forward_dp": zero3 * overlapped(gather, forward, n),
        "backward_dp": overlapped(zero3 * gather + zero2 * scatter, backward, n),
        "input_dp": zero3 * overlapped(gather, first, n),
        "weight_dp": zero2 * overlapped(scatter, second, n),
        "forward_shared": same_links * zero3 * gather,
        "backward_shared": same_links * (zero3 * gather + zero2 * scatter),
        "forward_lane": delayed * zero3 * gather,
        "backward_lane": delayed * (zero3 * gather + zero2 * scatter),
        **{
            name: overlap_dp * e
            for name, e in ends_of_passes(zero3 * gather, zero2 * scatter, forward, backward, n).items()
        },
        "backward_temporary_bytes": temporary,
    }


def head(structure: Structure, chunk: Mapping[str, Expr]) -> dict[str, Expr]:
    """Return the times of the head for one microbatch, with what its chunk waits for its host more than its layers
    alone (mostly less than zero): they use the lead that it has after its forward pass and the head, or lacks."""
    lead = chunk["forward_lead"] + ahead_of_head(structure)
    more = -(1 - symbol("on_host")) * minimum(chunk["backward_host"], lead)
    return phases(ends.head(structure)) | halves(more, memory.repeated)


def ahead_of_head(structure: Structure) -> Expr:
    """Return by how many seconds a host has issued the head's passes before its device has done them."""
    ops = ends.head(structure)
    return sum(phases(ops).values()) - head_issue(structure, ops)


def late_updates(structure: Structure, updates: Mapping[str, Expr]) -> dict[str, Expr]:
    """Return what an optimizer of many tensors takes beyond the kernels of its `updates`, by where the rank is.

    PyTorch's steps each parameter by itself, in the time of a timed step for each of its tensors. A host that has run
    ahead of its device in the last backward pass issues them beside what is left of it. Seconds.
    """
    layers, behind = (
        on_rank(structure, one) for one in (lambda k: symbol(f"tensors_{k}"), lambda k: layer(structure, k)["behind"])
    )
    first, last, on_host = symbol("embedding_tensors"), symbol("head_tensors"), symbol("on_host")
    ahead = ahead_of_head(structure)
    issue, timed = native * symbol("tensor_issue_s"), ADAM_TENSORS * symbol("tensor_issue_s")
    out = {}
    for where, (more, lead) in {
        "first": (first, 0), "middle": (0, 0), "last": (last, ahead), "only": (first + last, ahead),
    }.items():  # fmt: skip
        tensors = layers + more
        beside = maximum(0, issue * tensors - updates[where] - maximum(0, lead - behind))
        out[where] = (1 - on_host) * beside + on_host * maximum(0, issue * tensors - timed)
    return out


def sharded_ends(structure: Structure) -> dict[str, Expr]:
    """Return the exposed ZeRO-2/3 traffic per microbatch of embedding and head.

    The embedding is needed first and its gradient comes last, so nothing hides its traffic; the head's forward
    gather and gradient scatter hide behind neighbouring blocks with `overlap_dp`, if its stage has any.
    """
    extra, hidden = memory.rank_parameters(), overlap_dp * symbol("blocks_beside_head")
    first, last = element_bytes * extra["first"], element_bytes * extra["last"]
    return {
        "embedding_forward_dp": zero3 * shard_group.all_gather(first),
        "embedding_backward_dp": zero2 * sharded_reduce(reduce_bytes * extra["first"]),
        "head_forward_dp": (1 - hidden) * zero3 * shard_group.all_gather(last),
        "head_backward_dp": zero3 * shard_group.all_gather(last)
        + (1 - hidden) * zero2 * sharded_reduce(reduce_bytes * extra["last"]),
    }


def on_rank(structure: Structure, one: Callable[[int], Expr]) -> Expr:
    """Return the sum of a quantity over a rank's layers."""
    return sum(symbol(f"rank_layers_{k}") * one(k) for k in range(len(structure.kinds)))


def reduction(structure: Structure) -> dict[str, Expr]:
    """Return the once-a-step exposed gradient reduction (and parameter gather) per rank: first, middle, last.

    ZeRO-0 all-reduces, ZeRO-1 reduce-scatters gradients and gathers parameters; both hide behind the last
    microbatch's backward (the next step's forward) when `overlap_dp`, but for the embedding, whose gradient
    comes last. ZeRO-2/3 have reduced per microbatch; ZeRO-2 gathers parameters once. Without flush there is no first
    forward of a step: parameters are gathered beside that backward too, after its gradients. slowed: the part of it by
    which the last backwards are slower, so that other ranks wait for it too.

    delayed, after: what has all passes of the next step to hide behind (2BW) and is no part of these: reductions that
    begin layer by layer in the last backward, and those that begin after it, a tied table's included. The engines of
    ZeRO-2 and 3 wait for the first at the end of that backward all the same.
    """
    n, out = on_rank(structure, lambda k: 1), dict[str, Expr]()
    forward, backward = rank_covers(structure)
    weight = on_rank(structure, lambda k: layer(structure, k)["weight_compute"] + layer(structure, k)["weight_host"])
    last = Cover(*(b + symbol("splits") * (w - b) for b, w in zip(backward, (weight, 0), strict=True)))
    endless, delays = symbol("endless"), symbol("delays")
    last = beyond(endless * zero2 * on_rank(structure, lambda k: layer(structure, k)["scatter"]), last)
    later, hold = delays * overlap_dp, delays * overlap_dp * (1 - zero2)
    raw, tied = updates(structure), tied_reduce(structure)
    for at in held(structure):
        turns = in_turn(pp, at == "middle")
        reduced, late, regathered = (raw[f"{part}_{at}"] for part in ("reduced", "late", "regathered"))
        left, slowed = beside_last(reduced + endless * regathered, last, backward, n, turns)
        left += beside_last((1 - endless) * regathered, forward, forward, n, turns)[0]
        table = tied if at in ("first", "last") else 0
        out |= {
            f"reduce_{at}": (overlap_dp - hold) * left
            + (1 - overlap_dp) * (reduced + regathered + delays * table)
            + (1 - later) * late,
            f"slowed_{at}": (overlap_dp - hold) * slowed,
            f"delayed_{at}": hold * (reduced + regathered),
            f"after_{at}": later * (late + table),
        }
    return out


def rank_covers(structure: Structure) -> tuple[Cover, Cover]:
    """Return a forward and a backward over all of a rank's layers, as `covers`."""

    def of_rank(name: str) -> Expr:
        return on_rank(structure, lambda k: layer(structure, k)[name])

    return covers({name: of_rank(name) for name in COVERED})


def tied_reduce(structure: Structure) -> Expr:
    """Return the seconds of adding up the gradients of a table that the first and the last rank both hold."""
    table = symbol("head_split") / tp
    pair = Group(2, 1 + (1 - symbol("ends_inter")), 1 + symbol("ends_inter"))
    return minimum(1, pp - 1) * pair.all_reduce(reduce_bytes * table) if structure.tied else 0 * table


def updates(structure: Structure) -> dict[str, Expr]:
    """Return the once-a-step collectives of a rank, none of it hidden, by where the rank is in the pipeline.

    reduced: of the gradients that are ready before the last backward ends; late: of the embedding's; regathered: of
    the parameters that ZeRO-1 and ZeRO-2 have updated in shards.
    """
    block_size = on_rank(structure, memory.layer_parameters)
    expert_size = on_rank(structure, memory.expert_parameters)
    parameters = memory.rank_parameters()
    routed = any(kind.mlp == "moe" for kind in structure.kinds)
    out: dict[str, Expr] = {}
    for where, extra in held(structure).items():
        late = parameters["first"] if where in ("first", "only") else 0
        dense = block_size + extra
        gather = shard_group.all_gather(trained * element_bytes * dense)
        gather += expert_shard.all_gather(trained * element_bytes * expert_size) if routed else 0
        out |= {
            f"reduced_{where}": reduced_once(dense - late, dp_group)
            + (reduced_once(expert_size, edp_group) if routed else 0),
            f"late_{where}": reduced_once(late, dp_group) if late else 0 * block_size,
            f"regathered_{where}": gather * (zero1 - zero3),
        }
    return out


def traffic(structure: Structure) -> dict[str, Expr]:
    """Return the collectives that run beside compute, none of it hidden: what the event engine puts on a lane.

    Per chunk and microbatch: gather (ZeRO-3's weights, in each direction) and scatter (ZeRO-2/3's gradients), both
    without embedding and head; per rank and step: `updates`.
    """

    def over(name: str) -> Expr:
        return sum(symbol(f"layers_{k}") * layer(structure, k)[name] for k in range(len(structure.kinds)))

    return {"gather": zero3 * over("gather"), "scatter": zero2 * over("scatter")} | updates(structure)


def held(structure: Structure) -> dict[str, Expr]:
    """Return the parameters beyond layers by rank: first, middle, last; `only` with pp = 1."""
    parameters = memory.rank_parameters()
    shared = parameters["last"] - (symbol("head_split") / tp if structure.tied else 0)
    return {
        "first": parameters["first"],
        "middle": 0 * parameters["first"],
        "last": parameters["last"],
        "only": parameters["first"] + shared,
    }


def states(structure: Structure) -> dict[str, Expr]:
    """Return bytes of parameters, gradients, optimizer states and gathered weights per rank; optimizer seconds."""
    out: dict[str, Expr] = {}
    dense, expert = on_rank(structure, memory.layer_parameters), on_rank(structure, memory.expert_parameters)
    n, last = _layers(structure), memory.rank_parameters()["last"]
    ahead, own = (
        minimum(1, n) * maximum(*(gathered_parameters(k, alone) for k in range(len(structure.kinds))))
        for alone in (0, wrapped)
    )
    blocks, whole = own + (minimum(2, n) - 1) * ahead, maximum(weights_shard, wrapped)
    # Each product's 16-bit gradient: TransformerEngine keeps one for every shape of weight (`get_dummy_wgrad`), with
    # or without the accumulation fused into the product; the experts of a layer are of one shape. (fp32 and PyTorch's
    # autograd, which gives each up as soon as it is in the sum: temporaries.)
    products = minimum(1, n) * maximum(*(memory.product_parameters(k) for k in range(len(structure.kinds))))
    for where, extra in held(structure).items():
        shard, kept, stored = (sharded(dense + extra, expert, by) for by in (zero1, zero2, zero3))
        update = trained * volume.adam(element_bytes, memory.master_bytes, symbol("gradient_bytes")) * shard
        # A mixed-precision optimizer reads gradients once more (norm); both zero the buffers that they are summed in.
        update += reduce_bytes * (memory.mixed * shard + kept)
        head = last if where in ("last", "only") else 0 * last
        kept_products = (1 - zero2 * weights_shard) * (1 - native) * memory.mixed
        time = kernels.seconds("adam", "any", bytes=update)
        out |= {
            f"parameters_{where}": weight_bytes * stored,
            f"gradients_{where}": reduce_bytes * kept,
            f"product_gradients_{where}": kept_products * trained * element_bytes * products,
            f"optimizer_bytes_{where}": optimizer_state_bytes * shard,
            f"optimizer_{where}": symbol("memory_bound_slowdown") * time,
            f"gathered_bytes_{where}": unsharded(own, blocks, whole * extra, whole * head),
            f"delayed_gradients_{where}": overlap_dp * minimum(1, dp_group.n - 1) * reduce_bytes * kept,
        }
    return out


def expressions(structure: Structure) -> dict[str, Expr]:
    """Return every output of the stage model as an expression."""
    inner = chunk(structure)
    first, last = phases(ends.embedding(structure)), head(structure, inner)
    head_kept, head_beside = memory.head_bytes(structure)
    boundary = ends.boundary_bytes(structure)
    for phase, (any_chunk, at_first, at_last) in waits(boundary).items():
        inner[phase], first[phase], last[phase] = any_chunk, at_first, at_last
    held_all = states(structure)
    update = {where: held_all[f"optimizer_{where}"] for where in held(structure)}
    late = late_updates(structure, update)
    return (
        inner
        | {f"embedding_{k}": v for k, v in first.items()}
        | {f"head_{k}": v for k, v in last.items()}
        | sharded_ends(structure)
        | reduction(structure)
        | held_all
        | pair_outputs()
        | {f"optimizer_{at}": update[at] + late[at] + symbol("step_overhead_s") for at in update}
        | {
            "send": (1 - symbol("blocking_sends")) * received(boundary, symbol("pp_inter")),
            "layers": _layers(structure),
            "dp_apart": symbol("dp_apart"),
            "tied_reduce": tied_reduce(structure),
            "saved_embedding_bytes": memory.embedding_bytes(structure),
            "saved_head_bytes": head_kept,
            "head_temporary_bytes": head_beside,
            "workspace_bytes": symbol("workspace_bytes") + 0 * pp,
            "boundary_buffer_bytes": minimum(1, pp - 1) * 2 * boundary / tp,
        }
    )


@lru_cache
def stage_model(structure: Structure) -> Compiled:
    """Return the compiled stage model of one model structure (cached: it does not depend on sizes or device)."""
    return compile_expressions(expressions(structure))


@lru_cache
def traffic_model(structure: Structure) -> Compiled:
    """Return `traffic` as one compiled function (cached)."""
    return compile_expressions(traffic(structure))
