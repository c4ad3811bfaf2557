"""Scoring of whole spaces on the compiled symbolic path."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs import inputs
from sim.costs.algebra import Compiled
from sim.costs.layers.dense import Structure
from sim.costs.profile import Profile
from sim.engine.step import closed_form, device_memory, memory_sigma
from sim.tuner.space import Space

Floats = NDArray[np.float64]
BLOCK_ROWS = 1_024
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
    shapes = [s.allowed.shape for s, _ in spaces]
    times = [np.empty(shape) for shape in shapes]
    peaks = [np.empty(shape) for shape in shapes]
    pools: dict[Any, list[tuple[int, NDArray[np.int64]]]] = {}
    for i, (space, _) in enumerate(spaces):
        for schedule, chosen in (
            ("1f1b", space.rows["virtual_stages"] == 1),
            ("interleaved", space.rows["virtual_stages"] > 1),
        ):
            key = (_structure(space), schedule, _switches(space))
            pools.setdefault(key, []).append((i, np.flatnonzero(chosen)))
    for (structure, schedule, switches), members in pools.items():
        function = closed_form(*structure, schedule)
        axes = inputs.switch_values(
            np.array(switches[1])[:, None], np.array(switches[0])[:, None, None], np.array(switches[2])
        )
        columns = _stack([_columns(*spaces[i], rows) for i, rows in members])
        time, peak = _evaluate(function, columns, axes, shapes[members[0][0]][1:])
        at = 0
        for i, rows in members:
            times[i][rows], peaks[i][rows] = time[at : at + len(rows)], peak[at : at + len(rows)]
            at += len(rows)
    return [Scores(t, p, _fits(p, *s)) for t, p, s in zip(times, peaks, spaces, strict=True)]


def _evaluate(
    function: Compiled, columns: dict[str, Floats], axes: dict[str, Any], switches: Any
) -> tuple[Floats, Floats]:
    """Return step time and peak memory of all rows, block by block on every core."""
    n = len(columns["tp"])
    time, peak = np.empty((n, *switches)), np.empty((n, *switches))

    def run(first: int) -> None:
        part = slice(first, first + BLOCK_ROWS)
        out = function(axes | {k: v[part, None, None, None] for k, v in columns.items()})
        time[part], peak[part] = out["step_time_s"], out["peak_memory_bytes"]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, range(0, n, BLOCK_ROWS)))
    return time, peak


def _structure(space: Space) -> tuple[Structure, int]:
    return Structure.of(space.model), inputs.STATISTICS[space.model.norm]


def _switches(space: Space) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(axis.tolist()) for axis in (space.recompute, space.zero, space.sequence_parallel))


def _columns(space: Space, profile: Profile, rows: NDArray[np.int64]) -> dict[str, Floats]:
    """Return every symbol but the switches as a column over the chosen rows."""
    shape = {name: column[rows] for name, column in space.rows.items()}
    scalars = inputs.model_values(space.model) | inputs.cluster_values(space.cluster, profile)
    plan = {
        "overlap_dp": 1.0,
        "gradient_bytes": 4.0,
        "microbatch_group_size": shape["pp"],
        **inputs.group_values(shape["tp"], shape["pp"], shape["dp"], space.cluster.gpus_per_node),
    }
    merged: Mapping[str, Any] = scalars | plan | shape
    return {k: np.broadcast_to(np.asarray(v, dtype=np.float64), len(rows)) for k, v in merged.items() if k != "dp"}


def _stack(members: list[dict[str, Floats]]) -> dict[str, Floats]:
    """Return the members' columns one below the other; a symbol that never varies stays one row."""
    return {k: np.concatenate([m[k] for m in members]) for k in members[0]}


def _fits(peak: Floats, space: Space, profile: Profile) -> NDArray[np.bool_]:
    _, worst = profile.interval80(1.0, memory_sigma(profile))
    return np.asarray(device_memory(peak, profile) * worst <= space.cluster.memory_bytes)
