"""Stage tables: all that one stage of a 1F1B pipeline can be, and the exact frontier of what fits."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs import inputs
from sim.costs.learned import least_factor
from sim.costs.profile import load_profile
from sim.costs.run_level import level_of, straggling
from sim.engine.closed_form import PLACES
from sim.specs import Cluster
from sim.specs.rules import RULES
from sim.specs.spread import Spread
from sim.tuner.options import PLACE, Grid, Question, Table, Techniques, joined, per_layer
from sim.tuner.solvers.chain import Cell, Chain, Ints, frontier

FEW_LAYERS, FEW_GPUS = 24, 8
"""Of so few any number is tried, whatever the imbalance."""


@dataclass(frozen=True, eq=False)
class StageCell(Cell):
    """A cell that knows the option behind each of its frontier points; those of `table`."""

    table: Table = field(kw_only=True)
    options: Ints = field(kw_only=True)

    def tied(self, point: int) -> float:
        """Return what this end's part of the exchange of a tied table takes (s) at a point of the frontier."""
        return float(self.table.tied[self.options[point]])


@dataclass(frozen=True)
class Only:
    """What the options of a table are limited to: values of columns, and the layers of all stages but the first and
    the last, which have no more (None: any)."""

    columns: Mapping[str, int] = field(default_factory=dict)
    inner: int | None = None

    def of(self, table: Table) -> NDArray[np.bool_]:
        """Return which options are left, whatever their layers."""
        each = [table.columns[name] == value for name, value in self.columns.items()]
        return np.logical_and.reduce(each) if each else np.ones(table.t.shape[-1], dtype=bool)

    def long(self, layers: int, middle: bool) -> bool:
        """Return whether a stage may have so many layers."""
        return self.inner is None or layers == self.inner or (layers < self.inner and not middle)


class StageTables:
    """Everything that the stages of one pipeline can be, as a `Chain`. `evaluated` counts the options looked at."""

    def __init__(self, asked: Question, techniques: Techniques) -> None:
        self.asked, self.techniques = asked, techniques
        self.members = asked.cluster.members
        self.devices = tuple(member.gpus for member in self.members)
        self.layers = _lengths(asked.model.layers, asked.stages, asked.imbalance)
        self.domain = inputs.domain(asked.cluster)
        self.slower = 1 + straggling(level_of(asked.cluster).parameters.straggler, asked.cluster.gpus)
        profile = load_profile(asked.cluster.members[0].profile, dict(asked.kept).get("product_kernel"))
        self.slower *= least_factor(profile.learned, asked.cluster.gpus)
        self.grids = [Grid(asked, m, self._rows(m), np.array(self.layers), techniques) for m in self.members]
        self.plain = [grid.table() for grid in self.grids]
        self.tables = list(self.plain)
        self.evaluated = self.places * sum(table.t.shape[-1] for table in self.plain)
        self.counts = [sorted(set(grid.rows["gpus"].tolist())) for grid in self.grids]
        self.fewest, self.most = (f(f(each, default=0) for each in self.counts) for f in (min, max))
        self.only, self.most_layers = Only(), self.layers[-1]
        self.tied: float | None = None
        self._made: dict[tuple[int, ...], tuple[Cell, ...]] = {}
        self._offers: dict[tuple[Any, ...], tuple[Cell, ...]] = {}
        self._placed: dict[tuple[Any, ...], tuple[Cell, ...]] = {}

    @property
    def least(self) -> float:
        """A step time (s) that no pipeline of these stages beats: every layer takes at least its least share of any
        stage, the slowest of S stages at least an S-th of all, and it is met G times; copies make nothing faster.
        Infinite where no stage with layers is legal."""
        pace, way = (min(per_layer(t, n) for t in self.plain) for n in "tx")
        if way == np.inf:  # and a single microbatch would make it no number
            return np.inf
        whole = way + pace * (self.asked.microbatches - 1) / self.asked.stages
        return float(self.slower * self.asked.model.layers * whole)

    def chain(self, at_most: float = np.inf) -> Chain:
        """Return the inter-stage problem; of options that offload only those of steps below `at_most` seconds.

        What fits without offload is never the better for it: a microbatch takes longer by what its last one hides more.
        """
        pace = min(per_layer(table, "t") for table in self.plain) * (self.asked.microbatches - 1)
        longest = self.layers[-1]
        self.most_layers = int(min(longest, at_most / self.slower / pace)) if 0 < pace < np.inf else longest
        for g, (member, grid, table) in enumerate(zip(self.members, self.grids, self.plain, strict=True)):
            linked = member.host_bytes_per_s is not None or not self.techniques.may_stay  # refused without a link
            if linked and self.techniques.moves and table.t.size:
                slowest = self._slowest(table, at_most / self.slower)
                hopeful = table.t.min(axis=(0, 1)) < slowest
                if self.techniques.may_stay:
                    hopeful &= self._short_of_room(table)
                moved = grid.offloaded(table, hopeful, slowest)
                self.tables[g] = joined([table, *moved] if self.techniques.may_stay or not moved else moved)
                self.evaluated += int(hopeful.sum()) * self.techniques.offloads * self.places
        return self.where_ends_take(None)

    def where_ends_take(self, tied: float | None) -> Chain:
        """Return the problem of the same options with this time (s) for the exchange of a tied table, by ends that take
        as long or less for their own part; None: every end takes its own time, and no choice is overestimated."""
        self.tied = tied
        self._made.clear()
        self._offers.clear()
        self._placed.clear()
        asked = self.asked
        layers, microbatches = asked.model.layers, asked.microbatches
        return Chain(
            asked.stages, layers, self.devices, microbatches, self.cells,
            by_layers=False, most_layers=self.most_layers,
        )  # fmt: skip

    @property
    def tied_times(self) -> list[float]:
        """What the exchange of a tied table may take (s), ascending."""
        return sorted({float(each) for table in self.tables for each in np.unique(table.tied)})

    @property
    def places(self) -> int:
        """Places at which every option is looked at."""
        return 1 if self.asked.stages == 1 else len(PLACES) - 1

    def cells(self, stage: int, left: int, used: tuple[int, ...]) -> Sequence[Cell]:
        """Return what a stage can be; groups of devices are used up from the last to the first."""
        del left
        group = next((g for g in reversed(range(len(self.devices))) if used[g] < self.devices[g]), -1)
        if group < 0:
            return ()
        every = sum(self.devices)
        first_after = every - sum(used)
        if not (stage + 1) * self.fewest <= first_after <= (stage + 1) * self.most:
            return ()
        some = bisect_right(self.counts[group], self.devices[group] - used[group])
        # Asked for every number of devices that may be left, of which there are many: these tell all that differs.
        place = (stage, group, some, first_after % self.domain, first_after == every)
        if place not in self._placed:
            key = [(group, n, self.crosses(first_after, n)) for n in self.counts[group][:some]]
            if (stage, *key) not in self._offers:
                self._offers[stage, *key] = tuple(cell for one in key for cell in self._cells_of(stage, *one))
            self._placed[place] = self._offers[stage, *key]
        return self._placed[place]

    def crosses(self, first_after: int, gpus: int) -> int:
        """Return 1 where a stage on `gpus` devices starts in another fast domain than what comes after it, else 0."""
        after = min(first_after, sum(self.devices) - 1)
        return int((first_after - gpus) // self.domain != after // self.domain)

    def _cells_of(self, stage: int, group: int, gpus: int, crosses: int) -> tuple[Cell, ...]:
        s, table = self.asked.stages, self.tables[group]
        name = "only" if s == 1 else "first" if stage == 0 else "last" if stage == s - 1 else "middle"
        alive = min(self.asked.microbatches, s - stage)
        row = PLACE[name]
        key = (row, alive, group, gpus, crosses)
        if key in self._made:
            return self._made[key]
        uses = tuple(gpus if g == group else 0 for g in range(len(self.devices)))
        fits = self.only.of(table) & (table.columns["gpus"] == gpus) & (table.alive[row] >= alive)
        tied = self.tied if name in ("first", "last") else None
        if tied is not None:
            fits &= table.tied <= tied
        cells = []
        for layers in self.layers:
            if (layers == 0 and name == "middle") or not self.only.long(layers, name == "middle"):
                continue
            ids = np.flatnonzero(fits & (table.columns["layers"] == layers))
            if len(ids):
                own = [getattr(table, name)[row, crosses, ids] for name in "tdxo"]
                if tied is not None:
                    own[1] = own[1] + (tied - table.tied[ids])
                best = frontier(*own)
                cells.append(StageCell(layers, uses, *(each[best] for each in own), table=table, options=ids[best]))
        self._made[key] = tuple(cells)
        return self._made[key]

    def _slowest(self, table: Table, faster_than: float) -> float:
        """Return the t (s) with which one stage alone makes a step take as long as that."""
        least = per_layer(table, "x") * self.asked.model.layers
        return (faster_than - least) / max(1, self.asked.microbatches - 1) if least < faster_than else 0.0

    def _short_of_room(self, table: Table) -> NDArray[np.bool_]:
        """Return which options do not fit at some place."""
        return np.asarray(table.alive.min(axis=0) < min(self.asked.microbatches, self.asked.stages))

    def _rows(self, member: Cluster) -> dict[str, Ints]:
        """Return the legal (tp, dp, micro-batch) of a stage, by devices."""
        asked, sizes = self.asked, self.techniques.micro_batch
        tps = self.techniques.tp if asked.tp is None else (asked.tp,)
        gpus, tp = (each.ravel() for each in np.meshgrid(_device_counts(asked, member), tps, indexing="ij"))
        dp, left_over = np.divmod(gpus, tp * asked.cp)
        micro_batch, uneven = np.divmod(asked.samples, np.maximum(1, dp))
        whole = (dp > 0) & (left_over == 0) & (uneven == 0) & (not sizes or np.isin(micro_batch, sizes))
        columns = {"gpus": gpus, "tp": tp, "dp": dp, "micro_batch": micro_batch}
        rows = {name: column[whole].astype(np.int64) for name, column in columns.items()}
        spread = Spread(
            gpus=rows["gpus"] * asked.stages, tp=rows["tp"], pp=asked.stages, virtual_stages=1, dp=rows["dp"],
            global_batch=asked.global_batch, micro_batch=rows["micro_batch"], group=asked.stages,
            sequence_parallel=rows["tp"] > 1, schedule="1f1b" if asked.stages > 1 else "none", cp=asked.cp,
            ep=asked.ep, etp=dict(asked.kept).get("etp", 1),
            stage_layers=(asked.model.layers, *[0] * (asked.stages - 1)),
        )  # fmt: skip
        legal = np.ones(len(rows["tp"]), dtype=bool)
        for rule in RULES:
            legal &= ~np.asarray(rule.broken(asked.model, spread), dtype=bool)
        return {name: column[legal] for name, column in rows.items()}


def _lengths(layers: int, stages: int, imbalance: float) -> tuple[int, ...]:
    """Return the layers that a stage may have: within a factor of the mean, its neighbours in any case, of few layers
    any number; before them the 0 of a first or last stage that holds the embedding or the head alone."""
    if stages == 1:
        return (layers,)
    mean, most = layers / stages, layers - max(0, stages - 3)
    low, high = max(1, min(int(mean / imbalance + 0.5), int(mean) - 2)), max(int(imbalance * mean), int(mean) + 3)
    if layers <= FEW_LAYERS:
        low, high = 1, layers
    return (0, *range(low, min(high, most) + 1))


def _device_counts(asked: Question, member: Cluster) -> list[int]:
    """Return how many devices a stage may have: whole nodes or even parts of one, within a factor of an equal share."""
    equal, node = asked.cluster.gpus / asked.stages, member.gpus_per_node
    if asked.tp is not None:
        return [int(equal)]
    factor = FEW_GPUS if asked.cluster.gpus <= FEW_GPUS else asked.imbalance
    fewest, most = max(1, int(equal / factor / node)), min(member.gpus, int(equal * factor))
    each = [2**i for i in range(node.bit_length()) if node % 2**i == 0] + list(range(fewest * node, most + 1, node))
    if asked.cluster.gpus % asked.stages == 0:
        each.append(asked.cluster.gpus // asked.stages)
    return [n for n in sorted(set(each)) if equal / factor <= n <= equal * factor and n <= member.gpus]
