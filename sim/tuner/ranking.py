"""The short list: its order on the event engine, and why each plan stands where it stands."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.engine.step import Step, simulate
from sim.specs import Plan
from sim.specs.job import Objective
from sim.tuner.binding import binding
from sim.tuner.explain import against, explain
from sim.tuner.robustness import Robustness, robustness
from sim.tuner.search import Search

TIE = 1e-9
"""Relative difference of step times that is rounding."""


@dataclass(frozen=True, eq=False)
class RankedPlan:
    """A plan of the short list, its prediction and why it stands where it stands.

    contended_s: its step time on the event engine, which decides the order.
    """

    step: Step
    why: tuple[str, ...]
    contended_s: float
    p_best: float | None = None

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.step.plan

    def because(self, reason: str) -> "RankedPlan":
        """Return the same with a further reason, after the time by cause."""
        return replace(self, why=(self.why[0], reason, *self.why[1:]))


def rank(search: Search, steps: Sequence[Step], top: int) -> tuple[tuple[RankedPlan, ...], bool]:
    """Return the best `top` of `steps` by their times under contention, and whether their order stayed as it was.

    By memory the order stays: it is the same on both engines. An interruption leaves those that are done, the first
    one at least.
    """
    space, by_time = search.space, search.objective != "memory_headroom"
    contended: list[float] = []
    try:
        for n, step in enumerate(steps):
            search.progress("ranking", n, len(steps))
            contended.append(simulate(space.model, space.cluster, step.plan, "events").step_time_s)
    except KeyboardInterrupt:
        if not contended:
            contended.append(simulate(space.model, space.cluster, steps[0].plan, "events").step_time_s)
        search.stopped.append(True)
    times = np.array(contended)
    order = np.argsort(times, kind="stable").tolist() if by_time else list(range(len(times)))
    kept = order[:top]
    following = [*(steps[i] for i in kept[1:]), None]
    ranked = tuple(
        RankedPlan(steps[i], _why(steps[i], after, search), contended[i])
        for i, after in zip(kept, following, strict=True)
    )
    return ranked, not by_time or bool((np.diff(times) >= -TIE * times[1:]).all())


def _why(step: Step, after: Step | None, search: Search) -> tuple[str, ...]:
    """Return why a plan stands where it stands, before the plan `after`."""
    time, memory, *knobs = explain(step, search.space, search.scores, search.run, search.objective)
    limits = [bound.text for bound in binding(step)]
    return time, memory, *limits, *([against(step, after)] if after else []), *knobs


def weighed(ranked: tuple[RankedPlan, ...], objective: Objective) -> tuple[tuple[RankedPlan, ...], Robustness | None]:
    """Return the plans with their probabilities of being the fastest, and how robust their order is."""
    by_time = objective != "memory_headroom"
    robust = robustness([r.step for r in ranked], [r.contended_s for r in ranked]) if by_time else None
    if robust is None:
        return ranked, None
    return tuple(replace(r, p_best=p) for r, p in zip(ranked, robust.p_best, strict=True)), robust
