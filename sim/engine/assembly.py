"""From the costs of a step to what the engine runs: durations of actions, bytes of ranks, and its pace."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from sim.costs import pairs
from sim.engine.clock import tick_array
from sim.engine.delayed import Delayed, beside_copies
from sim.engine.graph import graph_of
from sim.engine.memory import Footprint
from sim.engine.steady import steady_state
from sim.engine.timeline import Durations, Timeline
from sim.schedules import SCHEDULES, Action, IllegalScheduleError, Kind, Schedule, ScheduleKind, Shape, build
from sim.specs import InputError, PlacedPlan
from sim.specs.pipelines import microbatches_to_steady

TERMS = (
    "compute", "recompute", "tp", "dp", "pp", "cp", "ep", "offload", "bubble", "optimizer", "straggler", "other",
    "learned",
)  # fmt: skip
HELD = ("parameters", "gradients", "product_gradients", "optimizer_bytes", "gathered_bytes")
"""What a rank holds for the whole step, as `stage.states` names it."""

OFFLOAD = {
    Kind.F: "forward_offload", Kind.B: "backward_offload", Kind.I: "input_offload", Kind.W: "weight_offload",
}  # fmt: skip
"""What passes wait for copies, where `costs.offload` is among the costs."""

ASIDE = {Kind.F: "forward_aside", Kind.B: "backward_aside", Kind.I: "input_aside"}
"""What of that other stages do not wait for."""

PASSES: Mapping[str, Mapping[Kind, str]] = {
    "compute": {Kind.F: "forward_compute", Kind.I: "input_compute", Kind.W: "weight_compute"},
    "recompute": {Kind.I: "recompute"},
    "tp": {Kind.F: "forward_tp", Kind.I: "input_tp"},
    "dp": {Kind.F: "forward_dp", Kind.I: "input_dp", Kind.W: "weight_dp", Kind.B: "backward_dp"},
    "pp": {Kind.F: "forward_pp", Kind.I: "input_pp"},
    "cp": {Kind.F: "forward_cp", Kind.I: "input_cp"},
    "ep": {Kind.F: "forward_ep", Kind.I: "input_ep"},
    "offload": OFFLOAD,
    "other": {Kind.F: "forward_host", Kind.I: "input_host", Kind.W: "weight_host", Kind.B: "backward_host"},
}
"""The cost of a pass behind each term of the step's time; where a whole backward (B) has none of its own, it is that
of both halves (I, W)."""

COMPUTED = ("compute", "recompute", "other")
INSIDE = ("tp", "cp", "ep", "pp")
"""Terms of what a pass computes, and of what it waits for; of messages those that block."""

SHARED = {Kind.F: "forward_shared", Kind.B: "backward_shared"}
"""Costs of ZeRO's collectives beside a pass on the links of those inside it."""

LANE = {Kind.F: "forward_lane", Kind.B: "backward_lane"}
"""Costs of ZeRO's collectives beside a pass, where reductions of the step before would run beside it too."""

_ENDS = ((0, "embedding"), (-1, "head"))
"""Stages that do more than their blocks; the costs of that have this in front."""


def _names(kind: Kind) -> Iterator[tuple[str, str, tuple[tuple[int, str], ...]]]:
    """Yield every cost of a pass: its term, its name, and which costs the first and the last stage add to it."""
    for term, names in PASSES.items():
        halves = (kind,) if kind in names or kind is not Kind.B else (Kind.I, Kind.W)
        for name in (names[half] for half in halves if half in names):
            # Embedding and head reduce their gradients in the first half of the backward, split or whole.
            end_name = "backward_dp" if name == "input_dp" else name
            yield term, name, tuple((stage, f"{end}_{end_name}") for stage, end in _ENDS)


_COSTS = {kind: tuple(_names(kind)) for kind in OFFLOAD}
ROWS = ("forward_row", "backward_row", "weight_row", "backward_spared")
"""What passes take more or less for copies where another of their kind follows, or came before."""

PASS_COSTS = frozenset(
    each for costs in _COSTS.values() for _, name, ends in costs for each in (name, *(end for _, end in ends))
) | {
    *("ahead_forward", "ahead_backward", "late_backward", *SHARED.values(), *LANE.values()),
    *(f"{end}{name}" for end in ("", "embedding_", "head_") for name in (*ASIDE.values(), *ROWS)),
}
"""All costs of passes, of their ends that only their own rank waits for, and of what runs beside them."""

Costs = Mapping[str, Any]

KNOBS = {"microbatches": "micro_batch", "ranks": "pp", "variant": "schedule", "chunks": "virtual_stages"}
"""Knobs of a plan behind the fields of a schedule's shape."""


def step_schedule(placed: PlacedPlan, costs: Costs) -> Schedule:
    """Return the pipeline's order with gradient reduction and optimizer at the end of every rank.

    A schedule without flush runs as many steps as its steady state takes to show, with its own updates.

    Raises:
        InputError: the schedule cannot have this shape.
    """
    plan = placed.plan
    kind, shape = SCHEDULES[plan.order], _shape(placed)
    work = None
    if kind.searched:
        table = {k: tick_array(v) for k, v in pass_seconds(costs, placed.stages, kind.copies).items()}
        work = Durations(table, tick_array(np.zeros(placed.stages) + costs["send"])).work()
    try:
        order = build(kind.name, shape, work)
    except IllegalScheduleError as error:
        raise _refused(kind, error.field, error.value, error.allowed) from None
    return order if kind.asynchronous else with_update(order, bool(plan.optimizer_barrier))


def check_schedule(placed: PlacedPlan) -> None:
    """Raise the InputError of `step_schedule` where the plan's schedule cannot have its shape; nothing is built."""
    kind = SCHEDULES[placed.plan.order]
    refusal = kind.refusal(_shape(placed))
    if refusal:
        raise _refused(kind, *refusal)


def _shape(placed: PlacedPlan) -> Shape:
    plan, m = placed.plan, placed.microbatches
    kind = SCHEDULES[plan.order]
    shape = Shape(plan.pp, m, plan.virtual_stages * kind.copies, kind.group(plan.microbatch_group_size, m))
    if kind.asynchronous:
        shape = replace(shape, microbatches=int(microbatches_to_steady(m, plan.pp)))
    return shape


def _refused(kind: ScheduleKind, field: str, value: object, allowed: str) -> InputError:
    return InputError(f"plan.{KNOBS.get(field, field)}", value, f"{allowed} ({field} of schedule {kind.name})")


@lru_cache(maxsize=16)
def with_update(order: Schedule, barrier: bool) -> Schedule:
    """Return an order with gradient reduction and optimizer at the end of every rank; barrier: no rank updates before
    all have reduced."""
    end = (Kind.REDUCE_GRAD, Kind.OPTIMIZER)
    actions = (rank + tuple(Action(r, kind, -1) for kind in end) for r, rank in enumerate(order.actions))
    return replace(order, actions=tuple(actions), barrier=barrier)


@lru_cache(maxsize=4_096)
def where(rank: int, schedule: Schedule) -> str:
    """Return which extras a rank holds: those of the first stage, of the last, of both (only) or none (middle)."""
    own = {s % schedule.depth for s, r in enumerate(schedule.rank_of) if r == rank}
    first, last = 0 in own, schedule.depth - 1 in own
    return "only" if first and last else "first" if first else "last" if last else "middle"


def on_ranks(costs: Costs, name: str, schedule: Schedule) -> Any:
    """Return `name`_first, _middle, _last or _only of every rank."""
    return np.array([at(costs[f"{name}_{where(r, schedule)}"], r) for r in range(schedule.ranks)])


def offloaded(costs: Costs, name: str, schedule: Schedule) -> Any:
    """Return an output of `costs.offload` on every rank: zeros where nothing is offloaded."""
    return on_ranks(costs, name, schedule) if f"{name}_only" in costs else np.zeros(schedule.ranks)


def tied_reduce(costs: Costs, schedule: Schedule) -> Any:
    """Return the seconds in which a rank adds up the gradients of an embedding that another rank's head shares."""
    ends = {schedule.rank_of[0], schedule.rank_of[schedule.depth - 1]}
    shared = [r in ends and len(ends) > 1 for r in range(schedule.ranks)]
    return float(costs["tied_reduce"]) * np.array(shared)


def exposed_tied(costs: Costs, schedule: Schedule) -> Any:
    """Return `tied_reduce`, or zeros where it hides with the other reductions."""
    return tied_reduce(costs, schedule) * (not SCHEDULES[schedule.name].delayed)


def at(value: Any, i: int) -> float:
    """Return a cost of chunk or rank `i`: one number stands for all of them."""
    flat = np.asarray(value).ravel()
    return float(flat[i] if len(flat) > 1 else flat[0])


def pass_terms(costs: Costs, kind: Kind, stages: int) -> dict[str, Any]:
    """Return the seconds of a pass on every stage by term of the step's time, embedding and head included."""
    found = {term: np.zeros(stages) for term in PASSES}
    for term, name, ends in _COSTS[kind]:
        found[term] += costs.get(name, 0.0)
        for stage, end in ends:
            if end in costs:
                found[term][stage] += at(costs[end], stage)
    return found


def pass_seconds(costs: Costs, stages: int, copies: int = 1) -> dict[Kind, Any]:
    """Return the seconds of F, I, W and B on every stage, embedding and head included.

    copies: how many times the stages, so many each, repeat.
    """
    return {kind: np.tile(sum(pass_terms(costs, kind, stages).values()), copies) for kind in OFFLOAD}


def durations(schedule: Schedule, costs: Costs) -> Durations:
    """Return the nanoseconds of every action of a step."""
    table, message, back = action_seconds(schedule, costs)
    longer, aside = longer_seconds(schedule, costs)
    if len(beside := delayed_seconds(schedule, costs)):
        longer, aside = longer + beside if len(longer) else beside, aside if len(aside) else 0 * beside
    single = hidden_seconds(schedule, costs), longer, aside
    sending = np.tile(np.zeros(schedule.depth) + costs["send"], schedule.pipelines)
    return Durations({k: tick_array(v) for k, v in table.items()}, *map(tick_array, (message, back, *single, sending)))


def longer_seconds(schedule: Schedule, costs: Costs, of_copies: bool = False) -> tuple[Any, Any]:
    """Return by how much each action, in the order of the graph, takes longer than its kind and stage say, also for
    those that wait for its message, and by how much else. Empty where nothing does.

    Own ranks alone wait for what copies outlast a pass by, and on where another of its kind follows; right after one a
    backward has the link for itself and waits less. `_held_up` counts too, but where only waits `of_copies` do.
    """
    graph, late = graph_of(schedule), _held_up(schedule, costs) * (not of_copies)
    if "forward_row" not in costs and not late.any():
        return np.zeros(0), np.zeros(0)
    longer, aside = np.zeros((2, len(graph)))
    longer[graph.lasts] = late[graph.stage[graph.lasts]]
    (f, b, w), second, found = graph.rows, graph.rows[1] + 1, {}
    for name in (*ROWS, *ASIDE.values()):
        each = np.zeros(schedule.depth) + costs.get(name, 0.0)
        for stage, end in _ENDS:
            each[stage] += at(costs.get(f"{end}_{name}", 0.0), stage)
        found[name] = each[graph.stage % schedule.depth]
    aside[f], aside[b], aside[w] = found["forward_row"][f], found["backward_row"][b], found["weight_row"][w]
    longer[second] -= found["backward_spared"][second]
    own = sum(found[name] * (graph.kind == kind) for kind, name in ASIDE.items())
    return longer - own, aside + own


def _held_up(schedule: Schedule, costs: Costs) -> Any:
    """Return by how much every stage's last backward before an update ends later: slowed by the reductions beside it,
    and `costs.offload`'s `throttled`. Where W is apart, no other rank waits."""
    kind, rank = SCHEDULES[schedule.name], np.array(schedule.rank_of)
    whole = on_ranks(costs, "slowed", schedule) + (not kind.delayed) * offloaded(costs, "throttled", schedule)
    return (not kind.splits) * whole[rank] / np.bincount(rank)[rank]


def delayed_seconds(schedule: Schedule, costs: Costs, rates: Costs | None = None) -> Any:
    """Return by how much each action takes longer beside the reductions of the step before (`Delayed`), or how fast
    that grows as the costs grow at `rates`. Empty where updates wait for their own step's."""
    if not SCHEDULES[schedule.name].delayed:
        return np.zeros(0)
    graph, depth = graph_of(schedule), schedule.depth

    def of(costs: Costs) -> Any:
        compute, inner, copied, lane, data = np.zeros((5, depth, len(Kind)))
        for kind in (Kind.F, Kind.B):
            terms = pass_terms(costs, kind, depth)
            compute[:, kind], inner[:, kind] = (sum(terms[t] for t in part) for part in (COMPUTED, INSIDE))
            copied[:, kind], lane[:, kind], data[:, kind] = terms["offload"], costs[LANE[kind]], terms["dp"]
        compute[:, Kind.OPTIMIZER] = on_ranks(costs, "optimizer", schedule)
        copied[:, Kind.OPTIMIZER] = offloaded(costs, "optimizer_offload", schedule)
        slowed, others = (np.broadcast_to(costs[name], depth)[:, None] for name in pairs.SLOWED)
        apart = at(costs["dp_apart"], 0)
        hides = np.maximum(0, compute * (1 + slowed) / (1 + others) + inner + copied)
        slows, takes = compute * slowed + (1 - apart) * inner, compute + inner + copied
        if "forward_h2d" in costs:
            hides, slows = beside_copies(hides, slows, takes, *_copies(schedule, costs))
        room = np.clip(1 - lane / np.maximum(hides, 1e-12), 0, 1)
        hides, slows = hides * room, slows * room
        layers = np.maximum(1, np.zeros(depth) + costs["layers"])
        layered, after = (on_ranks(costs, name, schedule) for name in ("delayed", "after"))
        lane[:, Kind.F] = 0  # gathers have a lane of their own
        takes, hides, slows, lane = (each.ravel()[graph.cell] for each in (takes + data, hides, slows, lane))
        messages = 2 * float(np.sum((np.zeros(depth) + costs["send"])[1:])) / depth
        return Delayed(layered, 1 - 1 / layers, after, takes, hides, slows, messages, lane > 0).longer(graph)

    if rates is None:
        return of(costs)
    small = 1e-6
    return (of({name: value + small * rates[name] for name, value in costs.items()}) - of(costs)) / small


def _copies(schedule: Schedule, costs: Costs) -> Any:
    """Return the seconds of copies in both directions beside forwards, backwards and updates, [way, stage, kind]; and
    how much slower they are beside collectives, and these beside them, [way]."""
    ways, found = ("h2d", "d2h"), np.zeros((2, schedule.depth, len(Kind)))
    for way, of_way in zip(ways, found, strict=True):
        of_way[:, Kind.F], of_way[:, Kind.B] = costs[f"forward_{way}"], costs[f"backward_{way}"]
        of_way[:, Kind.OPTIMIZER] = offloaded(costs, f"update_{way}", schedule)
    slower = ([at(costs[name.format(way)], 0) for way in ways] for name in ("{}_by_collective", "collective_by_{}"))
    return found, *slower


def hidden_seconds(schedule: Schedule, costs: Costs, rates: Costs | None = None) -> Any:
    """Return by how much each fused pair, in the order of the graph, is shorter than its halves one after the other; or
    how fast that grows as the costs grow at `rates`."""
    if not any(schedule.fused):
        return np.zeros(0)
    values = of_pairs(schedule, costs)
    return pairs.hidden_rates(values, of_pairs(schedule, rates)) if rates else pairs.hidden(values)


def of_pairs(schedule: Schedule, costs: Costs) -> dict[str, Any]:
    """Return what `costs.pairs` asks of every fused pair; linear in the costs."""
    graph, depth = graph_of(schedule), schedule.depth
    tables = {part: np.zeros((len(Kind), depth)) for part in pairs.Half._fields}
    for kind in OFFLOAD:
        terms = pass_terms(costs, kind, depth)
        tables["compute"][kind] = sum(terms[term] for term in COMPUTED)
        tables["inner"][kind] = sum(terms[term] for term in INSIDE)
        tables["shared"][kind] = costs[SHARED[kind]] if kind in SHARED else 0
    tables["layers"] += costs["layers"]
    found: dict[str, Any] = {}
    for half, at in zip(pairs.HALVES, graph.pairs, strict=True):
        place = graph.kind[at], graph.stage[at] % depth
        found |= {f"pair_{half}_{part}": table[place] for part, table in tables.items()}
    slowed = {name: (np.zeros(depth) + costs[name])[graph.stage[graph.pairs[0]] % depth] for name in pairs.SLOWED}
    return found | slowed


def action_seconds(schedule: Schedule, costs: Costs) -> tuple[dict[Kind, Any], Any, Any]:
    """Return the seconds of every kind of action on every stage, and between the ends of passes and what waits for
    them: of a message into every stage, and of one back from it.

    For ZeRO's collectives at the ends of a pass only its own rank waits: a message leaves before the last gradients are
    reduced, and meets weights that have been gathered. Linear in the costs: of rates of costs it makes those of the
    durations.
    """
    stages, ranks = schedule.stages, schedule.ranks
    rest = np.zeros(stages - ranks)
    update = {
        kind: np.concatenate([on_ranks(costs, name, schedule), rest])
        for kind, name in ((Kind.REDUCE_GRAD, "reduce"), (Kind.OPTIMIZER, "optimizer"))
    }
    waited = np.bincount(schedule.rank_of, _held_up(schedule, costs), ranks)  # in the last backwards
    update[Kind.REDUCE_GRAD][:ranks] += exposed_tied(costs, schedule) - waited
    update[Kind.OPTIMIZER][:ranks] += offloaded(costs, "optimizer_offload", schedule)
    if SCHEDULES[schedule.name].asynchronous:  # every update reduces its own gradients
        update[Kind.OPTIMIZER] += update[Kind.REDUCE_GRAD]
    table = pass_seconds(costs, schedule.depth, schedule.pipelines) | update
    ahead, met, late, message = (
        np.tile(np.zeros(schedule.depth) + costs[n], schedule.pipelines)
        for n in ("ahead_forward", "ahead_backward", "late_backward", "send")
    )
    if SCHEDULES[schedule.name].splits:
        late = 0 * late  # weight gradients are reduced beside their own passes
    return table, message - ahead, message - late - np.roll(met, 1)


def footprint(schedule: Schedule, costs: Costs) -> Footprint:
    """Return what every rank and stage holds."""
    c, ranks = costs, schedule.ranks
    held = {n: on_ranks(c, n, schedule) for n in HELD}
    if SCHEDULES[schedule.name].delayed:  # the next step adds up its own gradients while these are reduced
        held["gradients"] = held["gradients"] + on_ranks(c, "delayed_gradients", schedule)
    away = {n: offloaded(c, f"moved_{n}", schedule) for n in ("weights", "gradients", "optimizer")}
    room, update = np.zeros(ranks), offloaded(c, "staged_update", schedule)
    moved, staged = (np.zeros(schedule.depth) + c.get(f"{n}_bytes", 0.0) for n in ("moved", "staged"))
    for s, r in enumerate(schedule.rank_of):
        room[r] = max(room[r], staged[s % schedule.depth])  # one after the other use it
    beyond = tuple(np.maximum(0.0, update - room).tolist())
    fixed = tuple(
        {
            "parameters": float(held["parameters"][r] - away["weights"][r]) * schedule.weight_versions[r],
            "gradients": float(held["gradients"][r] + held["product_gradients"][r] - away["gradients"][r]),
            "optimizer": float(held["optimizer_bytes"][r] - away["optimizer"][r]),
            "communication": float(held["gathered_bytes"][r]) + at(c["boundary_buffer_bytes"], r),
            "offload": float(room[r]),
        }
        for r in range(ranks)
    )
    saved = np.zeros(schedule.depth) + c["saved_bytes"]
    temporary = np.zeros(schedule.depth) + c["backward_temporary_bytes"]
    saved[0] += c["saved_embedding_bytes"]
    saved[-1] += c["saved_head_bytes"]
    # The head runs backward first and frees its part before the blocks below it do.
    temporary[-1] = max(c["head_temporary_bytes"], temporary[-1] - c["saved_head_bytes"])
    saved, temporary, moved = (tuple(np.tile(x, schedule.pipelines).tolist()) for x in (saved, temporary, moved))
    return Footprint(fixed, saved, temporary, float(c["workspace_bytes"]), moved, beyond)


@dataclass(frozen=True)
class Waits:
    """Seconds that the rank that decides the step waits: for data parallelism, for messages, for other ranks, for
    copies from and to host memory.

    beside_s[kind, stage]: what it does not wait for of the collectives inside these passes, as they run beside the
    other half of a fused pair.
    """

    dp_s: float
    pp_s: float
    bubble_s: float
    offload_s: float
    beside_s: Mapping[tuple[Kind, int], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pace:
    """How a timeline makes steps: ticks of one, how many steps it holds, updates of a rank in one, the rank that
    decides."""

    ticks: int
    steps: int
    updates: float
    rank: int


def pace(timeline: Timeline, microbatches: int) -> Pace:
    """Return the pace of steps of `microbatches`; without flush that of the steady state and of the busiest rank."""
    schedule = timeline.schedule
    if not SCHEDULES[schedule.name].asynchronous:
        return Pace(timeline.period, 1, 1, timeline.decides())
    steady = steady_state(timeline)
    ticks = round(steady.ticks_per_microbatch * microbatches)
    rank = int(np.argmax(timeline.busy()))
    return Pace(ticks, schedule.microbatches // microbatches, microbatches / steady.microbatches_per_update, rank)


PAIRS = (
    "what a fused forward and backward hide of each other's collectives is a closed form of the path engine; "
    "the event engine runs these beside the other half"
)
