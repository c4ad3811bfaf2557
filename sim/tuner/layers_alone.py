"""The best layers of stages that are alike in all else: what Megatron-LM and torchtitan can run of unequal stages."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sim.plans.targets import refusals
from sim.specs import PlacedPlan, Plan
from sim.specs.job import Target
from sim.specs.plan import RECOMPUTE
from sim.tuner.solvers.chain import Effort, Solution, together
from sim.tuner.solvers.exact import exact
from sim.tuner.stages import Only, StageTables


class LayersAlone:
    """A solver of stage tables (`staged.Solve`) whose stages share one ZeRO stage and kind of recompute.

    Each pair of them is solved exactly, as long as `target` can run it; torchtitan's for each number of layers that all
    stages but the first and the last have.
    """

    def __init__(self, target: Target) -> None:
        self.target = target

    def __call__(self, tables: StageTables, effort: Effort, n: int) -> Solution:
        """Return the n best ways over all pairs."""
        parts: list[Solution] = []
        for only in self._limits(tables):
            tables.only = only
            known = together(parts, n, effort.at_most).values
            at_most = known[n - 1] if len(known) >= n else effort.at_most
            parts.append(exact(tables.chain(at_most * tables.slower), replace(effort, at_most=at_most), n))
        return together(parts, n, effort.at_most)

    def _limits(self, tables: StageTables) -> Iterator[Only]:
        techniques, ends = tables.techniques, self.target.startswith("torchtitan") and tables.asked.stages > 2
        for zero in techniques.zero:
            for kind in techniques.recompute:
                if self._runs(tables, zero, kind):
                    columns = {"zero": zero, "recompute": RECOMPUTE.index(kind)}
                    yield from (Only(columns, each) for each in (_inner(tables) if ends else (None,)))

    def _runs(self, tables: StageTables, zero: int, kind: str) -> bool:
        """Return whether the target runs such stages, whatever their layers."""
        asked = tables.asked
        dp = asked.cluster.gpus // (asked.stages * (asked.tp or 1) * asked.cp)
        own: dict[str, Any] = {"tp": asked.tp, "pp": asked.stages, "cp": asked.cp, "ep": asked.ep}
        own |= {"micro_batch": asked.samples // dp, "zero": zero, "recompute": kind}
        if asked.model.layers > asked.stages:
            own["stage_layers"] = (asked.model.layers - asked.stages + 1, *[1] * (asked.stages - 1))
        plan = Plan(global_batch=asked.global_batch, **dict(asked.kept), **own)
        placed = PlacedPlan(plan, dp, asked.microbatches)
        return not any(refusals(asked.model, placed, self.target))


def _inner(tables: StageTables) -> list[int]:
    """Return the layers that all stages but the first and the last may have, where these have no more."""
    layers, stages = tables.asked.model.layers, tables.asked.stages
    return [n for n in tables.layers if n * (stages - 2) <= layers <= n * stages]
