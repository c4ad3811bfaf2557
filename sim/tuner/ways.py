"""What a search is worth: the plans that others' searches find, and our own without one of its ideas, on equal costs.

Every way of searching proposes plans by its own means; the event engine runs them, and only what fits counts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from sim.costs.inputs import check_served
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.arguments import checked
from sim.specs.job import Target
from sim.tuner.solvers.chain import Effort, Solution
from sim.tuner.solvers.registry import SOLVERS
from sim.tuner.space import KEPT, default_knobs
from sim.tuner.staged import ON_DEVICE, Solve, search_stages, solve_exactly
from sim.tuner.stages import StageTables
from sim.tuner.tune import RESCORED, settings, tune
from sim.tuner.worse import solve_alike, solve_without_surplus

SEARCHED = (
    "offload",
    "fsdp_shard",
    *(f.name for f in fields(Plan) if f.init and f.name not in {*KEPT, "global_batch"}),
)
"""Settings of a plan that every search chooses in its own way, whatever a job says."""

TRIED = 5
"""Plans of every search that the event engine runs."""


class Case(NamedTuple):
    """What is searched for: the fastest plan of a batch on all devices; `kept`: settings that no search changes."""

    model: Model
    cluster: Cluster
    batch: int
    kept: Mapping[str, Any]


class Proposal(NamedTuple):
    """Plans that a search would run, best first by its own costs, and how many options it looked at.

    proof: "certified", or why the search's optimum is not; empty where it claims none.
    """

    plans: Sequence[Plan]
    evaluated: int
    proof: str = ""


class Way(NamedTuple):
    """A way of searching: what it is, and what it proposes for a case."""

    words: str
    propose: Callable[[Case], Proposal]


@dataclass(frozen=True)
class Found:
    """The best that a way of searching found: its plan and the seconds of a step by the event engine; None where
    nothing that it proposed fits.

    evaluated: options looked at; seconds: what proposing took; proof: as `Proposal`; why nothing could be proposed.
    """

    way: str
    plan: Plan | None
    step_time_s: float | None
    evaluated: int
    seconds: float
    proof: str = ""
    why: str = ""


@checked
def compared(
    model: Model, cluster: Cluster, global_batch: int, ways: Iterable[str], plan: Plan | None = None
) -> Iterator[Found]:
    """Yield what each of `ways` (names of `WAYS`) finds; every plan has the settings of `plan` that are not `SEARCHED`.

    Raises:
        InputError: no such way, a profile of the cluster cannot be read, or does not serve the precision of `plan`.
        KeyboardInterrupt: a search is stopped by hand; what it has found so far is left out.
    """
    asked = plan or Plan(global_batch=global_batch)
    case = Case(model, cluster, global_batch, kept(asked, cluster))
    check_served(asked.suited(cluster), cluster)  # where a profile does not exist nothing would seem to fit
    for name in ways:
        if name not in WAYS:
            raise InputError("ways", name, f"one of {', '.join(WAYS)}")
        yield _found(name, WAYS[name], case)


def kept(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """Return what every search takes from a job's plan."""
    return {name: value for name, value in settings(plan.suited(cluster)).items() if name not in SEARCHED}


def _found(name: str, way: Way, case: Case) -> Found:
    begin, why = perf_counter(), ""
    try:
        proposed = way.propose(case)
    except InputError as error:  # nothing in this space is legal, or fits
        proposed, why = Proposal((), 0), str(error)
    seconds = perf_counter() - begin
    steps = [simulate(case.model, case.cluster, plan, "events") for plan in proposed.plans]
    best = min((s for s in steps if s.fits == "yes"), key=lambda s: s.step_time_s, default=None)
    plan, time = (best.plan, best.step_time_s) if best else (None, None)
    return Found(name, plan, time, proposed.evaluated, seconds, proposed.proof, why)


def _tuned(case: Case, target: Target = "any", **knobs: Sequence[Any]) -> Proposal:
    """Return what `tune` has ranked; `knobs` limit it."""
    plan = Plan(global_batch=case.batch, **case.kept)
    found = tune(case.model, case.cluster, case.batch, knobs, plan=plan, target=target, top=TRIED)
    if found.interrupted:  # what a search did not finish is no answer to compare
        raise KeyboardInterrupt
    return Proposal([ranked.plan for ranked in found.plans], found.evaluated, found.proof)


def _staged(
    case: Case, solve: Solve = solve_exactly, assumed: Mapping[str, Any] | None = None, **values: Sequence[Any]
) -> Proposal:
    """Return the best plans of unequal stages; `assumed` settings hold while it searches, and not when they run."""
    knobs: Mapping[str, Sequence[Any]] = default_knobs(case.model, case.cluster) | values
    held = {**case.kept, **(assumed or {})}
    found = search_stages(case.model, case.cluster, case.batch, knobs, held, n=RESCORED, solve=solve)
    if found.interrupted:
        raise KeyboardInterrupt
    own = Plan(global_batch=case.batch, **case.kept)
    usual = {name: getattr(own, name) for name in assumed or {}}
    ranked = found.steps(case.model, case.cluster)
    return Proposal([step.plan.but(**usual) for step in ranked[:TRIED]], found.evaluated)


def _by(solver: str, tables: StageTables, effort: Effort, n: int) -> Solution:
    """Return what one of `SOLVERS` makes of the stage tables: one way for each."""
    del n
    return SOLVERS[solver](tables.chain(effort.at_most * tables.slower), effort)


RIVALS: Mapping[str, Way] = {
    "megatron": Way(
        "equal stages as Megatron-LM's users search them: 1F1B, ZeRO-1, recompute none or full",
        partial(
            _tuned, target="megatron", unequal_stages=[False], virtual_stages=[1], zero=[0, 1],
            recompute=["none", "full"],
        ),
    ),
    "uniform": Way("all plans of equal stages, interleaved too, exhaustively", partial(_tuned, unequal_stages=[False])),
    "aceso": Way(
        "greedy, with Aceso's own techniques: layers, degrees, recompute; no ZeRO, nothing on the host",
        partial(_staged, solve=partial(_by, "greedy"), zero=[0], **ON_DEVICE),
    ),
    "greedy": Way("greedy over our whole space", partial(_staged, solve=partial(_by, "greedy"))),
    "sampled": Way("random choices over our whole space", partial(_staged, solve=partial(_by, "sampled"))),
    "nsga": Way("NSGA-II over our whole space", partial(_staged, solve=partial(_by, "nsga"))),
    "tuned": Way("our search: all plans of equal stages and the exact best of unequal ones", _tuned),
}  # fmt: skip
"""Others' searches and ours."""

IDEAS: Mapping[str, Way] = {
    "staged": Way("our search over unequal stages, with everything", _staged),
    "no overlap": Way(
        "costs that hide no communication while searching",
        partial(_staged, assumed={"overlap_dp": False, "tp_overlap": False}),
    ),
    "no surplus": Way(
        "the first and last microbatch cost as all others", partial(_staged, solve=solve_without_surplus)
    ),
    "equal stages": Way("all stages alike in everything", partial(_staged, solve=solve_alike)),
    "no ZeRO": Way("without ZeRO", partial(_staged, zero=[0])),
    "no recompute": Way("without recomputation", partial(_staged, recompute=["none"])),
    "whole recompute": Way("all layers of a stage recompute, or none", partial(_staged, recompute_layers=[0])),
    "no optimizer offload": Way("optimizer states stay on the device", partial(_staged, offload_optimizer=[0.0])),
    "no activation offload": Way("activations stay on the device", partial(_staged, offload_activations=[0.0])),
    "no offload": Way("nothing on the host", partial(_staged, **ON_DEVICE)),
}  # fmt: skip
"""The search over unequal stages (1F1B), and the same without one of its ideas or techniques."""

WAYS: Mapping[str, Way] = {**RIVALS, **IDEAS}
