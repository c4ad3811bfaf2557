"""PipeDream's partitioner: stages and replicas of a measured network (SOSP'19, arXiv 1806.03377, section 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sim.specs import InputError
from sim.tuner.solvers.prefixes import Floats, Prefixes

Replication = Literal["sum", "max"]


@dataclass(frozen=True)
class Level:
    """One level of the network, innermost first: so many parts, joined at this bandwidth."""

    parts: int
    bytes_per_s: float


@dataclass(frozen=True)
class Stage:
    """Layers between two cuts (indices of prefixes) on `replicas` parts of a level; `seconds` on one worker.

    inner: how the level below divides the stage on one part (empty on the innermost level).
    """

    start: int
    end: int
    seconds: float
    parameter_bytes: float
    replicas: int
    inner: tuple["Stage", ...] = ()


@dataclass(frozen=True)
class Partition:
    """The best found: time per minibatch of the slowest stage or message, and the outermost stages."""

    seconds: float
    stages: tuple[Stage, ...]

    @property
    def replicas(self) -> tuple[int, ...]:
        """Replicas of the outermost stages: (15, 1) is 15-1."""
        return tuple(stage.replicas for stage in self.stages)


@dataclass(frozen=True, eq=False)
class _Table:
    """Of one level: best[a, b, m - 1] seconds on m parts of what lies between cuts a and b; what it was made of."""

    best: Floats
    cut: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    replicas: np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def partition(
    found: Prefixes, levels: Sequence[Level], replication: Replication = "sum", straight: bool = False
) -> Partition:
    """Return the partition with the fastest slowest stage, using all workers; exact for the model of cost.

    replication: m replicas of a stage take (seconds + sync) / m per minibatch, as in the authors' code ("sum"), or
    max(seconds, sync) / m, as in the paper ("max"), sync = 4 (m - 1) weights / (m bandwidth). A message takes
    2 activations / (bandwidth of the stage's replicas). Each level divides what the level above gives to one part.
    straight: no stage is replicated.

    Raises:
        InputError: no level, one without parts or bandwidth, or more workers than a straight pipeline has layers.
    """
    if not levels:
        raise InputError("levels", 0, "one or more")
    for level in levels:
        if level.parts < 1 or not level.bytes_per_s > 0:
            raise InputError("levels", level, "parts >= 1 and a bandwidth above 0")
    time = np.where(found.inside, found.seconds[None, :] - found.seconds[:, None], np.inf)
    tables: list[_Table] = []
    below = 1
    for i, level in enumerate(levels):
        rows = len(found.sets) if i < len(levels) - 1 else 1
        tables.append(_solve(found, time, level, rows, below, replication, straight))
        time, below = tables[-1].best[:, :, -1], level.parts
    seconds = float(tables[-1].best[0, -1, -1])
    if not np.isfinite(seconds):
        raise InputError("levels", tuple(levels), "at most as many workers as layers where no stage is replicated")
    return Partition(seconds, _stages(found, tables, 0, len(found.sets) - 1))


def _replicated(time: Floats, weights: Floats, parts: int, level: Level, replication: Replication) -> Floats:
    sync = 4 * (parts - 1) * weights / (level.bytes_per_s * parts)
    return (time + sync if replication == "sum" else np.maximum(time, sync)) / parts


def _solve(
    found: Prefixes, time: Floats, level: Level, rows: int, below: int, replication: Replication, straight: bool
) -> _Table:
    """Fill the table of one level for the first `rows` cuts as starts, by growing numbers of parts."""
    n, most = len(found.sets), level.parts
    weights = np.where(found.inside, found.parameter_bytes[None, :] - found.parameter_bytes[:, None], 0)
    alone = [_replicated(time, weights, m, level, replication) for m in range(1, most + 1)]
    best = np.full((rows, n, most), np.inf)
    for m in range(1, 2 if straight else most + 1):
        # As in the authors' code the parts of this level share the synchronisation of one stage over all of them.
        best[:, :, m - 1] = _replicated(time, weights / below, m, level, replication)[:rows]
    cut, replicas = np.full(best.shape, -1), np.broadcast_to(np.arange(1, most + 1), best.shape).copy()
    message = 2 * found.output_bytes / level.bytes_per_s
    for m in range(2, most + 1):
        for last in range(1, 2 if straight else m):
            # Both ends of the last stage talk to its neighbours; nothing follows the whole network.
            own = np.maximum(alone[last - 1], message[:, None] / last)
            own[:, :-1] = np.maximum(own[:, :-1], message[None, :-1] / last)
            for b in range(1, n):
                ks = np.flatnonzero(found.inside[1:, b]) + 1
                if not len(ks):
                    continue
                slowest = np.maximum(best[:, ks, m - last - 1], own[ks, b])
                choice = slowest.argmin(axis=1)
                value = slowest[np.arange(rows), choice]
                better = np.flatnonzero(value < best[:, b, m - 1])
                best[better, b, m - 1] = value[better]
                cut[better, b, m - 1] = ks[choice[better]]
                replicas[better, b, m - 1] = last
    return _Table(best, cut, replicas)


def _stages(found: Prefixes, tables: list[_Table], start: int, end: int) -> tuple[Stage, ...]:
    """Return the stages between two cuts on the outermost of `tables`, each divided by those below it."""
    if not tables:
        return ()
    table, m, stages = tables[-1], tables[-1].best.shape[2], []
    at = end
    while True:
        k, used = int(table.cut[start, at, m - 1]), int(table.replicas[start, at, m - 1])
        begin = k if k >= 0 else start
        seconds = float(found.seconds[at] - found.seconds[begin])
        weights = float(found.parameter_bytes[at] - found.parameter_bytes[begin])
        stages.append(Stage(begin, at, seconds, weights, used, _stages(found, tables[:-1], begin, at)))
        if k < 0:
            return tuple(reversed(stages))
        at, m = k, m - used
