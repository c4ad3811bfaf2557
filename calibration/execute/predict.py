"""What the simulator says of a plan before it is executed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from calibration.execute.kept import Kept
from calibration.execute.limits import Device, check_order, executable, executed_level
from calibration.execute.updates import DELAYED_STEPS, microbatch_order
from sim.costs.run_level import level_of
from sim.costs.side_by_side import ROOM
from sim.costs.stage import backward_seconds, forward_seconds
from sim.engine.assembly import durations, footprint, offloaded
from sim.engine.graph import DeadlockError
from sim.engine.memory import MemoryTimeline, memory_timelines
from sim.engine.path import run_path
from sim.engine.step import Step, simulate
from sim.engine.timeline import Timeline
from sim.plans.torch_csv import schedule_csv
from sim.plans.traffic import Counted, traffic
from sim.schedules import Action, Kind, Schedule
from sim.schedules.ir import COMPUTE
from sim.specs import Cluster, InputError, Model, PlacedPlan, Plan
from sim.specs.catalog import precision
from sim.units import seconds


@dataclass(frozen=True)
class Predicted:
    """Seconds of what is measured with their 80 % interval; of whole steps, of every process: bytes at the peak of its
    device and of its host memory, bytes sent in all and messages and bytes by group or link, the order of its passes.

    csv: the order of the pipeline for PyTorch's runtime; timeline: of the step; learned_factor: what the profile has
    learned from executed plans, and crowded_factor how much longer it takes because processes share cores: the times
    contain both.
    """

    step_time_s: float
    interval_s: tuple[float, float]
    peak_memory_bytes: tuple[float, ...] = ()
    bytes_sent: tuple[float, ...] = ()
    traffic: tuple[Counted, ...] = ()
    order: tuple[tuple[str, ...], ...] = ()
    host_bytes: tuple[float, ...] = ()
    csv: str = field(default="", repr=False)
    timeline: Timeline | None = field(default=None, repr=False)
    learned_factor: float = 1.0
    crowded_factor: float = 1.0

    def figures(self) -> dict[str, Any]:
        """Return its numbers as plain data."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("csv", "timeline", "order")}


def predict(
    model: Model,
    cluster: Cluster,
    plan: Plan,
    device: Device = "cpu",
    order: Schedule | None = None,
    cores: int | None = None,
) -> Predicted:
    """Return the prediction of one whole training step, of the plan's own order or another for its pipeline.

    cores: those of the machine that all processes share (left out: one for each of them).

    Raises:
        InputError: the plan breaks a rule on this model and cluster, or cannot be executed here; the order has other
            stages or microbatches, or ends in a deadlock.
    """
    placed = executable(model, cluster, plan, device)
    step = simulate(model, cluster, plan, level=executed_level(cluster))
    timeline, memory, step_s = step.timeline, step.memory, step.step_time_s
    if order and plan.pipeline.asynchronous:
        raise InputError("order", order.name, f"left out: {plan.schedule} has updates of its own in its order")
    if order:
        timeline = _reordered(step, order)
        memory = tuple(memory_timelines(timeline, footprint(timeline.schedule, step.costs)))
        step_s *= timeline.period / step.timeline.period
    # Whatever the order, processes cannot do more work at a time than there are cores.
    crowded = crowd(placed, timeline, cores) if cores else 1.0
    step_s *= crowded
    if plan.offloads:
        memory = tuple(_with_room(m, used) for m, used in zip(memory, _room(step, timeline), strict=True))
    pipeline = plan.pp > 1
    delayed = plan.pipeline.asynchronous
    ordered = timeline.schedule if pipeline and not delayed else None
    for stage in range(plan.pp if ordered else 0):
        check_order(timeline.schedule, plan.at(stage))
    peaks = _peaks(model, placed, memory, ordered)
    host = away(step, timeline)
    ranks, sent = pipeline_ranks(placed), traffic(model, placed)
    counted = tuple(sent[r] for r in ranks)
    if delayed:
        actions = microbatch_order(plan, placed.microbatches * DELAYED_STEPS).actions
    else:
        actions = tuple(tuple(a for a in rank if a.kind in COMPUTE) for rank in timeline.schedule.actions)
    passes = [tuple(map(str, rank)) for rank in actions]
    return Predicted(
        step_s,
        step.profile.interval80(step_s, step.sigma_log),
        tuple(peaks[r] for r in ranks),
        tuple(sum(sent for _, sent in each.values()) for each in counted),
        counted,
        tuple(passes[r] for r in ranks) if pipeline else (),
        tuple(host[r] for r in ranks),
        schedule_csv(ordered) if ordered else "",
        timeline,
        step.correction.factor if step.correction else 1.0,
        crowded,
    )


def _peaks(model: Model, placed: PlacedPlan, memory: Sequence[MemoryTimeline], ordered: Schedule | None) -> list[float]:
    """Return the bytes at the peak of every pipeline rank's device; ordered: what PyTorch's pipelining runtime runs."""
    peaks = [Kept(model, placed.at(m.rank), ordered).peak_bytes(m) if ordered else m.peak_bytes for m in memory]
    if placed.plan.zero == 2:  # FSDP2 keeps its shards beside what it has gathered
        peaks = [peak + m.fixed["parameters"] / placed.dp for peak, m in zip(peaks, memory, strict=True)]
    own = [placed.at(m.rank) for m in memory]
    return [max(p, _exchanged(m, o)) if o.plan.zero == 1 else p for p, m, o in zip(peaks, memory, own, strict=True)]


def crowd(placed: PlacedPlan, timeline: Timeline, cores: int) -> float:
    """Return how many processes have work at a time for every core, on average over the timeline; at least 1."""
    busy = float(timeline.busy() @ np.array(placed.stage_gpus)) / timeline.makespan
    return max(1.0, busy / cores)


def assumptions(model: Model, cluster: Cluster, plan: Plan, executed: Plan) -> tuple[str, ...]:
    """Return why `trainsim simulate` predicts another step time of a plan than of how it is executed; empty where it
    does not.

    Each change is named that alone moves the time of the plan.
    """
    asked = plan.suited(cluster)
    own = simulate(model, cluster, asked).step_time_s
    here = simulate(model, cluster, executed, level=executed_level(cluster)).step_time_s
    if own == here:
        return ()
    settings = [f.name for f in fields(Plan) if f.init and f.name not in ("dp", "stages")]
    changes = {n: getattr(executed, n) for n in settings if getattr(executed, n) != getattr(asked, n)}
    moved = [n for n, v in changes.items() if simulate(model, cluster, asked.but(**{n: v})).step_time_s != own]
    told = [f"{n} {str(changes[n]).lower()}" for n in moved or changes]
    told += ["nothing between two steps"] if executed_level(cluster) != level_of(cluster) else []
    return (
        f"predicted as PyTorch executes it: {', '.join(told)}; trainsim simulate and tune, which take the plan as it "
        f"stands, say {seconds(own)} instead of {seconds(here)}",
    )


def pipeline_ranks(placed: PlacedPlan) -> list[int]:
    """Return the pipeline rank of every process."""
    first = placed.at(0)
    size = {"tp": first.plan.tp, "dp": first.dp, "pp": placed.plan.pp}
    inner = 1
    for axis in placed.plan.rank_order.split("-"):
        if axis == "pp":
            break
        inner *= size.get(axis, 1)
    return [rank // inner % placed.plan.pp for rank in range(placed.gpus)]


def _reordered(step: Step, order: Schedule) -> Timeline:
    """Return the timeline of a step whose pipeline runs another order."""
    own = step.timeline.schedule
    for name in ("ranks", "stages", "microbatches"):
        if getattr(order, name) != getattr(own, name):
            raise InputError(f"order: {name}", getattr(order, name), f"{getattr(own, name)}, as the plan has it")
    if order.rank_of != own.rank_of:
        raise InputError("order: rank of every stage", order.rank_of, f"{list(own.rank_of)}, as the plan has it")
    end = (Kind.REDUCE_GRAD, Kind.OPTIMIZER)
    actions = tuple(r + tuple(Action(n, kind, -1) for kind in end) for n, r in enumerate(order.actions))
    made = replace(order, name=own.name, actions=actions, barrier=own.barrier, weight_versions=(), staleness=())
    try:
        return run_path(made, durations(made, step.costs))
    except DeadlockError as error:
        raise InputError("order", "a deadlock", f"an order that ends: {error}") from None


def _exchanged(memory: MemoryTimeline, placed: PlacedPlan) -> float:
    """Return what a rank holds while ZeRO-1 adds up its shard: the parts of all ranks (gloo has no reduce-scatter)."""
    fixed = sum(size for name, size in memory.fixed.items() if name not in ("communication", "offload"))
    return fixed + memory.fixed["gradients"] * (1 + 1 / placed.dp) * (placed.dp > 1)


def away(step: Step, timeline: Timeline) -> list[float]:
    """Return the most bytes that every rank has in host memory: states, and activations between their passes."""
    order, plan = timeline.schedule, step.plan
    states = offloaded(step.costs, "moved_optimizer", order)
    moved = footprint(order, step.costs).moved
    # What a stage receives stays where it is, if its first layer moves.
    whole = [plan.at(rank).offload.activations == 1 for rank in order.rank_of]
    sizes = [size - boundary_bytes(step) * (s > 0) * whole[s] for s, size in enumerate(moved)]
    found = []
    for rank, actions in enumerate(order.actions):
        signs = {Kind.F: 1, Kind.B: -1, Kind.W: -1}
        held = np.cumsum([0.0, *(signs.get(a.kind, 0) * sizes[a.stage] for a in actions)])
        found.append(float(states[rank] + held.max()))
    return found


def boundary_bytes(step: Step) -> float:
    """Return the bytes of the hidden states of a microbatch on one process."""
    plan, model = step.plan.at(0), step.model
    rows = plan.micro_batch * model.seq // (plan.tp if plan.sequence_parallel else 1)
    return precision(str(plan.precision)).activation_bytes.value * rows * model.hidden


def _with_room(memory: MemoryTimeline, used: float) -> MemoryTimeline:
    """Return a rank's memory with the room for copies of activations that passes use; an update has its own."""
    unused = memory.fixed["offload"] - used
    temporaries = memory.temporaries.copy()
    for n, action in enumerate(memory.actions):
        if action.kind is Kind.OPTIMIZER and temporaries[2 * n] > temporaries[2 * n + 1]:
            temporaries[2 * n] += unused  # it needs more than there was
    return replace(memory, fixed={**memory.fixed, "offload": used}, temporaries=temporaries)


def _room(step: Step, timeline: Timeline) -> list[float]:
    """Return the room for copies of activations that every rank uses in passes.

    The layers that leave are the last two that ran, of whatever chunk; those that come are of the backward's chunk.
    Where a backward follows its own forward, and there is no other chunk, the two are the same.
    """
    order, plan = timeline.schedule, step.plan
    moved, layers = footprint(order, step.costs).moved, plan.split(step.model)
    turns = order.rank_of[order.stages - 1] if plan.pipeline.turns and plan.virtual_stages == 1 else -1
    used = [0.0] * order.ranks
    for s, (rank, size) in enumerate(zip(order.rank_of, moved, strict=True)):
        room = min(ROOM, layers[s]) + ROOM * (rank != turns)
        used[rank] = max(used[rank], size / max(layers[s], 1) * room)
    return used


def predict_block(model: Model, cluster: Cluster, plan: Plan, device: Device = "cpu") -> Predicted:
    """Return the prediction of forward and backward of one layer on one microbatch."""
    one = replace(model, layers=1, pattern="T")
    executable(one, cluster, plan, device)
    step = simulate(one, cluster, plan, level=executed_level(cluster))
    costs = step.costs
    hosts = costs["forward_host"] + costs["backward_host"]
    block_s = float(np.sum(forward_seconds(costs) + backward_seconds(costs) + hosts))
    return Predicted(block_s, step.profile.interval80(block_s, step.sigma_log))
