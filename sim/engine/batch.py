"""Many different steps at once: closed forms where they hold, the compiled path where they do not.

One call predicts every step of a table for one set of run-level parameters, so that a fit can ask hundreds of times.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sim.costs import inputs
from sim.costs.algebra import Compiled, Interpreted
from sim.costs.layers.structure import Structure
from sim.costs.profile import Profile, load_profile
from sim.costs.run_level import RunLevelSet, kernels_year, straggling, symbol_values
from sim.costs.usage import STEP
from sim.engine.closed_form import step_expressions, step_form
from sim.engine.step import simulate
from sim.schedules import CLOSED, SCHEDULES
from sim.specs import Cluster, Model, PlacedPlan

Floats = NDArray[np.float64]
Symbols = Mapping[str, Any]
CLOSE = ("1f1b", "interleaved", "gpipe")
"""Schedules whose closed form is close to the engine."""


@dataclass(frozen=True)
class Asked:
    """A step to predict."""

    model: Model
    cluster: Cluster
    placed: PlacedPlan

    @property
    def profile(self) -> Profile:
        """The profile of the cluster's devices, as the plan reads it."""
        return load_profile(self.cluster.profile, self.placed.plan.product_kernel)

    @property
    def learned(self) -> float:
        """The factor that executed plans have taught the profile for such a plan (1: none)."""
        if len(self.cluster.members) > 1 or self.profile.learned is None:
            return 1.0
        found = self.profile.learned.of(self.placed)
        return found.factor if found else 1.0

    @property
    def closed(self) -> bool:
        """Whether devices, chunks and groups of microbatches are equal, so that the closed forms hold."""
        kind = SCHEDULES[self.placed.plan.order]
        short = kind.grouped and self.placed.microbatches % self.placed.plan.microbatch_group_size
        if len(self.cluster.members) > 1 or short:
            return False
        counts = inputs.layer_counts(self.model, self.placed.plan.split(self.model))
        return self.placed.plan.order in CLOSE and bool((counts == counts[:, :1]).all())


@dataclass(frozen=True, eq=False)
class Table:
    """Predictions, one per step: seconds, allocated bytes on the fullest and on the last pipeline rank."""

    step_time_s: Floats
    peak_memory_bytes: Floats
    last_peak_bytes: Floats


@dataclass(frozen=True, eq=False)
class _Group:
    function: Compiled | Interpreted
    software: tuple[float | None, float]
    rows: NDArray[np.int64]
    columns: dict[str, Any]


class Batch:
    """A table of steps, grouped once by the compiled function that evaluates them.

    how: "closed" runs only steps without a close closed form on the engine, "exact" runs all of them there, and
    "approximate" those of schedules without closed forms: of others chunks but the first and the last count as equal
    (for fits, which ask hundreds of times). "walked" is "approximate" without compiling. `change`: symbols that get
    other values, of those of a step; it holds for closed forms, and wins over run-level parameters.
    """

    def __init__(
        self,
        asked: Sequence[Asked],
        how: Literal["closed", "exact", "approximate", "walked"] = "closed",
        change: Callable[[Asked, Symbols], Symbols] | None = None,
    ) -> None:
        self.asked = list(asked)
        self.gpus = np.array([a.placed.gpus for a in self.asked], dtype=float)
        self.learned = np.array([a.learned for a in self.asked])
        groups: dict[tuple[tuple[Structure, str, bool], tuple[float | None, float]], list[int]] = {}
        self.single: list[int] = []
        for i, a in enumerate(self.asked):
            open_kind = a.placed.plan.order not in CLOSED
            if how == "exact" or open_kind or (how == "closed" and not a.closed):
                self.single.append(i)
            else:
                plan = a.placed.plan
                key = Structure.of(a.model), plan.order, plan.offload.used
                groups.setdefault((key, (plan.software_year, kernels_year(a.profile))), []).append(i)
        # A fit asks hundreds of times and is worth compiling for; one look is not.
        compiled = how == "approximate"

        def function(key: tuple[Structure, str, bool]) -> Compiled | Interpreted:
            return step_form(*key) if compiled else Interpreted(step_expressions(*key))

        self.groups = [
            _Group(function(key), software, np.array(rows), _columns([self.asked[i] for i in rows], change))
            for (key, software), rows in groups.items()
        ]

    def __call__(self, level: RunLevelSet) -> Table:
        """Return the predictions under run-level parameters `level`."""
        found = [np.empty(len(self.asked)) for _ in range(3)]
        for group in self.groups:
            values = symbol_values(level.parameters, *group.software) | group.columns
            out = group.function(values)
            step = out["step_time_s"] * (1 + straggling(values["straggler"], self.gpus[group.rows]))
            step = step * self.learned[group.rows]
            first, last = out["first_peak_bytes"], out["last_peak_bytes"]
            for column, value in zip(found, (step, np.maximum(first, last), last), strict=True):
                column[group.rows] = value
        for i in self.single:
            a = self.asked[i]
            one = simulate(a.model, a.cluster, a.placed.plan, level=level)
            for column, value in zip(
                found, (one.step_time_s, one.peak_memory_bytes, one.memory[-1].peak_bytes), strict=True
            ):
                column[i] = value
        return Table(*found)

    def waiting(self, level: RunLevelSet) -> Floats:
        """Return what `Step.waiting` says of each step: d log(time) / d log(what hosts take to issue kernels)."""
        found = np.zeros(len(self.asked))
        for group in self.groups:
            values = symbol_values(level.parameters, *group.software) | group.columns
            slower = {name: v * (1 + STEP) for name, v in group.columns.items() if name.endswith("issue_s")}
            first, second = (group.function(of)["step_time_s"] for of in (values, values | slower))
            found[group.rows] = (1 - values["on_host"]) * (second / first - 1) / STEP
        for i in self.single:
            a = self.asked[i]
            found[i] = simulate(a.model, a.cluster, a.placed.plan, level=level).waiting
        return found


def _columns(asked: Sequence[Asked], change: Callable[[Asked, Symbols], Symbols] | None) -> dict[str, Any]:
    """Return the symbols of all steps as columns; those that never vary stay numbers."""
    for a in asked:
        inputs.check_precision(a.placed.plan, a.profile)
    rows = [
        inputs.model_values(a.model)
        | inputs.cluster_values(a.cluster, a.profile)
        | inputs.plan_values(a.model, a.placed, a.cluster)
        for a in asked
    ]
    rows = [row | _ends(a) for row, a in zip(rows, asked, strict=True)]
    if change:
        rows = [row | dict(change(a, row)) for row, a in zip(rows, asked, strict=True)]
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = np.array([_mean(row[name]) for row in rows])
        columns[name] = float(values[0]) if (values == values[0]).all() else values
    return columns


def _mean(value: Any) -> float:
    """Return a number as it is, which most are, or the mean of an array."""
    return float(value if isinstance(value, int | float) else np.mean(value))


def _ends(asked: Asked) -> dict[str, float]:
    """Return the layers of a middle chunk, and how many more the first and the last chunk have.

    The middle is the fullest chunk's count, or with mixed kinds of layers the mean.
    """
    counts = inputs.layer_counts(asked.model, asked.placed.plan.split(asked.model))
    inner = counts[:, 1:-1] if counts.shape[1] > 2 else counts
    middle = inner.max(axis=1) if len(counts) == 1 else inner.mean(axis=1)
    values = {f"layers_{k}": float(n) for k, n in enumerate(middle)}
    for end, of_end in (("first", counts[:, 0]), ("last", counts[:, -1])):
        values |= {f"{end}_extra_{k}": float(n) for k, n in enumerate(of_end - middle)}
    return values
