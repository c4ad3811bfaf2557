"""Scoring of whole spaces on the compiled symbolic path."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.costs import inputs
from sim.costs.algebra import Compiled
from sim.costs.layers.structure import Structure
from sim.costs.profile import Profile
from sim.costs.run_level import run_level, straggling, symbol_values
from sim.engine.closed_form import closed_form, lower_bound
from sim.engine.step import device_memory, memory_sigma
from sim.specs import Plan
from sim.tuner.space import Space

Floats = NDArray[np.float64]
BLOCK_ROWS = 2_048
"""Rows evaluated at once, so that intermediate arrays stay in the cache."""


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
    times = [np.empty(s.allowed.shape) for s, _ in spaces]
    peaks = [np.empty(s.allowed.shape) for s, _ in spaces]
    for pool, members in _pools(spaces).items():
        function = closed_form(pool.structure, pool.schedule)
        out = _evaluate(function, _columns([(*spaces[i], rows) for i, rows in members]), pool)
        at = 0
        for i, rows in members:
            part = slice(at, at + len(rows))
            slower = 1 + straggling(run_level().parameters, spaces[i][0].cluster.gpus)
            times[i][rows], peaks[i][rows] = out["step_time_s"][part] * slower, out["peak_memory_bytes"][part]
            at += len(rows)
    return [Scores(t, p, _fits(p, *s)) for t, p, s in zip(times, peaks, spaces, strict=True)]


def bounds(space: Space, profile: Profile) -> Floats:
    """Return a step time per configuration of `space` that the engine never beats, in seconds."""
    least = np.empty(space.allowed.shape)
    for pool, members in _pools([(space, profile)]).items():
        function = lower_bound(pool.structure, pool.schedule)
        for _, rows in members:
            least[rows] = _evaluate(function, _columns([(space, profile, rows)]), pool)["step_time_s"]
    return np.asarray(least * (1 + straggling(run_level().parameters, space.cluster.gpus)))


class Pool(NamedTuple):
    """Rows that one compiled function evaluates together: model structure, closed form, values of the switches."""

    structure: Structure
    schedule: str
    switches: tuple[tuple[int, ...], ...]


def _pools(spaces: Sequence[tuple[Space, Profile]]) -> dict[Pool, list[tuple[int, NDArray[np.int64]]]]:
    """Return, per pool, the spaces that have rows in it and which."""
    found: dict[Pool, list[tuple[int, NDArray[np.int64]]]] = {}
    for i, (space, _) in enumerate(spaces):
        structure = Structure.of(space.model)
        switches = tuple(tuple(axis.tolist()) for axis in (space.recompute, space.zero, space.sequence_parallel))
        for name, codes in (("1f1b", (0, 1)), ("interleaved", (2,)), ("gpipe", (3,))):
            rows = np.flatnonzero(np.isin(space.rows["schedule"], codes))
            if len(rows):
                found.setdefault(Pool(structure, name, switches), []).append((i, rows))
    return found


def _evaluate(function: Compiled, columns: dict[str, Any], pool: Pool) -> dict[str, Floats]:
    """Return the outputs of all rows, [row, recompute, zero, sequence_parallel], block by block on every core."""
    n = len(columns["tp"])
    recompute, zero, sharded = (np.array(values) for values in pool.switches)
    axes = inputs.switch_values(zero[:, None], recompute[:, None, None], sharded)
    out = {name: np.empty((n, len(recompute), len(zero), len(sharded))) for name in function.outputs}

    def run(first: int) -> None:
        part = slice(first, first + BLOCK_ROWS)
        rows = {k: v if isinstance(v, float) else v[part, None, None, None] for k, v in columns.items()}
        for name, value in function(axes | rows).items():
            out[name][part] = value

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(run, range(0, n, BLOCK_ROWS)))
    return out


def _columns(members: Sequence[tuple[Space, Profile, NDArray[np.int64]]]) -> dict[str, Any]:
    """Return every symbol but the switches: a column over all members' rows, or a number if it never varies."""
    counts = [len(rows) for _, _, rows in members]
    scalars = [_scalars(space, profile) for space, profile, _ in members]
    columns: dict[str, Any] = {}
    for name in scalars[0]:
        values = np.array([each[name] for each in scalars])
        columns[name] = float(values[0]) if (values == values[0]).all() else np.repeat(values, counts)
    shape = {
        name: np.concatenate([space.rows[name][rows] for space, _, rows in members]).astype(np.float64)
        for name in members[0][0].rows
    }
    kept = [_kept(space) for space, _, _ in members]
    cp, ep, etp, shard = (np.repeat([k[i] for k in kept], counts) for i in range(4))
    sizes = {"tp": shape["tp"], "cp": cp, "dp": shape["dp"], "pp": shape["pp"]}
    groups = inputs.group_values(inputs.Mesh("tp-cp-dp-pp", sizes, ep, etp, shard), columns)
    layers = {}
    for k in range(len(members[0][0].model.blocks)):
        n = columns[f"kind_layers_{k}"]
        layers[f"rank_layers_{k}"] = n / shape["pp"]
        layers[f"layers_{k}"] = layers[f"rank_layers_{k}"] / shape["virtual_stages"]
    every = columns | shape | groups | layers | {"microbatch_group_size": shape["pp"], "cp": cp, "ep": ep, "etp": etp}
    return every | {"kv_columns": inputs.kv_columns(every)}


def _kept(space: Space) -> tuple[int, int, int, int]:
    """Return the degrees that are not searched: cp, ep, etp and the ranks of a ZeRO copy (0: all)."""
    return tuple(int(space.kept.get(k) or n) for k, n in (("cp", 1), ("ep", 1), ("etp", 1), ("fsdp_shard", 0)))  # type: ignore[return-value]


def _scalars(space: Space, profile: Profile) -> dict[str, float]:
    plan = Plan(global_batch=space.global_batch, **space.kept)
    counts = {f"kind_layers_{k}": float(n) for k, n in enumerate(space.model.blocks.values())}
    return (
        inputs.model_values(space.model)
        | counts
        | inputs.cluster_values(space.cluster, profile)
        | inputs.setting_values(plan, space.cluster)
        | symbol_values(run_level().parameters)
    )


def _fits(peak: Floats, space: Space, profile: Profile) -> NDArray[np.bool_]:
    _, worst = profile.interval80(1.0, memory_sigma(profile))
    return np.asarray(device_memory(peak, profile) * worst <= space.cluster.memory_bytes)
