"""Scoring of whole spaces on the compiled symbolic path."""

import os
from collections.abc import Sequence
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
        columns = _columns([(*spaces[i], rows) for i, rows in members])
        time, peak = _evaluate(function, columns, axes, shapes[members[0][0]][1:])
        at = 0
        for i, rows in members:
            times[i][rows], peaks[i][rows] = time[at : at + len(rows)], peak[at : at + len(rows)]
            at += len(rows)
    return [Scores(t, p, _fits(p, *s)) for t, p, s in zip(times, peaks, spaces, strict=True)]


def _evaluate(
    function: Compiled, columns: dict[str, Any], axes: dict[str, Any], switches: Any
) -> tuple[Floats, Floats]:
    """Return step time and peak memory of all rows, block by block on every core."""
    n = len(columns["tp"])
    time, peak = np.empty((n, *switches)), np.empty((n, *switches))

    def run(first: int) -> None:
        part = slice(first, first + BLOCK_ROWS)
        rows = {k: v if isinstance(v, float) else v[part, None, None, None] for k, v in columns.items()}
        out = function(axes | rows)
        time[part], peak[part] = out["step_time_s"], out["peak_memory_bytes"]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, range(0, n, BLOCK_ROWS)))
    return time, peak


def _structure(space: Space) -> tuple[Structure, int]:
    return Structure.of(space.model), inputs.STATISTICS[space.model.norm]


def _switches(space: Space) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(axis.tolist()) for axis in (space.recompute, space.zero, space.sequence_parallel))


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
    groups = inputs.group_values(shape["tp"], shape["pp"], shape["dp"], columns["gpus_per_node"])
    return columns | shape | groups | {"microbatch_group_size": shape["pp"]}


def _scalars(space: Space, profile: Profile) -> dict[str, float]:
    fixed = {"overlap_dp": 1.0, "gradient_bytes": 4.0}
    return inputs.model_values(space.model) | inputs.cluster_values(space.cluster, profile) | fixed


def _fits(peak: Floats, space: Space, profile: Profile) -> NDArray[np.bool_]:
    _, worst = profile.interval80(1.0, memory_sigma(profile))
    return np.asarray(device_memory(peak, profile) * worst <= space.cluster.memory_bytes)
