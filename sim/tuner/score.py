"""Scoring of whole spaces on the compiled symbolic path."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.costs import inputs
from sim.costs.algebra import Compiled
from sim.costs.contention import contention_values
from sim.costs.layers.structure import Structure
from sim.costs.learned import factors
from sim.costs.mesh import Mesh, group_values
from sim.costs.profile import Profile, load_profile
from sim.costs.run_level import kernels_year, level_of, straggling, symbol_values
from sim.engine.closed_form import closed_form, lower_bound
from sim.engine.ramps import RAMP, Ramp
from sim.engine.step import most_allocated
from sim.schedules import CLOSED, Shape, build
from sim.schedules.base import torch_group
from sim.specs import Cluster, Model, Offload, Plan
from sim.specs.pipelines import PIPELINES
from sim.tuner.grids import distinct, evaluated
from sim.tuner.space import ORDERS, PRECISIONS, Column, Space

Floats = NDArray[np.float64]
Values = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Scores:
    """Predictions for a space, each [row, recompute, zero, sequence_parallel].

    step_time_s; peak_memory_bytes allocated on the fullest rank; fits: the upper end of the 80 % interval of
    device memory is within the capacity.
    """

    step_time_s: Floats
    peak_memory_bytes: Floats
    fits: NDArray[np.bool_]


def score(spaces: Sequence[tuple[Space, Profile]]) -> list[Scores]:
    """Return the scores of several spaces; rows of equal structure and schedule are evaluated together."""
    known: dict[tuple[Any, ...], dict[str, float]] = {}

    def given(space: Space, profile: Profile, rows: Column) -> dict[str, float]:
        own = tuple(int(space.rows[name][rows[0]]) for name in ("schedule", "precision"))
        key = (space.model, space.cluster, id(profile), *space.kept.items(), *own)  # whatever the batch
        if key not in known:
            known[key] = _scalars(space, profile, rows)
        return known[key]

    times = [np.empty(s.allowed.shape) for s, _ in spaces]
    peaks = [np.empty(s.allowed.shape) for s, _ in spaces]
    for pool, members in _pools(spaces).items():
        function = closed_form(pool.structure, pool.schedule, pool.offloads)
        parts = [(spaces[i][0], given(*spaces[i], rows), rows) for i, rows in members]
        out = _evaluate(function, _columns(parts), pool, parts)
        at = 0
        for i, rows in members:
            part = slice(at, at + len(rows))
            slower = 1 + straggling(level_of(spaces[i][0].cluster).parameters.straggler, _gpus(spaces[i][0]))
            times[i][rows], peaks[i][rows] = out["step_time_s"][part] * slower, out["peak_memory_bytes"][part]
            at += len(rows)
    for i, one in enumerate(spaces):
        times[i] *= _learned(*one)
    return [
        Scores(t, p, p <= most_allocated(profile, space.cluster))
        for t, p, (space, profile) in zip(times, peaks, spaces, strict=True)
    ]


def score_members(space: Space) -> Scores:
    """Return the scores of a space on its cluster, a mixed one by its slowest and its fullest device."""
    each = score(_on_members(space))
    return Scores(
        np.max([s.step_time_s for s in each], axis=0),
        np.max([s.peak_memory_bytes for s in each], axis=0),
        np.all([s.fits for s in each], axis=0),
    )


def bounds(space: Space) -> Floats:
    """Return a step time per configuration of `space` that the path engine never beats, in seconds.

    A mixed cluster is bounded by a device that has the best of each, and by what a rank of the slowest device is
    busy; without a pipeline every group waits for that device. Chunks of different layers are bounded by the fewest
    of every kind and by the mean rank's work.
    """
    members = _on_members(space)

    def best(rows: NDArray[np.int64]) -> dict[str, float]:
        values = [_scalars(*one, rows) for one in members]
        return {k: (min if k.endswith(LESS_IS_FASTER) else max)(v[k] for v in values) for k in values[0]}

    least, _ = _least(space, best)
    if len(members) > 1:
        each = [_least(space, partial(_scalars, *one)) for one in members]
        slowest, busiest = (np.max(found, axis=0) for found in zip(*each, strict=True))
        whole = (space.rows["pp"] == 1)[:, None, None, None]
        least = np.where(whole, slowest, np.maximum(least, busiest))
    learned = _learned(*_on_members(space)[0])
    return np.asarray(least * learned * (1 + straggling(level_of(space.cluster).parameters.straggler, _gpus(space))))


def _least(space: Space, given: Callable[[NDArray[np.int64]], Mapping[str, float]]) -> tuple[Floats, Floats]:
    """Return a bound of the step time and one of what any single rank is busy, both in seconds.

    given: the values of `scalars` for rows.
    """
    step, busy = np.empty(space.allowed.shape), np.empty(space.allowed.shape)
    for pool, members in _pools(_on_members(space)[:1]).items():
        for _, rows in members:
            step[rows], busy[rows] = _bound(
                lower_bound(pool.structure, pool.schedule, pool.offloads), (space, given(rows), rows), pool
            )
    return step, busy


LESS_IS_FASTER = (
    "_t0", "_m0", "_n0", "_k0", "_s0", "_r0", "_c0", "_d0", "_waves", "_serial", "_serial_k", "_serial_rows",
    "_written", "_cold", "_least", "_padded", "_spill", "_throttled", "_odd", "_even", "_few", "_alpha", "_alpha_rank",
    "_fill_s", "_by_compute", "_by_collective", "_by_h2d", "_by_d2h", "issue_s", "attention_kernel",
)  # fmt: skip
"""Ends of the names of parameters that a faster device has less of; of all others it has more."""


def _bound(function: Compiled, part: "Part", pool: "Pool") -> tuple[Floats, Floats]:
    mean = _evaluate(function, _columns([part]), pool, [part])
    uneven = _fewest(part)
    if uneven is None:
        return mean["lower_bound_s"], mean["busy_s"]
    fewest, rows = uneven
    least = _evaluate(function, _columns([part]) | fewest, pool, [part])
    differ, bound = rows[:, None, None, None], np.maximum(least["passes_s"], mean["busy_s"])
    return np.where(differ, bound, mean["lower_bound_s"]), np.where(differ, least["busy_s"], mean["busy_s"])


def _fewest(part: "Part") -> tuple[dict[str, Floats], NDArray[np.bool_]] | None:
    """Return the fewest layers of each kind in any chunk and rank, and which rows' chunks differ; None if none do."""
    space, _, rows = part
    pairs, where = np.unique(
        np.stack([space.rows[k][rows] for k in ("pp", "virtual_stages")], axis=1), axis=0, return_inverse=True
    )
    chunks = [inputs.layer_counts(space.model, [space.model.layers // (pp * v)] * (pp * v)) for pp, v in pairs]
    differ = np.array([bool((c != c[:, :1]).any()) for c in chunks])
    if not differ.any():
        return None
    least = np.array([c.min(axis=1) for c in chunks])[where.ravel()]
    on_rank = least * space.rows["virtual_stages"][rows][:, None]
    named = {f"layers_{k}": least[:, k] for k in range(least.shape[1])}
    return named | {f"rank_layers_{k}": on_rank[:, k] for k in range(least.shape[1])}, differ[where.ravel()]


def _on_members(space: Space) -> list[tuple[Space, Profile]]:
    """Return the space on each device of its cluster."""
    profiles = inputs.profiles_of(space.cluster, space.kept.get("product_kernel"))
    return [(replace(space, cluster=m), p) for m, p in zip(space.cluster.members, profiles, strict=True)]


def _learned(space: Space, profile: Profile) -> Any:
    """Return the learned correction of every row, [row, 1, zero, 1], or 1; a mixed cluster's plans have none."""
    if profile.learned is None or _gpus(space) != space.cluster.gpus:
        return 1.0
    precisions = [space.precision(row) for row in range(len(space.rows["tp"]))]
    each = [factors(profile.learned, {**space.rows, "zero": zero}, precisions) for zero in space.zero.tolist()]
    return 1.0 if np.ndim(each[0]) == 0 else np.stack(each, axis=1)[:, None, :, None]


def _gpus(space: Space) -> int:
    """Return the devices of every plan: all of them, also where `space` looks at one group of a mixed cluster."""
    if not len(space.rows["tp"]):
        return space.cluster.gpus
    return int(np.prod([space.rows[axis][0] for axis in ("tp", "cp", "pp", "dp")]))


class Pool(NamedTuple):
    """Rows that one compiled function evaluates together: structure, closed form, layout of ranks, switches' values,
    whether anything is offloaded."""

    structure: Structure
    schedule: str
    layout: tuple[str, int]
    switches: tuple[tuple[int, ...], ...]
    offloads: bool


Part = tuple[Space, Mapping[str, float], NDArray[np.int64]]
"""Rows of a space with the values of the symbols that are the same for all of them."""


def _pools(spaces: Sequence[tuple[Space, Profile]]) -> dict[Pool, list[tuple[int, NDArray[np.int64]]]]:
    """Return, per pool, the spaces that have rows in it and which, those of every precision apart."""
    found: dict[Pool, list[tuple[int, NDArray[np.int64]]]] = {}
    for i, (space, _) in enumerate(spaces):
        structure = Structure.of(space.model)
        switches = tuple(tuple(axis.tolist()) for axis in (space.recompute, space.zero, space.sequence_parallel))
        # Without a pipeline (code 0) 1F1B is as good an order as any.
        both = np.maximum(space.rows["schedule"], 1) * len(PRECISIONS) + space.rows["precision"]
        for each in np.unique(both).tolist():
            pool = Pool(structure, ORDERS[each // len(PRECISIONS)], layout(space.kept), switches, _offloads(space))
            found.setdefault(pool, []).append((i, np.flatnonzero(both == each)))
    return found


def _evaluate(function: Compiled, columns: dict[str, Any], pool: Pool, parts: Sequence[Part]) -> dict[str, Floats]:
    """Return the outputs of all rows, [row, recompute, zero, sequence_parallel]."""
    recompute, zero, sharded = (np.array(values) for values in pool.switches)
    axes = inputs.switch_values(zero[:, None], recompute[:, None, None], sharded)
    rows = {k: v if np.ndim(v) == 0 else v[:, None, None, None] for k, v in columns.items()}
    if any(space.waits is not None for space, _, _ in parts):
        rows["overlap_dp"] = rows["overlap_dp"] * ~np.concatenate([_waits(space, at) for space, _, at in parts])
    out = evaluated(function, axes | rows, alike=_alike(function, parts))
    shape = (len(columns["tp"]), len(recompute), len(zero), len(sharded))
    return {name: np.broadcast_to(value, shape) for name, value in out.items()}


def _waits(space: Space, rows: Column) -> NDArray[np.bool_]:
    """Return `Space.waits` of some rows, [row, 1, zero, 1]."""
    shape = (len(rows), 1, len(space.zero), 1)
    return np.zeros(shape, dtype=bool) if space.waits is None else space.waits[rows]


def _alike(function: Compiled, parts: Sequence[Part]) -> Column:
    """Return a number per row, from 0 on, that is the same for rows whose layers take the same time: those of a model
    on a device with the same degrees and samples, wherever else they differ."""
    given = np.array([[values[name] for name in function.symbols if name in values] for _, values, _ in parts])
    model = np.unique(given, axis=0, return_inverse=True)[1].ravel()
    of_row = np.repeat(model, [len(rows) for _, _, rows in parts])
    names = ("tp", "cp", "ep", "micro_batch", "tempo")
    columns = (np.concatenate([space.rows[name][rows] for space, _, rows in parts]) for name in names)
    return distinct(of_row, *columns)[1]


def _columns(members: Sequence[Part]) -> dict[str, Any]:
    """Return every symbol but the switches: a column over all members' rows, or a number if it never varies.

    The mean of a row's chunks stands for all of them.
    """
    counts = [len(rows) for _, _, rows in members]
    scalars = [given for _, given, _ in members]
    columns: dict[str, Any] = {}
    for name in scalars[0]:
        values = np.array([each[name] for each in scalars])
        columns[name] = float(values[0]) if (values == values[0]).all() else np.repeat(values, counts)
    shape = {
        name: np.concatenate([space.rows[name][rows] for space, _, rows in members]).astype(np.float64)
        for name in members[0][0].rows
    }
    every = row_values(columns, shape, members[0][0].kept, len(members[0][0].model.blocks))
    every |= _contention(members, every)
    counted = np.concatenate([_of_orders(space, rows) for space, _, rows in members])
    every |= dict(zip(("chunks_alive", *RAMP), counted.T, strict=True))
    return every | inputs.rank_values(every)


def row_values(
    columns: Mapping[str, Any], shape: Mapping[str, Any], kept: Mapping[str, Any], kinds: int
) -> dict[str, Any]:
    """Return `columns` and `shape` with what follows from them: communicators, layers of each of `kinds`, groups."""
    laid_out = mesh_values(kept, shape, shape["fsdp_shard"], columns)
    layers = {f"rank_layers_{k}": columns[f"kind_layers_{k}"] / shape["pp"] for k in range(kinds)}
    layers |= {f"layers_{k}": layers[f"rank_layers_{k}"] / shape["virtual_stages"] for k in range(kinds)}
    own = {"microbatch_group_size": shape["pp"], "blocks_beside_head": 1.0}
    return {**columns, **shape, **laid_out, **layers, **own}


def _contention(members: Sequence[Part], laid_out: Mapping[str, Any]) -> dict[str, Any]:
    """Return how much streams slow each other beside every row's collectives: of a mixed cluster's devices the least,
    where one of them is not known not at all."""
    found, at = [], 0
    for devices, some in groupby(members, lambda part: [m.profile for m in part[0].cluster.members]):
        n = sum(len(rows) for _, _, rows in some)
        shape = laid_out["shard_in"][at : at + n], laid_out["shard_out"][at : at + n]
        each = [contention_values(load_profile(name).contention, *shape) for name in devices]
        every = {k: np.array([np.broadcast_to(one[k], n) for one in each]) for k in each[0]}
        least = {k: (np.max if k == "contention_known" else np.min)(v, axis=0) for k, v in every.items()}
        if len(devices) > 1 and _offloads(members[0][0]):
            least = _without_copies(least, laid_out["overlap_slowdown"])
        found.append(least)
        at += n
    columns = {k: np.concatenate([one[k] for one in found]) for k in found[0]}
    return {k: v if v.any() else 0.0 for k, v in columns.items()}


def _without_copies(slowed: Mapping[str, Any], otherwise: Any) -> dict[str, Any]:
    """Return how streams slow each other but for copies, which slow nothing and are slowed by nothing.

    A device that is faster in everything runs more of its copies beside its collectives, which slow each other most: it
    may be the slower one. Where nothing is known of the streams they slow each other `otherwise`.
    """
    known = slowed["contention_known"]
    kept = "compute_by_collective", "collective_by_compute"
    left = {k: known * slowed[k] + (1 - known) * otherwise for k in kept}
    return {k: np.zeros_like(v) for k, v in slowed.items()} | left | {"contention_known": np.ones_like(known)}


def _of_orders(space: Space, rows: NDArray[np.int64]) -> Floats:
    """Return, per row, the chunks that the first rank keeps at most and its `Ramp`, where no closed form says it; else
    zeros."""
    name = ORDERS[space.rows["schedule"][rows[0]]]
    if name == "none" or name in CLOSED or PIPELINES[name].asynchronous:
        return np.zeros((len(rows), 1 + len(RAMP)))
    each = np.stack([space.rows[n][rows] for n in ("pp", "microbatches", "virtual_stages")], axis=1)
    sizes, where = np.unique(each, axis=0, return_inverse=True)
    return np.array([_of_order(name, *size) for size in sizes.tolist()], dtype=float)[where.ravel()]


@lru_cache(maxsize=4_096)
def _of_order(name: str, ranks: int, microbatches: int, chunks: int) -> tuple[int, ...]:
    # More in a row change nothing, but how many of them a chunk may take in turn.
    enough = min(microbatches, 4 * torch_group(ranks, microbatches))
    order = build(name, Shape(ranks, enough, chunks))
    return order.peak_in_flight()[0], *Ramp.of(order)


def mesh_values(kept: Mapping[str, Any], degrees: Mapping[str, Any], shard: Any, values: Mapping[str, Any]) -> Values:
    """Return the communicator shapes of degrees (tp, cp, dp, pp, ep), and what of `kept` settings lays them out.

    shard: ranks of a ZeRO copy (0: all); values: the symbols of the cluster.
    """
    order, etp = layout(kept)
    sizes = {axis: degrees[axis] for axis in ("tp", "cp", "dp", "pp")}
    return group_values(Mesh(order, sizes, degrees["ep"], etp, shard), values) | {"etp": float(etp)}


def layout(kept: Mapping[str, Any]) -> tuple[str, int]:
    """Return the order of ranks, and the ranks that an expert is split over."""
    return str(kept.get("rank_order") or "tp-cp-dp-pp"), int(kept.get("etp") or 1)


def _offloads(space: Space) -> bool:
    """Return whether the plans keep anything in host memory."""
    kept: Offload | None = space.kept.get("offload")
    return kept is not None and kept.used


def scalars(
    model: Model, cluster: Cluster, profile: Profile, global_batch: int, kept: Mapping[str, Any]
) -> dict[str, float]:
    """Return the values of all symbols that no plan of a search on one kind of device changes.

    kept: settings of the plans that are not searched.
    """
    plan = Plan(global_batch=global_batch, **kept).suited(cluster)
    inputs.check_precision(plan, profile)
    counts = {f"kind_layers_{k}": float(n) for k, n in enumerate(model.blocks.values())}
    return (
        inputs.model_values(model)
        | counts
        | inputs.cluster_values(cluster, profile)
        | inputs.setting_values(plan, cluster)
        | symbol_values(level_of(cluster).parameters, plan.software_year, kernels_year(profile))
    )


def _scalars(space: Space, profile: Profile, rows: NDArray[np.int64]) -> dict[str, float]:
    """Return the values for rows of one schedule and one precision."""
    own = {"precision": space.precision(rows[0]), "schedule": ORDERS[space.rows["schedule"][rows[0]]]}
    return scalars(space.model, space.cluster, profile, space.global_batch, {**space.kept, **own})
