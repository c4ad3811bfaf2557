"""Costs of every chunk and pipeline rank of a plan on its devices: numbers, or arrays over chunks or ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs import inputs, mesh, offload, stage
from sim.costs.algebra import Values
from sim.costs.layers.structure import Structure
from sim.costs.pairs import SLOWED
from sim.costs.profile import Profile, load_profile
from sim.costs.run_level import RunLevelSet, kernels_year, level_of, symbol_values
from sim.engine.assembly import PASS_COSTS, pass_seconds
from sim.schedules import SCHEDULES, Kind
from sim.specs import Cluster, Model, PlacedPlan, StagePlan

StageModel = Callable[[Structure], Callable[[Values], Mapping[str, Any]]]


def slowest(
    model: Model, cluster: Cluster, placed: PlacedPlan, level: RunLevelSet, what: StageModel = stage.stage_model
) -> dict[str, Any]:
    """Return the costs of every chunk and rank on the slowest of the devices that hold it.

    Ranks are laid out over the groups of a mixed cluster in order; a pipeline rank waits for its slowest device: the
    one whose forwards of a chunk take longest, with what they wait for copies, of which all of these are, and so for
    backwards. (What one hides of its collectives behind slow compute is no other's.) Of a chunk of which two ranks have
    a copy the slower one counts for both.
    """
    if placed.plan.stages:
        return _of_stages(model, cluster, placed, level, what)
    parts = cluster.members

    def on_members(what: StageModel) -> list[dict[str, Any]]:
        profiles = (load_profile(m.profile, placed.plan.product_kernel) for m in parts)
        return [stage_costs(model, m, placed, p, level, what) for m, p in zip(parts, profiles, strict=True)]

    each = on_members(what)
    if len(parts) == 1:
        return each[0]
    on = device_groups(placed, [m.gpus for m in parts])
    timed = each if what is stage.stage_model else on_members(stage.stage_model)
    holding = np.any(on[:, np.reshape(placed.plan.rank_of, (-1, placed.stages))], axis=1)
    waiting = on_members(offload.offload_costs(False)) if placed.plan.offloads else [{}] * len(parts)
    longest = _longest(placed, holding, [own | more for own, more in zip(timed, waiting, strict=True)])
    each = beside_longest(each, cluster, placed, timed)
    return {name: _worst([np.asarray(e[name]) for e in each], name, on, holding, longest) for name in each[0]}


def _longest(
    placed: PlacedPlan, holding: NDArray[np.bool_], costs: Sequence[Mapping[str, Any]]
) -> dict[Kind, NDArray[np.intp]]:
    """Return the device whose forwards of a chunk take longest, and whose backwards do, with what both wait for copies;
    of those `holding` it, by the costs of each."""
    kind = SCHEDULES[placed.plan.order]
    apart = kind.splits and not kind.joins
    found = {}
    for way, passes in ((Kind.F, (Kind.F,)), (Kind.B, (Kind.I, Kind.W) if apart else (Kind.B,))):
        seconds = [sum(own[k] for k in passes) for own in (pass_seconds(one, placed.stages) for one in costs)]
        found[way] = np.where(holding, seconds, -np.inf).argmax(axis=0)
    return found


def beside_longest(
    each: Sequence[Mapping[str, Any]], cluster: Cluster, placed: PlacedPlan, timed: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the costs of each device of a mixed cluster with what is left of the reductions of a step beside the last
    passes of all: those of the device of a pipeline rank that takes longest for them by the costs `timed`.

    What a fast device does not hide behind its own passes is under way while it waits for the slow one. Linear in the
    costs but for that choice.
    """
    plan = placed.plan
    if "reduce_only" not in each[0] or not plan.overlap_dp or plan.stages:
        return [dict(e) for e in each]
    on, ranks = device_groups(placed, [m.gpus for m in cluster.members]), np.arange(plan.pp)
    more = np.zeros((len(each), plan.pp))
    # Gradients are reduced beside the last backward, and parameters gathered beside the first forward.
    for kind in (Kind.B,) * (plan.zero < 2) + (Kind.F,) * (0 < plan.zero < 3):
        chosen, own = (
            np.stack([_of_ranks(placed, pass_seconds(e, placed.stages)[kind]) for e in costs])
            for costs in (timed, each)
        )
        more += own[np.where(on, chosen, -np.inf).argmax(axis=0), ranks] - own
    names = [name for name in each[0] if name.startswith("reduce_")]
    return [{**e, **{name: e[name] - own for name in names}} for e, own in zip(each, more, strict=True)]


def _of_ranks(placed: PlacedPlan, of_stages: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what all chunks of each pipeline rank take together."""
    rank_of = placed.plan.rank_of
    return np.asarray(np.bincount(rank_of, np.resize(of_stages, len(rank_of)), placed.plan.pp), dtype=np.float64)


def _of_passes(costs: Mapping[str, Any], stages: int) -> NDArray[np.float64]:
    """Return the seconds of a microbatch's passes on every stage, embedding and head included."""
    seconds = pass_seconds(costs, stages)
    return np.asarray(seconds[Kind.F] + seconds[Kind.B])


def device_groups(placed: PlacedPlan, sizes: Sequence[int]) -> NDArray[np.bool_]:
    """Return which groups of `sizes` devices in a row each pipeline rank uses: [group, pipeline rank]."""
    plan, axes = placed.plan, placed.plan.rank_order.split("-")
    extent = {"tp": plan.tp, "cp": plan.cp, "dp": placed.dp, "pp": plan.pp}
    ids = np.arange(sum(sizes)).reshape([extent[a] for a in reversed(axes)])
    by_rank = np.moveaxis(ids, len(axes) - 1 - axes.index("pp"), 0).reshape(plan.pp, -1)
    group = np.searchsorted(np.cumsum(sizes), by_rank, side="right")
    return np.array([(group == g).any(axis=1) for g in range(len(sizes))])


def holders(model: Model, cluster: Cluster, placed: PlacedPlan, level: RunLevelSet) -> list[list[int]]:
    """Return the numbers of the members of `cluster` that each pipeline rank uses.

    First is the one whose passes of all its chunks take longest.
    """
    members, plan = cluster.members, placed.plan
    if len(members) == 1:
        return [[0]] * plan.pp
    sizes = [m.gpus for m in members]
    on = stage_groups(placed, sizes) if plan.stages else device_groups(placed, sizes)
    chunks = [_of_passes(slowest(model, m, placed, level), placed.stages) for m in members]
    passes = np.array([_of_ranks(placed, each) for each in chunks])
    used = (np.flatnonzero(on[:, r]).tolist() for r in range(plan.pp))
    return [sorted(numbers, key=lambda n: -passes[n, r]) for r, numbers in enumerate(used)]


def _worst(
    values: Sequence[Any],
    name: str,
    on: NDArray[np.bool_],
    holding: NDArray[np.bool_],
    longest_of: Mapping[Kind, NDArray[np.intp]],
) -> Any:
    """Return the groups' values of forwards, or of backwards, of the group that takes longest for these on a chunk
    (`longest_of`); of others the largest, where the groups count that each rank is `on`, or each chunk (`holding`)."""
    longest = longest_of[Kind.F if "forward" in name else Kind.B]
    end = 0 if name.startswith("embedding") else -1 if name.startswith("head") else None
    if name in PASS_COSTS and end is not None:
        return values[longest[end]]
    if name in SLOWED or (name in PASS_COSTS and values[0].shape == longest.shape):
        return np.stack([np.broadcast_to(v, longest.shape) for v in values])[longest, np.arange(len(longest))]
    if name == "send" or values[0].ndim == 0:  # a message takes as long as the slower of its two ends
        mine = [bool(g.any() if end is None else g[end]) for g in holding]
        return reduce(np.maximum, (v for v, uses in zip(values, mine, strict=True) if uses))
    table = np.stack(values)
    return np.where(holding if table.shape == holding.shape else on, table, -np.inf).max(axis=0)


def _of_stages(
    model: Model, cluster: Cluster, placed: PlacedPlan, level: RunLevelSet, what: StageModel
) -> dict[str, Any]:
    """Return the costs of unequal stages: each as in a plan that treats all like it, on the slowest of its devices, as
    `slowest`.

    A message takes as long as the slower of its two ends.
    """
    parts, last = placed.plan.stages, len(placed.plan.stages) - 1
    held = stage_groups(placed, [m.gpus for m in cluster.members])
    if len(cluster.members) == 1:  # also where it is asked for as one of several
        held[:] = True
    crossed = tuple(crossings(cluster, placed))

    @cache
    def on_member(own: StagePlan, number: int, what: StageModel) -> dict[str, Any]:
        member, same = cluster.members[number], placed.at(parts.index(own))
        profile = _Itself(load_profile(member.profile, same.plan.product_kernel))
        evaluate = _of_one if what in KEPT else _of_one.__wrapped__
        return evaluate(model, member, same, profile, level, what, crossed, placed.plan.offloads)

    costs = []
    for s, own in enumerate(parts):
        numbers = np.flatnonzero(held[:, s]).tolist()
        if len(numbers) > 1:  # the one whose passes take longest first
            numbers.sort(key=lambda n: -_of_passes(on_member(own, n, stage.stage_model), len(parts))[s])
        costs.append([on_member(own, n, what) for n in numbers])

    def worst(name: str, s: int, where: int) -> NDArray[np.float64]:
        counted = costs[s][:1] if name in PASS_COSTS else costs[s]
        return reduce(np.maximum, (_chunk(each[name], where) for each in counted))

    def of_all(name: str) -> NDArray[np.float64]:
        return np.concatenate(np.broadcast_arrays(*(worst(name, s, s) for s in range(last + 1))), axis=-1)

    out: dict[str, Any] = {}
    for name in costs[0][0]:
        if name.startswith(("embedding_", "saved_embedding")):
            out[name] = _alone(worst(name, 0, 0))
        elif name.startswith(("head_", "saved_head")):
            out[name] = _alone(worst(name, last, last))
        elif name == "tied_reduce":
            out[name] = _alone(np.maximum(worst(name, 0, 0), worst(name, last, 0)))
        elif name == "workspace_bytes":
            out[name] = _alone(of_all(name).max(axis=-1, keepdims=True))
        elif name == "send":
            entered = [np.maximum(worst(name, max(0, s - 1), s), worst(name, s, s)) for s in range(last + 1)]
            out[name] = np.concatenate(np.broadcast_arrays(*entered), axis=-1)
        else:
            out[name] = of_all(name)
    return out


KEPT = {stage.stage_model, stage.traffic_model, offload.offload_model}
"""Models of which the costs of single stages are kept; others are made for one question."""


@dataclass(frozen=True, eq=False)
class _Itself:
    """A profile that equals no other: one that is loaded again may be another."""

    profile: Profile

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.profile is other.profile

    def __hash__(self) -> int:
        return id(self.profile)


@lru_cache(maxsize=256)
def _of_one(
    model: Model,
    member: Cluster,
    same: PlacedPlan,
    profile: _Itself,
    level: RunLevelSet,
    what: StageModel,
    crossed: tuple[bool, ...],
    offloads: bool,
) -> dict[str, Any]:
    """Return the costs of a plan that treats all stages like one of a plan whose messages cross domains as `crossed`
    says; offloads: something of that plan is in host memory. Plans that differ in one stage share those of the others.
    """
    beside = inputs.offload_values(same.plan, member, offloads)
    into = np.array(crossed, dtype=float)
    out = np.append(into[1:], into[-1])
    change = {"ends_inter": into[0], "pp_inter": np.append(out[0], into[1:]), "pp_inter_out": out, **beside}
    return stage_costs(model, member, same, profile.profile, level, what, change)


def _chunk(value: Any, i: int) -> NDArray[np.float64]:
    """Return a cost of chunk or rank i, with an axis of one chunk last; one number stands for all of them."""
    each = np.atleast_1d(value)
    return each[..., i : i + 1] if each.shape[-1] > 1 else each


def _alone(value: NDArray[np.float64]) -> Any:
    """Return what only one rank has: a number, or one for each of several sets of costs."""
    return float(value[0]) if value.ndim == 1 else value


def stage_groups(placed: PlacedPlan, sizes: Sequence[int]) -> NDArray[np.bool_]:
    """Return which groups of `sizes` devices in a row each of a plan's unequal stages uses: [group, stage]."""
    ends, edges = np.cumsum(placed.stage_gpus), np.cumsum(sizes)
    starts = ends - placed.stage_gpus
    return np.array([(starts < edge) & (ends > edge - size) for edge, size in zip(edges, sizes, strict=True)])


def crossings(cluster: Cluster, placed: PlacedPlan) -> list[bool]:
    """Return, per stage, whether its first device is in another fast domain than the first of the stage before it.

    Of the first stage whether the last one's is: these two share a tied table.
    """
    size = inputs.domain(cluster.members[0])
    domains = [first // size for first in accumulate(placed.stage_gpus, initial=0)][: placed.plan.pp]
    return [here != before for here, before in zip(domains, [domains[-1], *domains], strict=False)]


def stage_costs(
    model: Model,
    cluster: Cluster,
    placed: PlacedPlan,
    profile: Profile,
    level: RunLevelSet | None = None,
    what: StageModel = stage.stage_model,
    change: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return every output of the stage model for one plan: numbers, or arrays over chunks or ranks.

    change: symbols that get other values.
    """
    compiled = what(Structure.of(model))
    inputs.check_precision(placed.plan, profile)
    values = stage_values(model, cluster, placed, profile, level or level_of(cluster)) | dict(change or {})
    return {name: np.asarray(value, dtype=float)[()] for name, value in compiled(values).items()}


def stage_values(
    model: Model, cluster: Cluster, placed: PlacedPlan, profile: Profile, level: RunLevelSet
) -> dict[str, Any]:
    """Return the value of every symbol of the stage model for one plan."""
    plan = inputs.plan_values(model, placed, cluster)
    return (
        inputs.model_values(model)
        | inputs.cluster_values(cluster, profile)
        | plan
        | mesh.hops(placed, plan)
        | symbol_values(level.parameters, placed.plan.software_year, kernels_year(profile))
    )
