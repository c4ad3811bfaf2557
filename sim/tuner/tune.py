"""The search: score the whole space, confirm the front runners on the event engine, explain the order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise, product
from math import inf
from time import perf_counter
from typing import Any

from sim.costs import inputs
from sim.costs.algebra import settle
from sim.costs.layers.structure import Structure
from sim.engine.closed_form import closed_form, lower_bound
from sim.engine.step import Step
from sim.plans.targets import RUN_BY_TORCH, SENDS_BLOCK, unsearched_refusals
from sim.specs import Cluster, InputError, Model, Plan, Training
from sim.specs.arguments import checked
from sim.specs.fields import read
from sim.specs.job import Objective, Target, Tune
from sim.specs.knobs import PLAN_KNOBS, STAGE_KNOBS, Bounds
from sim.specs.rules import NO_TEMPO, takes_tempo
from sim.tuner.baseline import textbook
from sim.tuner.deadline import Deadline, fewest_nodes
from sim.tuner.elasticity import Elasticity, elasticities
from sim.tuner.layers_alone import LayersAlone
from sim.tuner.limits import resolved
from sim.tuner.ranking import RankedPlan, rank, weighed
from sim.tuner.robustness import Robustness
from sim.tuner.rows import scored
from sim.tuner.score import Scores, bounds
from sim.tuner.search import Progress, Search
from sim.tuner.space import KEPT, ORDERS, Space, build_space, default_knobs, same_once
from sim.tuner.staged import FREEDOMS, StagedSearch, fitting, joined, search_stages, solve_exactly
from sim.units import percent

MAX_TOP = 1_000
RESCORED = 20
"""Plans that the event engine runs again at least."""


@dataclass(frozen=True, eq=False, repr=False)
class Tuned:
    """What the tuner found: ranked plans, the baseline, and how the search went.

    knobs: what was fixed or listed; evaluated: distinct configurations scored; excluded: the others by reason;
    seconds by part (space, compile, score, stages, confirm, total); gap: relative distance to the best possible over
    the enumerated space, by the lower bounds of the plans that the compiled engine has not run, and by what the exact
    search over plans of unequal stages (`unequal`) has left open of their closed form; certified when it is zero and
    the event engine, which runs the best plans again under contention (`RESCORED`), has them in the same order.
    left_out: what is missing because the search was stopped by hand, so that this is the best so far. robustness: of
    the order by time under other calibrations; None for one plan, or an order by memory. assumed: settings that the
    target decided, and those of the job's plan that are searched.
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
    same_order: bool
    unequal: StagedSearch | None = None
    robustness: Robustness | None = None
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Tuned({self.evaluated} plans, best {self.best.step!r})"

    @property
    def interrupted(self) -> bool:
        """Whether the search was stopped by hand."""
        return bool(self.left_out)

    @property
    def certified(self) -> bool:
        """Whether no plan of the space has a lower closed form, and contention does not change the order of the best.

        What has not run may still be faster under contention than its closed form says.
        """
        return self.gap == 0.0 and self.same_order and not self.interrupted

    @property
    def proof(self) -> str:
        """ "certified", or why the optimum is not."""
        if self.certified:
            return "certified"
        why = f"gap {percent(self.gap)}" if self.same_order else "contention changes the order"
        return f"interrupted, {why}" if self.interrupted else why

    @property
    def best(self) -> RankedPlan:
        """The winner."""
        return self.plans[0]

    @property
    def evaluated(self) -> int:
        """Distinct legal configurations scored; of plans of unequal stages the options of single stages."""
        return self.uniform + (self.unequal.evaluated if self.unequal else 0)

    @property
    def uniform(self) -> int:
        """Legal configurations of equal stages."""
        return int(self.space.allowed.sum())

    @property
    def feasible(self) -> int:
        """Configurations of equal stages that fit the devices' memory."""
        return int((self.space.allowed & self.scores.fits).sum())

    @property
    def excluded(self) -> dict[str, int]:
        """Configurations left out, by reason, the largest first; those over memory included."""
        reasons = dict(self.space.excluded) | {"does not fit the memory": self.uniform - self.feasible}
        return dict(sorted(((why, n) for why, n in reasons.items() if n), key=lambda item: -item[1]))

    @cached_property
    def elasticities(self) -> tuple[Elasticity, ...]:
        """What faster hardware would buy with the winner."""
        return elasticities(self.best.step)

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
    `progress` is called with (what, done, of). An interruption (Ctrl-C) after the first confirmed plan returns at once
    the best so far, not certified; a second one is raised. With objective gpus_for_deadline `cluster` is the most that
    may be used, `training` says how much is trained, and the result is on the fewest nodes that do it in
    `deadline_days`.

    Raises:
        InputError: an argument is out of range, no plan is legal, or none fits (what would make one fit is named).
    """
    asked = _checked(global_batch, knobs, objective, top, cluster, target, deadline_days)
    if not budget_s >= 0:  # NaN too, which no clock is ever beyond
        raise InputError("budget_s", budget_s, "a number of seconds from 0")
    request = _Request(model, asked, plan, top, perf_counter() + budget_s, progress)
    if deadline_days is None:
        return request.tuned(cluster)

    def on_time(on: Cluster) -> Tuned:
        left_s = max(0.0, request.until - perf_counter())
        return tune(model, on, global_batch, knobs, "step_time", top, left_s, plan, progress, target)

    deadline = Deadline(model, cluster, global_batch, training, deadline_days)
    found, why = fewest_nodes(deadline, request.space, request.any_unequal, on_time, progress)
    return replace(found, objective=objective, plans=(found.best.because(why), *found.plans[1:]))


@dataclass(frozen=True)
class _Request:
    """What is searched for: the knobs that are asked for, and the job's plan for all else.

    until: the instant after which no further plan is confirmed.

    Raises:
        InputError: the plan gives the layers of every stage or groups of other than pp microbatches, or a knob can have
            no effect on this target or model.
    """

    model: Model
    asked: Tune
    plan: Plan | None
    top: int
    until: float
    progress: Progress

    def __post_init__(self) -> None:
        target = self.asked.target
        for name in STAGE_KNOBS if FREEDOMS[target] in ("none", "layers") else ():
            if name in self.asked.knobs:
                allowed = f"left out: stages of {target} are all treated alike (targets torch and any vary it)"
                raise InputError(f"tune.knobs.{name}", self.asked.knobs[name], allowed)
        kept = self.plan or Plan(global_batch=self.asked.global_batch)
        for error in unsearched_refusals(self.model, kept, target):
            if error.path != "plan.tempo" or "tempo" not in self.asked.knobs:
                raise error
        if True in self.asked.knobs.get("tempo", ()) and not takes_tempo(self.model):
            raise InputError("tune.knobs.tempo", True, NO_TEMPO)
        if self.plan and self.plan.stages:
            raise InputError("plan.stages", self.plan.stages, "left out: the search finds them")
        if self.plan and self.plan.stage_layers:
            given, allowed = self.plan.stage_layers, "left out: the search gives every stage as many layers"
            raise InputError("plan.stage_layers", given, allowed)
        if self.plan and self.plan.microbatch_group_size != self.plan.pp:
            allowed = "left out: the search takes groups of pp microbatches"
            raise InputError("plan.microbatch_group_size", self.plan.microbatch_group_size, allowed)

    @property
    def of_target(self) -> dict[str, Any]:
        """What the target decides: the memory law, where the job leaves it open, and whether its pipelines stand still
        while they send."""
        stated = self.plan and "framework" not in self.plan.derived
        if self.asked.target in RUN_BY_TORCH and not stated:
            return {"framework": "torch"}
        return {"blocking_sends": True} if self.asked.target in SENDS_BLOCK else {}

    def assumed(self, space: Space) -> Iterator[str]:
        """Yield what the target decides, and what of the job's plan counts for nothing: knobs are searched anyway."""
        target = f"(target {self.asked.target})"
        yield from (f"plan.{name} = {value} {target}" for name, value in self.of_target.items())
        if space.waits is not None and (space.waits & space.allowed).any():
            yield f"plan.overlap_dp = False where gradients are reduced after the backward pass {target}"
        if not self.plan:
            return
        usual, fixed = Plan(global_batch=self.asked.global_batch), {*self.asked.knobs, *self.given}
        searched = (name for name in (*PLAN_KNOBS, "recompute_layers") if name not in {*KEPT, *fixed})
        own = (name for name in searched if name not in self.plan.derived)
        stated = [n for n in own if n in usual.derived or getattr(self.plan, n) != getattr(usual, n)]
        if stated:
            yield f"plan.{', plan.'.join(stated)}: searched, whatever the job says (tune.knobs holds one fixed)"
        if self.plan.dp:
            yield "plan.dp: what tp, pp and cp leave of the devices, whatever the job says"

    @property
    def given(self) -> dict[str, int]:
        """Degrees above 1 that the job's plan states: they are held, unless its knobs list others."""
        return {axis: getattr(self.plan, axis) for axis in ("cp", "ep") if self.plan and getattr(self.plan, axis) > 1}

    def space(self, cluster: Cluster) -> Space:
        """Return the space on a cluster."""
        batch, target = self.asked.global_batch, self.asked.target
        kept = (settings(self.plan.suited(cluster)) if self.plan else {}) | self.of_target
        knobs = {axis: [degree] for axis, degree in self.given.items()} | self.asked.knobs
        values = resolved(knobs, self.model, cluster, batch)
        uniform = {name: chosen for name, chosen in values.items() if name in PLAN_KNOBS}
        for name in uniform.get("precision", ()):
            _check_precision(name, cluster)
        kept = {name: value for name, value in kept.items() if name not in uniform}
        return build_space(self.model, cluster, batch, uniform, kept, target)

    def tuned(self, cluster: Cluster) -> Tuned:
        """Return the best plans on a cluster.

        Raises:
            InputError: no plan is legal, or none fits.
        """
        marks, objective = [perf_counter()], self.asked.objective
        space = self.space(cluster)
        marks.append(perf_counter())
        for compiling, schedule in product((closed_form, lower_bound), ("1f1b", "interleaved")):
            compiling(Structure.of(self.model), schedule)
        settle()
        marks.append(perf_counter())
        scores = scored(space)
        marks.append(perf_counter())
        most = self.top if objective == "memory_headroom" else max(self.top, RESCORED)
        search = Search(space, scores, bounds(space), objective, most, self.until, self.progress)
        steps, gap = search.confirm()
        marks.append(perf_counter())
        unequal = self.unequal(space, steps, search)
        marks.append(perf_counter())
        if unequal:
            steps = joined(steps, fitting(search.simulated([plan for _, plan in unequal.found])))[:most]
        if not steps and search.stop.pressed:
            raise KeyboardInterrupt
        if not steps:
            stated = any(name.startswith("offload") for name in (*self.asked.knobs, *space.kept))
            raise search.nothing(self.may_differ(space) and not stated)
        gap = max(gap, unequal.gap(steps[0].step_time_s)) if unequal else gap
        base, stop = {**space.kept, **self.given}, search.stop
        usual = partial(textbook, self.model, cluster, self.asked.global_batch, base, self.asked.target)
        baseline = stop.unless("the textbook plan", usual, None)
        ranked, same = rank(search, steps, self.top)
        weighing = partial(weighed, ranked, objective)
        ranked, robust = stop.unless("how robust the order is", weighing, (ranked, None))
        of_stages = {k: v for k, v in self.asked.knobs.items() if k not in PLAN_KNOBS and not isinstance(v, Bounds)}
        knobs = dict(space.knobs) | of_stages
        return Tuned(
            self.model, cluster, self.asked.global_batch, knobs, objective, ranked, baseline, space, scores,
            _seconds([*marks, perf_counter()]), gap, same, unequal, robust, tuple(self.assumed(space)),
            tuple(stop.left_out),
        )  # fmt: skip

    def unequal(self, space: Space, steps: Sequence[Step], search: Search) -> StagedSearch | None:
        """Return the plans of unequal stages that are faster than the slowest of `steps`, where they are asked for.

        Their order of microbatches is 1F1B's; traced networks and a search by memory have none.
        """
        if search.stop.pressed:
            return None
        slowest = steps[-1].step_time_s if len(steps) >= search.top else inf
        found = self._unequal(space, search.top, slowest, search.late)
        if found and found.interrupted:
            search.stop.press("the rest of the search")
        return found

    def any_unequal(self, space: Space, at_most: float) -> StagedSearch | None:
        """Return the fastest plan of unequal stages below `at_most` seconds, where they are asked for."""
        return self._unequal(space, 1, at_most, lambda: perf_counter() > self.until)

    def may_differ(self, space: Space) -> bool:
        """Return whether stages may differ from each other, as far as the target lets them."""
        asked = self.asked
        if self.model.table or asked.objective == "memory_headroom":
            return False
        if "1f1b" not in asked.knobs.get("schedule", ["1f1b"]) or True not in asked.knobs.get("unequal_stages", [True]):
            return False
        # a stage is sharded over all its ranks
        return 0 in space.knobs.get("fsdp_shard", [space.kept.get("fsdp_shard") or 0])

    def _unequal(self, space: Space, n: int, at_most: float, late: Callable[[], bool]) -> StagedSearch | None:
        asked, freedom = self.asked, FREEDOMS[self.asked.target]
        if freedom == "none" or not self.may_differ(space):
            return None
        own = {name: values for name, values in asked.knobs.items() if name in (*STAGE_KNOBS, "imbalance")}
        sizes = {"stage_micro_batch": space.knobs["micro_batch"]} if "micro_batch" in space.knobs else {}
        values = default_knobs(self.model, space.cluster) | dict(space.knobs) | own | sizes
        # Stages of more ranks than one are sequence-parallel, and have one chunk each.
        values["tp"] = [tp for tp in values["tp"] if (tp > 1) in values["sequence_parallel"]]
        if not values["tp"] or 1 not in values["virtual_stages"]:
            return None
        framework = Plan(global_batch=asked.global_batch, **space.kept).framework
        values["recompute"] = same_once(self.model, framework, values["recompute"])
        solve = LayersAlone(self.asked.target) if freedom == "layers" else solve_exactly
        return search_stages(
            self.model, space.cluster, asked.global_batch, values, space.kept, freedom, n, at_most, late,
            self.progress, solve,
        )  # fmt: skip


def _seconds(marks: Sequence[float]) -> dict[str, float]:
    """Return the seconds of every part of a search from the instants between them."""
    space, compiling, scoring, confirming, stages, ranking = (b - a for a, b in pairwise(marks))
    return {
        "space": space, "compile": compiling, "score": scoring, "stages": stages, "confirm": confirming + ranking,
        "total": marks[-1] - marks[0],
    }  # fmt: skip


def _check_precision(name: str, cluster: Cluster) -> None:
    """Refuse a precision that the devices, or their profile, cannot serve; raises InputError."""
    try:
        inputs.check_served(read(Plan, {"global_batch": 1, "precision": name}), cluster)
    except InputError as error:
        if error.path.startswith("cluster."):
            raise
        raise InputError("tune.knobs.precision", name, error.allowed) from None


def settings(plan: Plan) -> dict[str, Any]:
    """Return what a search takes from the job's plan; what follows from other settings follows from each plan's own."""
    return {name: getattr(plan, name) for name in KEPT if name not in plan.derived and getattr(plan, name) is not None}


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
        if name not in ORDERS:
            raise InputError("tune.knobs.schedule", name, f"{', '.join(ORDERS)}: others train two copies of the model")
    if not isinstance(top, int) or not 1 <= top <= MAX_TOP:
        raise InputError("top", top, f"a whole number from 1 to {MAX_TOP}")
    if objective in ("cost", "tokens_per_usd") and cluster.usd_per_gpu_hour is None:
        raise InputError("cluster.usd_per_gpu_hour", None, f"a price: {cluster.device} has none in the catalog")
    return asked
