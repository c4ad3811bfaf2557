"""Costs of a pipeline stage and of the whole step, as one set of symbolic expressions.

Inputs are the symbols of `inputs`; outputs are per model chunk (a rank holds `virtual_stages` of them) for one
microbatch, plus what the first stage (embedding), the last (head) and every step (gradient reduction,
optimizer) add. All times in seconds, sizes in bytes, per rank.
"""

from collections.abc import Mapping
from functools import lru_cache

from sim.costs import kernels, memory
from sim.costs.algebra import Compiled, Expr, compile_expressions, maximum, minimum, symbol
from sim.costs.collectives import Group, send
from sim.costs.layers import dense
from sim.costs.layers.dense import Op, Structure, boundary_bytes, exposed_tp, total

layers, pp, virtual_stages, microbatches = (symbol(n) for n in ("layers", "pp", "virtual_stages", "microbatches"))
zero1, zero2, zero3 = (symbol(n) for n in ("zero1", "zero2", "zero3"))
overlap_dp, reduce_bytes = symbol("overlap_dp"), symbol("gradient_bytes")
dp_group = Group.named("dp")
chunk_layers = layers / (pp * virtual_stages)

ADAM_STATE_BYTES = 26
"""Bytes moved per parameter of the shard: fp32 master weight and two moments read and written 24, weight written 2;
beside them gradients are read twice (norm, update), and zeroed wherever they are kept."""


def phases(ops: list[Op]) -> dict[str, Expr]:
    """Return the seconds of a set of operations by phase and kind."""
    return {
        "forward_compute": total(ops, "seconds", "compute", "forward"),
        "forward_tp": exposed_tp(ops, "forward"),
        "input_compute": total(ops, "seconds", "compute", "backward_input"),
        "input_tp": exposed_tp(ops, "backward_input"),
        "weight_compute": total(ops, "seconds", "compute", "backward_weight"),
    }


def hidden_behind(time: Expr, cover: Expr, pieces: Expr) -> Expr:
    """Return what stays exposed of `time` in `pieces` parts, each started as soon as its part of `cover` ends."""
    return maximum(time / pieces, time - cover * (1 - 1 / pieces))


def chunk(structure: Structure) -> dict[str, Expr]:
    """Return the times of one chunk of plain blocks for one microbatch, with ZeRO-2/3 traffic."""
    one = phases(dense.block(structure))
    again = dense.recomputed(structure)
    recompute = total(again, "seconds", "compute")
    recompute_tp = total(again, "seconds", "tp")
    parameters = memory.rank_parameters(structure)["block"]
    gather = dp_group.all_gather(memory.WEIGHT_BYTES * parameters)
    scatter = dp_group.reduce_scatter(reduce_bytes * parameters)
    forward = one["forward_compute"] + one["forward_tp"]
    backward = one["input_compute"] + one["input_tp"] + one["weight_compute"] + recompute + recompute_tp
    n = chunk_layers
    in_backward = zero3 * gather + zero2 * scatter
    return {k: n * v for k, v in one.items()} | {
        "recompute": n * recompute,
        "recompute_flop": n * total(again, "flop"),
        "input_tp": n * (one["input_tp"] + recompute_tp),
        "forward_dp": zero3 * _overlapped(n * gather, n * forward, n),
        "backward_dp": _overlapped(n * in_backward, n * backward, n),
    }


def _overlapped(time: Expr, cover: Expr, pieces: Expr) -> Expr:
    """Return what stays exposed of `time`: what `cover` does not hide, or all of it without `overlap_dp`."""
    return overlap_dp * hidden_behind(time, cover, pieces) + (1 - overlap_dp) * time


def sharded_ends(structure: Structure) -> dict[str, Expr]:
    """Return the exposed ZeRO-2/3 traffic per microbatch of embedding and head.

    The embedding is needed first and its gradient comes last, so nothing hides its traffic; the head's forward
    gather and gradient scatter hide behind neighbouring blocks with `overlap_dp`.
    """
    extra = memory.rank_parameters(structure)
    first, last = memory.WEIGHT_BYTES * extra["first"], memory.WEIGHT_BYTES * extra["last"]
    return {
        "embedding_forward_dp": zero3 * dp_group.all_gather(first),
        "embedding_backward_dp": zero2 * dp_group.reduce_scatter(reduce_bytes * extra["first"]),
        "head_forward_dp": (1 - overlap_dp) * zero3 * dp_group.all_gather(last),
        "head_backward_dp": zero3 * dp_group.all_gather(last)
        + (1 - overlap_dp) * zero2 * dp_group.reduce_scatter(reduce_bytes * extra["last"]),
    }


def reduction(structure: Structure, times: Mapping[str, Expr]) -> dict[str, Expr]:
    """Return the once-a-step exposed gradient reduction (and parameter gather) per rank: first, middle, last.

    ZeRO-0 all-reduces, ZeRO-1 reduce-scatters gradients and gathers parameters; both hide behind the last
    microbatch's backward (the next step's forward) when `overlap_dp`, but for the embedding, whose gradient
    comes last. ZeRO-2/3 have reduced per microbatch; ZeRO-2 gathers parameters once.
    """
    n = layers / pp
    parameters = memory.rank_parameters(structure)
    backward = virtual_stages * (
        times["input_compute"] + times["input_tp"] + times["weight_compute"] + times["recompute"]
    )
    forward = virtual_stages * (times["forward_compute"] + times["forward_tp"])
    out = {}
    for where, extra in held(structure).items():
        late = parameters["first"] if where in ("first", "only") else 0
        size = n * parameters["block"] + extra
        gather = (zero1 - zero3) * dp_group.all_gather(memory.WEIGHT_BYTES * size)
        exposed = _overlapped(_reduced(size - late), backward, n) + _overlapped(gather, forward, n)
        out[f"reduce_{where}"] = exposed + (_reduced(late) if late else 0)
    return out


def _reduced(parameters: Expr) -> Expr:
    """Return the seconds of ZeRO-0's or ZeRO-1's reduction of the gradients of `parameters`."""
    size = reduce_bytes * parameters
    return (1 - zero1) * dp_group.all_reduce(size) + (zero1 - zero2) * dp_group.reduce_scatter(size)


def held(structure: Structure) -> dict[str, Expr]:
    """Return the parameters beyond plain blocks by rank: first, middle, last; `only` with pp = 1."""
    parameters = memory.rank_parameters(structure)
    shared = parameters["last"] - (dense.vocab * dense.hidden / dense.tp if structure.tied else 0)
    return {
        "first": parameters["first"],
        "middle": 0 * parameters["first"],
        "last": parameters["last"],
        "only": parameters["first"] + shared,
    }


def states(structure: Structure) -> dict[str, Expr]:
    """Return bytes of parameters, gradients, optimizer states and gathered weights per rank, and optimizer seconds."""
    dp = dp_group.n
    out: dict[str, Expr] = {}
    block = memory.rank_parameters(structure)["block"]
    sharded = minimum(1, dp - 1)
    for where, extra in held(structure).items():
        size = layers / pp * block + extra
        shard, kept = size / (1 + zero1 * (dp - 1)), size / (1 + zero2 * (dp - 1))
        moved = (ADAM_STATE_BYTES + 2 * reduce_bytes) * shard + reduce_bytes * kept
        # ZeRO-3 holds the running layer's weights and the prefetched one's, or the largest of embedding and head.
        blocks = minimum(2, layers / pp) * block
        gathered = zero3 * memory.WEIGHT_BYTES * maximum(blocks, extra) + zero2 * reduce_bytes * maximum(block, extra)
        out |= {
            f"parameters_{where}": memory.WEIGHT_BYTES * size / (1 + zero3 * (dp - 1)),
            f"gradients_{where}": reduce_bytes * kept,
            f"optimizer_bytes_{where}": memory.OPTIMIZER_BYTES * shard,
            f"optimizer_{where}": kernels.seconds("elementwise", "any", bytes=moved),
            f"gathered_bytes_{where}": sharded * gathered,
        }
    return out


def expressions(structure: Structure, statistics: int) -> dict[str, Expr]:
    """Return every output of the stage model as an expression."""
    times = chunk(structure)
    first, last = phases(dense.embedding(structure)), phases(dense.head())
    kept, rebuilt = memory.block_bytes(structure, statistics)
    head_kept, head_beside = memory.head_bytes(statistics)
    table = dense.vocab * dense.hidden / dense.tp
    tied_pair = Group(2, 1 + (1 - symbol("pp_inter")), 1 + symbol("pp_inter"))
    several = minimum(1, pp - 1)
    # Each rank sends its part (scatter/gather, arXiv 2104.04473, section 4.1); without sequence parallelism the
    # receivers gather the whole.
    whole_again = (1 - dense.sequence_parallel) * dense.tp_group.all_gather(boundary_bytes)
    return (
        times
        | {f"embedding_{k}": v for k, v in first.items()}
        | {f"head_{k}": v for k, v in last.items()}
        | sharded_ends(structure)
        | reduction(structure, times)
        | states(structure)
        | {
            "send": several * (send(boundary_bytes / dense.tp) + whole_again),
            "tied_reduce": several * tied_pair.all_reduce(reduce_bytes * table) if structure.tied else 0 * table,
            "saved_bytes": chunk_layers * kept,
            "saved_embedding_bytes": memory.embedding_bytes(structure),
            "saved_head_bytes": head_kept,
            "backward_temporary_bytes": rebuilt + memory.gradient_bytes(structure),
            "head_temporary_bytes": head_beside,
            "boundary_buffer_bytes": several * 2 * boundary_bytes / dense.tp,
        }
    )


@lru_cache
def stage_model(structure: Structure, statistics: int) -> Compiled:
    """Return the compiled stage model of one model structure (cached: it does not depend on sizes or device)."""
    return compile_expressions(expressions(structure, statistics))
