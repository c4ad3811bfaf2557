"""The search over plans of unequal stages: every number of stages and samples per microbatch, each solved exactly.

Imbalance-aware hierarchical tuning of Mist (arXiv 2503.19050, section 5): stage tables (`stages`), joined by the exact
inter-stage solver (`solvers.exact`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from math import inf
from typing import Any, Literal

from sim.engine.step import Step, simulate
from sim.specs import Cluster, Model, PlacedPlan, Plan
from sim.specs.job import Target
from sim.specs.knobs import MAX_IMBALANCE
from sim.tuner.options import IMBALANCE, OFFLOADED, Question, Techniques
from sim.tuner.solvers.chain import Choice, Effort, Solution, never, together
from sim.tuner.solvers.exact import exact
from sim.tuner.stages import StageCell, StageTables

Freedom = Literal["none", "layers", "techniques", "all"]
FREEDOMS: Mapping[Target, Freedom] = {
    "torch": "techniques", "torchtitan": "layers", "torchtitan-0.3": "layers", "megatron": "layers",
    "deepspeed": "none", "any": "all",
}  # fmt: skip
"""In what the stages of a target's plans may differ: in nothing, in their layers, in memory techniques too (every
module is wrapped by itself), or in degrees too. `sim.plans.targets` refuses the same."""

EIGHTHS = tuple(i / 8 for i in range(9))
HOST_KNOBS = {f"offload_{name}": EIGHTHS if name in ("optimizer", "activations") else (0.0,) for name in OFFLOADED}
"""Shares on the host that are tried where nothing else is asked for."""

ON_DEVICE: Mapping[str, Any] = dict.fromkeys(HOST_KNOBS, (0.0,))
"""Nothing on the host."""

WITHIN = 1.05
"""Plans that take longer than the best by more are of no interest."""

EACH = 10
"""Plans that one pipeline (stages, samples per microbatch) offers at most where there are several: its best ones differ
by little, and so do the errors of their closed forms; between pipelines the event engine shall decide."""

Solve = Callable[[StageTables, Effort, int], Solution]


@dataclass
class StagedSearch:
    """What was found so far: (step time in s by the closed form, plan), best first; evaluated: options looked at;
    bound: no plan of unequal stages is faster (s); certified: the search was finished; interrupted: stopped by hand;
    again: the same for the fastest plan alone on another cluster, below so many seconds."""

    n: int
    at_most: float
    again: Callable[[Cluster, float], "StagedSearch"]
    found: list[tuple[float, Plan]] = field(default_factory=list)
    evaluated: int = 0
    bound: float = inf
    certified: bool = True
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def limit(self) -> float:
        """The step time that is worth looking below."""
        best = self.found[0][0] * WITHIN if self.found else inf
        return min(self.at_most, best, self.found[-1][0] if len(self.found) >= self.n else inf)

    def gap(self, best_s: float) -> float:
        """Return the share of the best step time that a plan of unequal stages could save at most."""
        return 0.0 if self.certified else max(0.0, 1 - self.bound / best_s)

    def steps(self, model: Model, cluster: Cluster) -> list[Step]:
        """Return the plans as the compiled engine runs them: those that fit, fastest first."""
        return fitting(simulate(model, cluster, plan) for _, plan in self.found)

    def stopped(self, least: float) -> "StagedSearch":
        """Mark that nobody looked at what takes `least` seconds or more."""
        self.certified, self.bound = False, min(self.bound, least)
        self.notes.append("interrupted")
        return self

    def add(self, seconds: float, plan: Plan) -> None:
        """Remember a plan if it is among the n best."""
        if seconds < self.limit and all(plan != other for _, other in self.found):
            self.found = sorted([*self.found, (seconds, plan)], key=lambda one: one[0])[: self.n]


def fitting(steps: Iterable[Step]) -> list[Step]:
    """Return the steps that fit, fastest first."""
    return sorted((s for s in steps if s.fits == "yes"), key=lambda s: s.step_time_s)


def joined(equal: Sequence[Step], unequal: Sequence[Step]) -> list[Step]:
    """Return all steps, fastest first; of those whose stages are equal after all none that `equal` has."""
    held = {_shape(step.placed) for step in equal}
    more = (step for step in unequal if not (_uniform(step.plan) and _shape(step.placed.at(0)) in held))
    return sorted([*equal, *more], key=lambda s: s.step_time_s)


def _uniform(plan: Plan) -> bool:
    """Return whether all stages are the same."""
    return len(set(plan.stages or plan.stage_layers or ())) < 2


def _shape(placed: PlacedPlan) -> tuple[Any, ...]:
    plan = placed.plan
    return (
        plan.tp, plan.pp, placed.dp, plan.cp, plan.ep, plan.virtual_stages, plan.micro_batch, plan.zero,
        plan.recompute, plan.recompute_layers, plan.sequence_parallel, plan.offload, plan.schedule,
        plan.fsdp_shard, plan.precision, plan.tempo,
    )  # fmt: skip


def solve_exactly(tables: StageTables, effort: Effort, n: int) -> Solution:
    """Return the n best ways by the exact solver, as far as they are `WITHIN` the best."""
    chain = tables.chain(effort.at_most * tables.slower)
    best = exact(chain, effort)
    if n > 1 and best.choices and best.certified:
        best = exact(chain, replace(effort, at_most=min(effort.at_most, best.value * WITHIN)), n)
    # Each end took its own time for the exchange of a tied table: where both take the same, that is what it takes.
    return best if all(len(set(_ends(choice))) == 1 for choice in best.choices) else _by_ends(tables, effort, n)


def _ends(choice: Choice) -> tuple[float, float]:
    """Return what both ends of a pipeline take for their own parts of the exchange of a tied table (s)."""
    first, last = choice.cells[0], choice.cells[-1]
    assert isinstance(first, StageCell)
    assert isinstance(last, StageCell)
    return first.tied(choice.points[0]), last.tied(choice.points[-1])


def _by_ends(tables: StageTables, effort: Effort, n: int) -> Solution:
    """Return the n best ways, as far as they are `WITHIN` the best, over all times that the exchange of a tied table
    may take, that of its slower end.

    The first is the best; of the others one may be missing, ousted by choices whose ends are both quicker than the time
    that is looked at, and which are found with a shorter one.
    """
    best = _over_ends(tables, effort, 1)
    if n == 1 or not best.choices or not best.certified:
        return best
    return _over_ends(tables, replace(effort, at_most=min(effort.at_most, best.value * WITHIN)), n)


def _over_ends(tables: StageTables, effort: Effort, n: int) -> Solution:
    parts: list[Solution] = []
    for tied in tables.tied_times:
        known = together(parts, n, effort.at_most).values
        most = known[n - 1] if len(known) >= n else effort.at_most
        found = exact(tables.where_ends_take(tied), replace(effort, at_most=most), n)
        own = [k for k, choice in enumerate(found.choices) if max(_ends(choice)) == tied]
        choices, values = tuple(found.choices[k] for k in own), tuple(found.values[k] for k in own)
        parts.append(replace(found, choices=choices, values=values))
    return together(parts, n, effort.at_most)


def _again(
    model: Model,
    global_batch: int,
    values: Mapping[str, Sequence[Any]],
    kept: Mapping[str, Any],
    freedom: Freedom,
    solve: Solve,
    on: Cluster,
    below: float,
) -> StagedSearch:
    """Return `StagedSearch.again`'s answer; of the module, so that a result can leave the process that found it."""
    return search_stages(model, on, global_batch, values, kept, freedom, 1, below, solve=solve)


def search_stages(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    values: Mapping[str, Sequence[Any]],
    kept: Mapping[str, Any],
    freedom: Freedom = "all",
    n: int = 1,
    at_most: float = inf,
    stop: Callable[[], bool] = never,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
    solve: Solve = solve_exactly,
) -> StagedSearch:
    """Return the `n` fastest plans of unequal stages below `at_most` seconds, no more than `EACH` of one pipeline.

    values: of every knob (tp, pp, cp, ep, micro_batch, zero, recompute, recompute_layers, offload_*, precision, tempo),
    and `stage_micro_batch`, all that a stage may have where others have more or fewer ranks (left out: any); kept:
    settings that are not searched. `stop` ends the search with the best so far.
    """
    again = partial(_again, model, global_batch, values, kept, freedom, solve)
    found = StagedSearch(n, at_most, again)
    hosts = HOST_KNOBS if freedom == "all" else ON_DEVICE
    if "offload" in kept and kept["offload"].used:
        hosts = {f"offload_{name}": (getattr(kept["offload"], name),) for name in OFFLOADED}
    techniques = Techniques(
        tuple(values["tp"]), tuple(values["zero"]), tuple(values["recompute"]),
        (0,) if freedom == "layers" else tuple(values.get("recompute_layers", ())),
        {name: tuple(values.get(f"offload_{name}", hosts[f"offload_{name}"])) for name in OFFLOADED},
        tuple(values.get("stage_micro_batch", ())),
    )  # fmt: skip
    settings = tuple((name, value) for name, value in kept.items() if name != "offload")
    every = list(questions(model, cluster, global_batch, values, settings, freedom))
    pipelines: list[_Pipeline] = []
    try:
        for i, asked in enumerate(every):
            if stop():
                return found.stopped(0.0)
            progress("bounding stages", i, len(every))
            pipelines.append(_Pipeline.of(asked, techniques, i))
        # The best of every pipeline first: of most of them the others are then of no interest.
        near = _solve_all(found, pipelines, solve, stop, progress, 1)
        if n > 1 and near:
            _solve_all(found, near, solve, stop, progress, min(n, max(EACH, -(-n // len(pipelines)))))
    except KeyboardInterrupt:
        found.interrupted = True
        return found.stopped(0.0)
    return found


@dataclass
class _Pipeline:
    """A pipeline that is asked for; least: a step time (s) that none of its plans beats; rank: its place among equals;
    counted: how many of its options are counted.

    Its tables are made when somebody looks at it: the bounds of most pipelines are above what is found by then.
    """

    asked: Question
    techniques: Techniques
    least: float
    rank: int
    counted: int = 0

    @classmethod
    def of(cls, asked: Question, techniques: Techniques, rank: int) -> "_Pipeline":
        """Return a pipeline with the bound of its stages without recompute, which only adds work."""
        quickest = replace(techniques, recompute=("none",), recompute_layers=())
        return cls(asked, techniques, StageTables(asked, quickest).least, rank)

    @cached_property
    def tables(self) -> StageTables:
        """All that its stages can be."""
        return StageTables(self.asked, self.techniques)


def _solve_all(
    found: StagedSearch,
    pipelines: Sequence[_Pipeline],
    solve: Solve,
    stop: Callable[[], bool],
    progress: Callable[[str, int, int], None],
    n: int,
) -> list[_Pipeline]:
    """Add the n best choices of every pipeline; return those that have a choice, by what their best takes."""
    near = []
    for i, one in enumerate(sorted(pipelines, key=lambda each: (each.least, each.rank))):
        if one.least >= found.limit:
            found.bound = min(found.bound, one.least)
            break
        if stop():
            found.stopped(one.least)
            break
        progress("solving stages", i, len(pipelines))
        reached = _solve(found, one, solve, stop, n)
        if reached < inf:
            one.least = reached
            near.append(one)
        else:
            del one.tables
    return near


def _solve(found: StagedSearch, one: _Pipeline, solve: Solve, stop: Callable[[], bool], n: int) -> float:
    """Add the n best choices of one pipeline, and return what the best takes (s)."""
    tables = one.tables
    solution = solve(tables, Effort(at_most=found.limit / tables.slower, stop=stop), n)
    found.evaluated += tables.evaluated - one.counted
    one.counted = tables.evaluated
    found.certified &= solution.certified
    found.bound = min(found.bound, solution.bound * tables.slower)
    found.notes += [solution.note] * (not solution.certified)
    for value, choice in zip(solution.values, solution.choices, strict=True):
        found.add(value * tables.slower, plan_of(one.asked, choice))
    return float(solution.value * tables.slower)


def questions(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    values: Mapping[str, Sequence[Any]],
    kept: tuple[tuple[str, Any], ...] = (),
    freedom: Freedom = "all",
) -> Iterator[Question]:
    """Yield every pipeline that can be asked for: stages, samples per microbatch, cp and ep.

    Without free degrees each tp is a question of its own, with as many devices in every stage.
    """
    degrees, alike = freedom == "all", freedom == "layers"
    imbalance = max(values.get("imbalance", (IMBALANCE if degrees else MAX_IMBALANCE,)))
    listed = [[(name, value) for value in values[name]] for name in ("precision", "tempo") if values.get(name)]
    named = [(*kept, *own) for own in product(*listed)]
    for cp, ep, stages, own in product(values["cp"], values["ep"], values["pp"], named):
        ranks = cluster.gpus // (stages * cp)
        if stages > model.layers + 2 or not ranks or (not degrees and cluster.gpus % (stages * cp)):
            continue
        if alike and stages == 1:  # a plan of equal stages
            continue
        sizes = (ranks // 2, ranks, 2 * ranks) if degrees else (ranks,)
        for tps in [tuple(values["tp"])] if degrees else [(tp,) for tp in values["tp"] if ranks % tp == 0]:
            dps = {max(1, n // tp) for tp in tps for n in sizes}
            for samples in sorted({b * dp for b in values["micro_batch"] for dp in dps}):
                if global_batch % samples == 0:
                    tp = None if degrees else tps[0]
                    yield Question(model, cluster, global_batch, stages, samples, cp, ep, tp, alike, own, imbalance)


def plan_of(asked: Question, choice: Choice) -> Plan:
    """Return the plan that a choice of cells and points describes."""
    stages = []
    for cell, point in zip(choice.cells, choice.points, strict=True):
        assert isinstance(cell, StageCell)
        stages.append(cell.table.stage(int(cell.options[point])))
    own = dict(asked.kept) | {"cp": asked.cp, "ep": asked.ep}
    plan = Plan(global_batch=asked.global_batch, stages=tuple(stages), **own)
    return plan.at(0) if asked.alike else plan
