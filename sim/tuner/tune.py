"""The search: score the whole space, confirm the front runners on the event engine, explain the order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs.layers.structure import Structure
from sim.engine.closed_form import closed_form, lower_bound
from sim.engine.step import Step, simulate
from sim.specs import Cluster, InputError, Model, Plan, Training
from sim.specs.arguments import checked
from sim.specs.fields import read
from sim.specs.job import Objective, Target, Tune
from sim.tuner.baseline import textbook
from sim.tuner.deadline import Deadline, fewest_nodes
from sim.tuner.explain import Outcome, explain
from sim.tuner.infeasible import no_plan, nothing_fits
from sim.tuner.limits import resolved
from sim.tuner.score import Scores, bounds, score_members
from sim.tuner.space import KEPT, SCHEDULES, Space, build_space

MAX_CONFIRMED = 200
"""Plans run through an engine at most; what then is still open is the `gap`."""

MAX_TOP = 1_000
Progress = Callable[[str, int, int], None]


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


@dataclass(frozen=True, eq=False, repr=False)
class Tuned:
    """What the tuner found: ranked plans, the baseline, and how the search went.

    knobs: what was fixed or listed; evaluated: distinct configurations scored; excluded: the others by reason;
    seconds by part (space, compile, score, confirm, total); gap: relative distance to the best possible over the
    enumerated space, by the lower bounds of the plans that the compiled engine has not run; certified when it is zero
    and the event engine, which runs the ranked plans again under contention, has the same winner. interrupted: the
    search was stopped by hand, and this is the best so far.
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
    same_winner: bool
    interrupted: bool = False

    def __repr__(self) -> str:
        return f"Tuned({self.evaluated} plans, best {self.best.step!r})"

    @property
    def certified(self) -> bool:
        """Whether no plan of the space can beat the winner, and contention does not dethrone it."""
        return self.gap == 0.0 and self.same_winner and not self.interrupted

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


@checked
def tune(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    objective: Objective = "step_time",
    top: int = 10,
    budget_s: float = inf,
    plan: Plan | None = None,
    progress: Progress = lambda what, done, of: None,
    target: Target = "torch",
    training: Training | None = None,
    deadline_days: float | None = None,
) -> Tuned:
    """Return the best plans for `model` on all devices of `cluster` that `target` can run.

    `knobs` fixes (a value), lists or bounds (`{"min": .., "max": ..}`) knobs by name; settings that are not searched
    (gradient dtype, overlap, precision) come from `plan`. After `budget_s` seconds no further plan is confirmed: the
    result then has a gap. Without that budget all limits are counts, and the answer does not depend on the machine.
    `progress` is called with (what, done, of). An interruption (Ctrl-C) after the first confirmed plan returns the
    best so far, not certified. With objective gpus_for_deadline `cluster` is the most that may be used, `training`
    says how much is trained, and the result is on the fewest nodes that do it in `deadline_days`.

    Raises:
        InputError: an argument is out of range, no plan is legal, or none fits (what would make one fit is named).
    """
    begin = perf_counter()
    asked = _checked(global_batch, knobs, objective, top, cluster, target, deadline_days)
    request = _Request(model, asked, plan)
    if deadline_days is not None:
        deadline = Deadline(model, cluster, global_batch, training, deadline_days)

        def on_time(on: Cluster) -> Tuned:
            left_s = begin + budget_s - perf_counter()
            return tune(model, on, global_batch, knobs, "step_time", top, left_s, plan, progress, target)

        found, why = fewest_nodes(deadline, request.space, on_time, progress)
        return replace(found, objective=objective, plans=(found.best.because(why), *found.plans[1:]))
    space = request.space(cluster)
    if not space.allowed.any():
        raise no_plan(space)
    ready = perf_counter()
    for compiling, schedule in product((closed_form, lower_bound), ("1f1b", "interleaved")):
        compiling(Structure.of(model), schedule)
    compiled = perf_counter()
    scores = score_members(space)
    scored = perf_counter()
    search = Search(space, scores, bounds(space), objective, top, begin + budget_s, progress)
    steps, gap = search.confirm()
    ranked = _ranked(search, steps)
    baseline = textbook(model, cluster, global_batch, {**space.kept, **request.given})
    done = perf_counter()
    marks = {"space": ready - begin, "compile": compiled - ready, "score": scored - compiled, "confirm": done - scored}
    seconds = marks | {"total": done - begin}
    same, cut = ranked[0].step is steps[0], search.interrupted
    return Tuned(
        model, cluster, global_batch, space.knobs, objective, ranked, baseline, space, scores, seconds, gap, same, cut
    )


@dataclass(frozen=True)
class _Request:
    """What is searched for: the knobs that are asked for, and the job's plan for all else.

    Raises:
        InputError: the plan gives the layers of every stage.
    """

    model: Model
    asked: Tune
    plan: Plan | None

    def __post_init__(self) -> None:
        if self.plan and self.plan.stage_layers:
            given, allowed = self.plan.stage_layers, "left out: the search gives every stage as many layers"
            raise InputError("plan.stage_layers", given, allowed)

    @property
    def given(self) -> dict[str, int]:
        """Degrees that are searched only where they are asked for."""
        return {axis: getattr(self.plan, axis) for axis in ("cp", "ep") if self.plan and getattr(self.plan, axis) > 1}

    def space(self, cluster: Cluster) -> Space:
        """Return the space on a cluster."""
        batch, target = self.asked.global_batch, self.asked.target
        kept = _settings(self.plan.suited(cluster)) if self.plan else {}
        knobs = {axis: [degree] for axis, degree in self.given.items()} | self.asked.knobs
        return build_space(self.model, cluster, batch, resolved(knobs, self.model, cluster, batch), kept, target)


def _ranked(search: "Search", steps: list[Step]) -> tuple[RankedPlan, ...]:
    """Return the plans in the order of their step times under contention.

    Memory is the same on both engines. An interruption leaves those that are done, the first one at least.
    """
    space, objective = search.space, search.objective

    def rank(step: Step) -> RankedPlan:
        contended = simulate(space.model, space.cluster, step.plan, "events").step_time_s
        return RankedPlan(step, explain(step, space, search.scores, search.run, objective), contended)

    ranked: list[RankedPlan] = []
    try:
        for n, step in enumerate(steps):
            search.progress("ranking", n, len(steps))
            ranked.append(rank(step))
    except KeyboardInterrupt:
        ranked = ranked or [rank(steps[0])]
        search.stopped.append(True)
    if objective != "memory_headroom":
        ranked.sort(key=lambda r: r.contended_s)
    return tuple(ranked)


def _settings(plan: Plan) -> dict[str, Any]:
    """Return what a search takes from the job's plan."""
    return {name: getattr(plan, name) for name in KEPT if getattr(plan, name) is not None}


def _checked(
    global_batch: int,
    knobs: object,
    objective: Objective,
    top: int,
    cluster: Cluster,
    target: Target,
    deadline_days: float | None,
) -> Tune:
    """Return the checked arguments; raises InputError."""
    if knobs is not None and not isinstance(knobs, Mapping):
        raise InputError("tune.knobs", knobs, "a mapping of knob to its values")
    several = {k: isinstance(v, Iterable) and not isinstance(v, str | Mapping) for k, v in (knobs or {}).items()}
    lists = {k: list(v) if several[k] else v for k, v in (knobs or {}).items()}
    raw = {"global_batch": global_batch, "knobs": lists, "objective": objective, "target": target}
    asked = read(Tune, raw | {"deadline_days": deadline_days}, "tune")
    for name in asked.knobs.get("schedule", []):
        if name not in SCHEDULES:
            raise InputError(
                "tune.knobs.schedule", name, f"{', '.join(SCHEDULES)}: others have no closed form to score"
            )
    if not isinstance(top, int) or not 1 <= top <= MAX_TOP:
        raise InputError("top", top, f"a whole number from 1 to {MAX_TOP}")
    if objective in ("cost", "tokens_per_usd") and cluster.usd_per_gpu_hour is None:
        raise InputError("cluster.usd_per_gpu_hour", None, f"a price: {cluster.device} has none in the catalog")
    return asked


@dataclass(frozen=True, eq=False)
class Search:
    """From scores to confirmed plans: flat indices of the space, best first by the objective.

    least: per configuration, a step time that no engine beats; until: the instant after which nothing more is run.
    """

    space: Space
    scores: Scores
    least: NDArray[np.float64]
    objective: Objective
    top: int
    until: float
    progress: Progress
    ran: dict[int, Outcome] = field(default_factory=dict)
    stopped: list[bool] = field(default_factory=list)

    @property
    def interrupted(self) -> bool:
        """Whether the search was stopped by hand."""
        return bool(self.stopped)

    def run(self, flat: int) -> Outcome:
        """Return what the compiled engine says of one configuration (remembered, without its timeline)."""
        if flat not in self.ran:
            at = np.unravel_index(flat, self.space.allowed.shape)
            plan = self.space.plan(*(int(i) for i in at))
            step = simulate(self.space.model, self.space.cluster, plan)
            self.ran[flat] = Outcome(plan, step.step_time_s, step.peak_memory_bytes, step.fits == "yes")
        return self.ran[flat]

    def _fitting(self) -> list[Outcome]:
        """Return what has run and fits: with chunks of different layers the scores only estimate the memory."""
        return [outcome for outcome in self.ran.values() if outcome.fits]

    def confirm(self) -> tuple[list[Step], float]:
        """Return the top plans as the compiled engine runs them, best first, and the gap that is left.

        Everything whose lower bound is under the best time so far is run, so that no closed form decides.
        """
        order = self._order()
        try:
            self._confirm_top(order)
            gap = 0.0 if self.objective == "memory_headroom" else self._close_gap(order)
        except KeyboardInterrupt:
            if not self._fitting():
                raise
            self.stopped.append(True)
            gap = self._open_gap(order)
        best = sorted(self._fitting(), key=self._key)[: self.top]
        return [simulate(self.space.model, self.space.cluster, o.plan) for o in best], gap

    def _confirm_top(self, order: NDArray[np.int64]) -> None:
        """Run configurations in the order of their scores until as many as asked for fit."""
        for flat in order[:MAX_CONFIRMED].tolist():
            good = len(self._fitting())
            if good >= self.top or (good and perf_counter() > self.until):
                break
            self.progress("confirming", good, self.top)
            self.run(flat)
        if not self._fitting():
            raise nothing_fits(self.space, self.scores)

    def _open_gap(self, order: NDArray[np.int64]) -> float:
        """Return how much faster than the best so far a configuration that has not run can be at most."""
        best = min(outcome.step_time_s for outcome in self._fitting())
        left = order[~np.isin(order, list(self.ran))]
        return max(0.0, float(1 - self.least.ravel()[left].min(initial=best) / best))

    def _close_gap(self, order: NDArray[np.int64]) -> float:
        least = self.least.ravel()
        for flat in order[np.argsort(least[order], kind="stable")].tolist():
            best = min(outcome.step_time_s for outcome in self._fitting())
            if least[flat] >= best:
                return 0.0
            if flat not in self.ran:
                if len(self.ran) >= max(self.top, MAX_CONFIRMED) or perf_counter() > self.until:
                    return float(1 - least[flat] / best)
                self.progress("closing the gap", len(self.ran), MAX_CONFIRMED)
                self.run(flat)
        return 0.0

    def _key(self, outcome: Outcome) -> tuple[float, float]:
        by_time = (outcome.step_time_s, outcome.peak_memory_bytes)
        return by_time[::-1] if self.objective == "memory_headroom" else by_time

    def _order(self) -> NDArray[np.int64]:
        """Return the feasible configurations by their closed forms, best first.

        With all devices in use cost and tokens per dollar order plans as the step time does.
        """
        space, scores = self.space, self.scores
        feasible = space.allowed & scores.fits
        if not feasible.any():
            raise nothing_fits(space, scores)
        key = scores.peak_memory_bytes if self.objective == "memory_headroom" else scores.step_time_s
        flat = np.where(feasible, key, np.inf).ravel()
        return np.argsort(flat, kind="stable")[: int(feasible.sum())]
