"""The search: score the whole space, confirm the front runners on the event engine, explain the order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs import inputs
from sim.costs.layers.dense import Structure
from sim.costs.profile import load_profile
from sim.engine.step import Step, closed_form, simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.job import Objective
from sim.tuner.baseline import textbook
from sim.tuner.explain import explain
from sim.tuner.score import Scores, score
from sim.tuner.space import Space, build_space

CLOSED_FORM_EXCESS = 0.01
"""How far the closed form may lie above the engine, as a fraction of the step (property-tested): every plan whose
closed form is within it of the best confirmed time is confirmed too, so that the best plan is not missed."""

MAX_CONFIRMED = 200


@dataclass(frozen=True, eq=False)
class RankedPlan:
    """A plan of the short list, its confirmed prediction and why it stands where it stands."""

    step: Step
    why: tuple[str, ...]
    p_best: float | None = None

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.step.plan


@dataclass(frozen=True, eq=False)
class Tuned:
    """What the tuner found: ranked plans, the baseline, and how the search went.

    knobs: what was fixed or listed; evaluated: distinct configurations scored; excluded: the others by reason;
    seconds by part (space, compile, score, confirm, total); gap: relative distance to the best possible over the
    enumerated space.
    """

    model: Model
    cluster: Cluster
    global_batch: int
    knobs: Mapping[str, Sequence[Any]]
    objective: Objective
    plans: tuple[RankedPlan, ...]
    baseline: Step | None
    space: Space
    scores: Scores
    seconds: Mapping[str, float]
    gap: float
    certified: bool

    @property
    def best(self) -> RankedPlan:
        """The winner."""
        return self.plans[0]

    @property
    def evaluated(self) -> int:
        """Distinct legal configurations scored."""
        return int(self.space.allowed.sum())

    @property
    def feasible(self) -> int:
        """Configurations of these that fit the devices' memory."""
        return int((self.space.allowed & self.scores.fits).sum())

    @property
    def excluded(self) -> dict[str, int]:
        """Configurations left out, by reason, the largest first; those over memory included."""
        reasons = dict(self.space.excluded) | {"does not fit the memory": self.evaluated - self.feasible}
        return dict(sorted(reasons.items(), key=lambda item: -item[1]))

    @property
    def speedup(self) -> float | None:
        """The baseline's step time over the winner's."""
        return self.baseline.step_time_s / self.best.step.step_time_s if self.baseline else None


def tune(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    objective: Objective = "step_time",
    top: int = 10,
    budget_s: float = inf,
    progress: Callable[[str, int, int], None] = lambda stage, done, of: None,
) -> Tuned:
    """Return the best plans for `model` on all devices of `cluster`.

    `knobs` fixes or lists values by name; after `budget_s` seconds no further plan is confirmed (the result then
    says that it is not certified); `progress` is called with (what, done, of).

    Raises:
        InputError: no plan of the space is legal, or none fits the memory (the nearest miss is named).
    """
    begin = perf_counter()
    profile = load_profile(cluster.profile)
    space = build_space(model, cluster, global_batch, knobs)
    if not space.allowed.any():
        reason = max(space.excluded, key=lambda r: space.excluded[r])
        raise InputError(
            "tune.knobs", dict(knobs or {}), f"values with a legal plan; most were excluded because {reason}"
        )
    ready = perf_counter()
    for schedule in ("1f1b", "interleaved"):
        closed_form(Structure.of(model), inputs.STATISTICS[model.norm], schedule)
    compiled = perf_counter()
    scores = score([(space, profile)])[0]
    scored = perf_counter()
    order = _order(space, scores, objective)
    limits = Limits(top, begin + budget_s, objective == "memory_headroom")
    steps, certified = _confirm(space, scores, order, limits, progress)
    ranked = [RankedPlan(s, explain(s, space, scores)) for s in steps[:top]]
    baseline = textbook(model, cluster, global_batch)
    done = perf_counter()
    seconds = {
        "space": ready - begin,
        "compile": compiled - ready,
        "score": scored - compiled,
        "confirm": done - scored,
        "total": done - begin,
    }
    return Tuned(
        model,
        cluster,
        global_batch,
        dict(knobs or {}),
        objective,
        tuple(ranked),
        baseline,
        space,
        scores,
        seconds,
        0.0,
        certified,
    )


def _order(space: Space, scores: Scores, objective: Objective) -> NDArray[np.int64]:
    """Return flat indices of the feasible configurations, best first.

    With all devices in use cost and tokens per dollar order plans as the step time does.
    """
    feasible = space.allowed & scores.fits
    if not feasible.any():
        peak = np.where(space.allowed, scores.peak_memory_bytes, np.inf)
        at = np.unravel_index(int(peak.argmin()), peak.shape)
        plan = space.plan(*(int(i) for i in at))
        smallest = f"{peak[at] / 1e9:.1f} GB allocated with tp {plan.tp}, pp {plan.pp}, zero {plan.zero}"
        allowed = f"a model that fits: the smallest plan still needs {smallest}, recompute {plan.recompute}"
        raise InputError("cluster.memory_bytes", space.cluster.memory_bytes, allowed)
    key = scores.peak_memory_bytes if objective == "memory_headroom" else scores.step_time_s
    flat = np.where(feasible, key, np.inf).ravel()
    return np.argsort(flat, kind="stable")[: int(feasible.sum())]


@dataclass(frozen=True)
class Limits:
    """How many plans to confirm: at least `top`, at most `MAX_CONFIRMED`, none after the instant `until`."""

    top: int
    until: float
    by_memory: bool


def _confirm(
    space: Space,
    scores: Scores,
    order: NDArray[np.int64],
    limits: Limits,
    progress: Callable[[str, int, int], None],
) -> tuple[list[Step], bool]:
    """Return confirmed steps, best first, and whether every plan that could win was confirmed.

    Plans come in the order of their closed forms, so that none can win once one is slower than the best
    confirmed plan by more than the closed form may exceed the engine.
    """
    closed = scores.step_time_s.ravel()
    steps: list[Step] = []
    best, certified = np.inf, True
    for n, flat in enumerate(order):
        if n >= limits.top and (limits.by_memory or closed[flat] > best * (1 + CLOSED_FORM_EXCESS)):
            break
        if steps and (n >= max(limits.top, MAX_CONFIRMED) or perf_counter() > limits.until):
            certified = False
            break
        progress("confirming on the event engine", n, limits.top)
        at = np.unravel_index(int(flat), scores.step_time_s.shape)
        step = simulate(space.model, space.cluster, space.plan(*(int(i) for i in at)), "events")
        steps.append(step)
        best = min(best, step.step_time_s)

    def key(step: Step) -> tuple[float, float]:
        by_time = (step.step_time_s, step.peak_memory_bytes)
        return by_time[::-1] if limits.by_memory else by_time

    return sorted(steps, key=key), certified
