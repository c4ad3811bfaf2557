"""Whole blocks by closed forms: rows of one structure and schedule are evaluated together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.specs import Cluster, InputError, Plan
from sim.specs.plan import RECOMPUTE
from sim.sweep.grid import Grid
from sim.sweep.numbering import Column, distinct
from sim.sweep.outcome import IMPOSSIBLE, OK, Outcome, Reasons
from sim.sweep.sections import MOST_HELD, Sections, changes
from sim.tuner.rows import Rows, RowScorer, Setting, refusals, settled
from sim.tuner.space import INTERLEAVED, NONE, ONE_F_ONE_B, ORDERS

OWN = (
    "tp", "pp", "virtual_stages", "dp", "cp", "ep", "fsdp_shard", "micro_batch", "global_batch", "zero", "recompute",
    "sequence_parallel", "schedule",
)  # fmt: skip
"""Fields of a plan that every row has of its own; rows that are equal in all others share a setting."""

STATED: Mapping[str, tuple[str, ...]] = {
    "cluster.links.intra_bytes_per_s": ("intra_bytes_per_s",),
    "cluster.links.inter_bytes_per_s_per_node": ("inter_bytes_per_s_per_node",),
    "cluster.links.latency_s": ("intra_alpha", "inter_alpha"),
    "cluster.memory_bytes": ("memory_bytes",),
    "cluster.usd_per_gpu_hour": ("usd_per_gpu_hour",),
}
"""Numbers of a cluster that the closed forms take as they are, by symbol: they may differ in every row at no cost."""

LEFT_OUT = -1
DEFAULTS = {f.name: f.default for f in fields(Plan) if f.name in OWN}


def direct(grid: Grid, path: str) -> bool:
    """Return whether an axis need not make clusters: it is a number of `STATED`, and all devices are of one kind."""
    grouped = any(p == "cluster" or p.startswith("cluster.groups") for p in grid.axes)
    return path in STATED and not grouped and isinstance(grid.cluster, Mapping) and not grid.cluster.get("groups")


@dataclass(eq=False)
class Analytic:
    """Evaluates rows of a grid by closed forms."""

    grid: Grid
    sections: Mapping[str, Sections]
    scorer: RowScorer = field(default_factory=RowScorer)
    plans: Sections = field(init=False)
    suited: dict[tuple[int, int], tuple[Plan, Plan, Cluster]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        raw = {key: value for key, value in (self.grid.plan or {}).items() if key not in OWN}
        self.plans = Sections("plan", {**raw, "global_batch": 1})

    def __call__(self, columns: dict[str, Column], rows: int) -> Outcome:
        """Return what becomes of all rows."""
        found, reasons = Outcome.blank(rows), Reasons()
        settings, setting = self._settings(columns, rows)

        def refuse(reason: str, at: Any) -> None:
            found.outcome[at], found.reason[at] = IMPOSSIBLE, reasons.index(reason)

        for n, one in enumerate(settings):
            if isinstance(one, InputError):
                refuse(f"{one.path}: {one.allowed}", setting == n)
        held = [one for one in settings if not isinstance(one, InputError)]
        place = np.cumsum([not isinstance(one, InputError) for one in settings]) - 1
        left = np.flatnonzero(found.outcome == OK)
        made = settled(Rows(self._own(columns, rows), place[setting], held, self._stated(columns)).of(left))
        for reason, at in refusals(made):
            refuse(reason, left[at])
        for reason, at in self._unknown(made, found.outcome[left] == OK):
            refuse(reason, left[at])
        good = np.flatnonzero(found.outcome[left] == OK)
        if len(good):
            scores = self.scorer.scores(made.of(good))
            for name, values in vars(scores).items():
                found.numbers[name][left[good]] = values
        return replace(found, reasons=tuple(reasons.known))

    def _stated(self, columns: dict[str, Column]) -> dict[str, NDArray[np.float64]]:
        return {
            symbol: column.numbers()
            for path, column in columns.items()
            if direct(self.grid, path)
            for symbol in STATED[path]
        }

    def _settings(self, columns: dict[str, Column], rows: int) -> tuple[list[Setting | InputError], NDArray[np.int64]]:
        """Return the settings of all rows, or why there is none, and of every row its setting's index."""
        own = {
            path: c
            for path, c in columns.items()
            if not direct(self.grid, path) and path not in {f"plan.{n}" for n in OWN}
        }
        of = {
            name: {p: c for p, c in own.items() if p.partition(".")[0] == name} for name in ("model", "cluster", "plan")
        }
        made, codes = {}, []
        for name, part in of.items():
            first, index = distinct(part.values(), rows)
            makers = self.plans if name == "plan" else self.sections[name]
            made[name] = [makers.at(changes(part, row)) for row in first.tolist()]
            codes.append(Column(tuple(range(len(first))), index))
        first, index = distinct(codes, rows)
        found: list[Setting | InputError] = []
        for row in first.tolist():
            each = [made[name][int(code.index[row])] for name, code in zip(of, codes, strict=True)]
            found.append(next((one for one in each if isinstance(one, InputError)), None) or self._setting(*each))
        return found, index

    def _setting(self, model: Any, cluster: Any, plan: Plan) -> Setting | InputError:
        key = (id(plan), id(cluster))
        if key not in self.suited:
            if len(self.suited) >= MOST_HELD:
                self.suited.clear()
            try:
                self.suited[key] = plan.suited(cluster), plan, cluster
            except InputError as error:
                return error
        suited = self.suited[key][0]
        if model.table and (model.table.dtype == "float32") != (suited.precision == "fp32"):
            return InputError("plan.precision", suited.precision, f"that of the table, {model.table.dtype}")
        return Setting(model, cluster, suited)

    def _unknown(self, rows: Rows, alive: Any) -> list[tuple[str, NDArray[np.int64]]]:
        """Return why settings have no costs, and which rows are of them."""
        keys = rows.setting * len(ORDERS) + rows.columns["schedule"]
        found = []
        for key in np.unique(keys[alive]).tolist():
            error = self.scorer.given(rows.settings[key // len(ORDERS)], key % len(ORDERS))
            if isinstance(error, InputError):
                found.append((f"{error.path}: {error.allowed}", np.flatnonzero(alive & (keys == key))))
        return found

    def _own(self, columns: dict[str, Column], rows: int) -> dict[str, NDArray[np.int64]]:
        """Return the columns of `Rows`, with what follows where a field is left out."""
        held = {name: self._coded(name, columns, rows) for name in OWN}
        held["dp"], held["fsdp_shard"] = np.maximum(held["dp"], 0), np.maximum(held["fsdp_shard"], 0)
        usual = np.where(held["virtual_stages"] > 1, INTERLEAVED, ONE_F_ONE_B)
        usual = np.where(held["pp"] == 1, NONE, usual)
        held["schedule"] = np.where(held["schedule"] == LEFT_OUT, usual, held["schedule"])
        sharded = held["sequence_parallel"]
        held["sequence_parallel"] = np.where(sharded == LEFT_OUT, held["tp"] > 1, sharded > 0).astype(np.int64)
        return held

    def _coded(self, name: str, columns: dict[str, Column], rows: int) -> NDArray[np.int64]:
        column = columns.get(f"plan.{name}")
        if column is None:
            value = (self.grid.plan or {}).get(name)
            return np.full(rows, _code(name, value))
        return np.array([_code(name, value) for value in column.values])[column.index]


def _code(name: str, value: Any) -> int:
    value = DEFAULTS[name] if value is None and isinstance(DEFAULTS[name], int | str) else value
    if value is None:
        return LEFT_OUT
    lists = {"recompute": RECOMPUTE, "schedule": ORDERS}
    return lists[name].index(value) if name in lists else int(value)
