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

ADAM_BYTES = 38
"""Bytes moved per parameter by the update: gradients read twice (norm, update) and zeroed 3 x 4, master weight
and two moments read and written 24, 16-bit weight written 2."""


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
        "forward_dp": zero3 * hidden_behind(n * gather, n * forward, n),
        "backward_dp": overlap_dp * hidden_behind(n * in_backward, n * backward, n)
        + (1 - overlap_dp) * n * in_backward,
    }


def reduction(structure: Structure, times: Mapping[str, Expr]) -> dict[str, Expr]:
    """Return the once-a-step exposed gradient reduction (and parameter gather) per rank: first, middle, last.

    ZeRO-0 all-reduces, ZeRO-1 reduce-scatters gradients and gathers parameters; both hide behind the last
    microbatch's backward (the next step's forward) when `overlap_dp`. ZeRO-2/3 have reduced per microbatch.
    """
    n = layers / pp
    parameters = memory.rank_parameters(structure)
    backward = virtual_stages * (
        times["input_compute"] + times["input_tp"] + times["weight_compute"] + times["recompute"]
    )
    forward = virtual_stages * (times["forward_compute"] + times["forward_tp"])
    out = {}
    for where, extra in held(structure).items():
        size = n * parameters["block"] + extra
        reduce = (1 - zero1) * dp_group.all_reduce(reduce_bytes * size)
        reduce += (zero1 - zero2) * dp_group.reduce_scatter(reduce_bytes * size)
        reduce += zero2 * dp_group.reduce_scatter(reduce_bytes * extra)
        gather = (zero1 - zero3) * dp_group.all_gather(memory.WEIGHT_BYTES * size)
        gather += zero3 * dp_group.all_gather(memory.WEIGHT_BYTES * extra)
        covered = hidden_behind(reduce, backward, n) + hidden_behind(gather, forward, n)
        out[f"reduce_{where}"] = overlap_dp * covered + (1 - overlap_dp) * (reduce + gather)
    return out


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
    """Return bytes of parameters, gradients and optimizer states per rank, and seconds of the optimizer."""
    dp = dp_group.n
    out: dict[str, Expr] = {}
    block = memory.rank_parameters(structure)["block"]
    gathered = 2 * zero3 * memory.WEIGHT_BYTES * block  # the running layer's and the prefetched one's weights
    for where, extra in held(structure).items():
        size = layers / pp * block + extra
        shard = size / (1 + zero1 * (dp - 1))
        out |= {
            f"parameters_{where}": memory.WEIGHT_BYTES * size / (1 + zero3 * (dp - 1)),
            f"gradients_{where}": reduce_bytes * size / (1 + zero2 * (dp - 1)),
            f"optimizer_bytes_{where}": memory.OPTIMIZER_BYTES * shard,
            f"optimizer_{where}": kernels.seconds("elementwise", "any", bytes=ADAM_BYTES * shard),
        }
    return out | {"gathered_bytes": gathered + zero2 * reduce_bytes * block * minimum(1, dp - 1)}


def expressions(structure: Structure, statistics: int) -> dict[str, Expr]:
    """Return every output of the stage model as an expression."""
    times = chunk(structure)
    first, last = phases(dense.embedding(structure)), phases(dense.head(structure))
    kept, rebuilt = memory.block_bytes(structure, statistics)
    head_kept, head_beside = memory.head_bytes(statistics)
    table = dense.vocab * dense.hidden / dense.tp
    tied_pair = Group(2, 1 + (1 - symbol("pp_inter")), 1 + symbol("pp_inter"))
    several = minimum(1, pp - 1)
    return (
        times
        | {f"embedding_{k}": v for k, v in first.items()}
        | {f"head_{k}": v for k, v in last.items()}
        | reduction(structure, times)
        | states(structure)
        | {
            "send": several * send(boundary_bytes / dense.tp),
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
