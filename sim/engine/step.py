"""One training step: costs, schedule and engine put together, exactly and in closed form."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from sim.costs import inputs, stage
from sim.costs.layers.dense import Structure
from sim.costs.profile import Profile, load_profile
from sim.engine.events import run_events
from sim.engine.memory import Footprint, MemoryTimeline, memory_timelines
from sim.engine.path import run_path
from sim.engine.timeline import Durations, Timeline
from sim.schedules import Action, Kind, Schedule, Shape, build
from sim.specs import Cluster, InputError, Model, PlacedPlan, Plan
from sim.specs.arguments import checked
from sim.units import gigabytes, seconds

Engine = Literal["path", "events"]
ENGINES = {"path": run_path, "events": run_events}
TERMS = ("compute", "recompute", "tp", "dp", "pp", "cp", "ep", "offload", "bubble", "optimizer", "other")


@dataclass(frozen=True, eq=False, repr=False)
class Step:
    """The prediction of one training step; plain data, intervals are the central 80 %.

    Times in seconds, sizes in bytes. `breakdown_s` is the exposed time on the rank that ends last and sums to
    `step_time_s`. `peak_memory_bytes` is allocated memory on the fullest rank; `fits` compares reserved memory
    and context with the capacity: yes, close (the capacity lies inside the interval) or no.
    """

    model: Model
    cluster: Cluster
    placed: PlacedPlan
    profile: Profile
    costs: Mapping[str, float]
    timeline: Timeline
    memory: tuple[MemoryTimeline, ...]
    step_time_s: float
    breakdown_s: Mapping[str, float]

    def __repr__(self) -> str:
        plan = f"tp={self.plan.tp}, pp={self.plan.pp}, dp={self.placed.dp}"
        return f"Step({self.model.name}, {plan}, {seconds(self.step_time_s)}, {gigabytes(self.peak_memory_bytes)})"

    @property
    def plan(self) -> Plan:
        """The plan as given."""
        return self.placed.plan

    @property
    def step_time_interval_s(self) -> tuple[float, float]:
        """80 % interval of the step time."""
        return self.profile.interval80(self.step_time_s)

    @property
    def breakdown(self) -> Mapping[str, float]:
        """Exposed seconds by cause; with intervals in `breakdown_interval_s`."""
        return self.breakdown_s

    @property
    def breakdown_interval_s(self) -> dict[str, tuple[float, float]]:
        """80 % interval of each term, under the same relative error as the step."""
        return {k: self.profile.interval80(v) for k, v in self.breakdown_s.items()}

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one global batch."""
        return self.plan.global_batch * self.model.seq

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Training throughput of one device."""
        return self.tokens_per_step / self.step_time_s / self.placed.gpus

    def _utilisation(self, flop_per_token: float, step_time_s: float) -> float:
        peak = self.cluster.hardware.peak_bf16_flop_per_s.value * self.placed.gpus
        return self.tokens_per_step * flop_per_token / step_time_s / peak

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation, Megatron's convention (core attention halved), of the 16-bit peak."""
        return self._utilisation(self.model.flop_per_token("megatron"), self.step_time_s)

    @property
    def mfu_interval(self) -> tuple[float, float]:
        """80 % interval of `mfu`."""
        fast, slow = self.step_time_interval_s
        flop = self.model.flop_per_token("megatron")
        return self._utilisation(flop, slow), self._utilisation(flop, fast)

    @property
    def hfu(self) -> float:
        """Hardware FLOP utilisation: the matrix products that recompute repeats count too."""
        tokens = self.model.seq * self.plan.micro_batch
        again = self.costs["recompute_flop"] * self.plan.tp * self.placed.stages / tokens
        return self._utilisation(self.model.flop_per_token("megatron") + again, self.step_time_s)

    @property
    def usd_per_1e9_tokens(self) -> float | None:
        """Price of training on 1e9 tokens, or None where the device has no price."""
        price = self.cluster.usd_per_gpu_hour
        return None if price is None else 1e9 / (self.tokens_per_s_per_gpu * 3600) * price

    @property
    def fullest(self) -> MemoryTimeline:
        """The rank with the highest peak."""
        return max(self.memory, key=lambda m: m.peak_bytes)

    @property
    def peak_memory_bytes(self) -> float:
        """Allocated memory at the peak of the fullest rank."""
        return self.fullest.peak_bytes

    def peak_interval_bytes(self, rank: int) -> tuple[float, float]:
        """Return the 80 % interval of a rank's allocated peak."""
        return self.profile.interval80(self.memory[rank].peak_bytes, self.profile.memory.allocated_sigma_log)

    @property
    def peak_memory_interval_bytes(self) -> tuple[float, float]:
        """80 % interval of `peak_memory_bytes`."""
        return self.peak_interval_bytes(self.fullest.rank)

    @cached_property
    def device_memory_bytes(self) -> float:
        """Memory the device must have: allocator's reserve, communicators and context included."""
        return float(device_memory(self.peak_memory_bytes, self.profile))

    @property
    def fits(self) -> Literal["yes", "close", "no"]:
        """Whether the fullest rank fits its device."""
        low, high = self.profile.interval80(self.device_memory_bytes, memory_sigma(self.profile))
        capacity = self.cluster.memory_bytes
        return "yes" if high <= capacity else "no" if low > capacity else "close"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Everything that was not stated but used."""
        m = self.profile
        kind = "an estimate scaled from" if m.estimate else "fitted to public data of"
        return (
            *self.model.assumptions,
            *self.cluster.assumptions,
            *self.plan.assumptions,
            f"profile {m.name}: {kind} {m.base or m.name}; {m.uncertainty_source}",
            f"memory outside tensors: {m.memory.source}",
            "ranks: tp innermost, then dp, pp outermost; compute and collectives do not slow each other",
        )


def memory_sigma(profile: Profile) -> float:
    """Return the standard deviation of the log of predicted device memory."""
    return float(np.hypot(profile.memory.allocated_sigma_log, profile.memory.reserved_sigma_log))


def device_memory(allocated: Any, profile: Profile) -> Any:
    """Return the device memory behind allocated bytes (a number or an array)."""
    m = profile.memory
    return allocated * m.reserved_over_allocated + m.context_bytes + m.communicator_bytes


@checked
def simulate(model: Model, cluster: Cluster, plan: Plan, engine: Engine = "path") -> Step:
    """Return the prediction of one training step of `plan`.

    engine "path" is the compiled longest path, "events" the discrete-event engine; they agree exactly while
    nothing is shared between concurrent actions.

    Raises:
        InputError: the plan breaks a rule on this model and cluster; the profile is missing or wrong.
    """
    if engine not in ENGINES:
        raise InputError("engine", engine, "one of " + ", ".join(ENGINES))
    placed = plan.on(model, cluster)
    profile = load_profile(cluster.profile)
    costs = stage_costs(model, cluster, placed, profile)
    schedule = step_schedule(placed)
    timeline = ENGINES[engine](schedule, durations(schedule, costs))
    silent = ENGINES["path"](schedule, durations(schedule, {**costs, "send": 0.0}))
    memory = tuple(memory_timelines(timeline, footprint(schedule, costs)))
    step_time = timeline.makespan * 1e-9
    breakdown = exposed(timeline, costs, placed, (timeline.makespan - silent.makespan) * 1e-9)
    return Step(model, cluster, placed, profile, costs, timeline, memory, step_time, breakdown)


def stage_costs(model: Model, cluster: Cluster, placed: PlacedPlan, profile: Profile) -> dict[str, float]:
    """Return every output of the stage model for one plan."""
    compiled = stage.stage_model(Structure.of(model), inputs.STATISTICS[model.norm])
    values = inputs.model_values(model) | inputs.cluster_values(cluster, profile) | inputs.plan_values(placed, cluster)
    return {name: float(value) for name, value in compiled(values).items()}


def step_schedule(placed: PlacedPlan) -> Schedule:
    """Return the pipeline's order with gradient reduction and optimizer at the end of every rank."""
    plan = placed.plan
    name = "1f1b" if plan.schedule == "none" else plan.schedule
    shape = Shape(plan.pp, placed.microbatches, plan.virtual_stages, plan.microbatch_group_size)
    return _with_update(build(name, shape))


@lru_cache(maxsize=16)
def _with_update(order: Schedule) -> Schedule:
    end = (Kind.REDUCE_GRAD, Kind.OPTIMIZER)
    actions = (rank + tuple(Action(r, kind, -1) for kind in end) for r, rank in enumerate(order.actions))
    return replace(order, actions=tuple(actions))


def where(rank: int, ranks: int) -> str:
    """Return which extras a rank holds: only, first, last or middle."""
    return "only" if ranks == 1 else "first" if rank == 0 else "last" if rank == ranks - 1 else "middle"


def durations(schedule: Schedule, costs: Mapping[str, float]) -> Durations:
    """Return the nanoseconds of every action of a step."""
    c, stages, ranks = costs, schedule.stages, schedule.ranks
    forward = np.full(stages, c["forward_compute"] + c["forward_tp"] + c["forward_dp"])
    backward = np.full(
        stages, c["input_compute"] + c["input_tp"] + c["weight_compute"] + c["recompute"] + c["backward_dp"]
    )
    for s, part in ((0, "embedding"), (-1, "head")):
        forward[s] += sum(c[f"{part}_forward_{x}"] for x in ("compute", "tp", "dp"))
        backward[s] += sum(c[f"{part}_{x}"] for x in END_BACKWARD)
    update = {
        kind: np.array([c[f"{name}_{where(r, ranks)}"] for r in range(ranks)] + [0.0] * (stages - ranks))
        for kind, name in ((Kind.REDUCE_GRAD, "reduce"), (Kind.OPTIMIZER, "optimizer"))
    }
    for r in {0, ranks - 1}:
        update[Kind.REDUCE_GRAD][r] += c["tied_reduce"]
    table = {Kind.F: forward, Kind.B: backward} | update
    return Durations({k: _ns(v) for k, v in table.items()}, _ns(np.full(stages, c["send"])))


END_BACKWARD = ("input_compute", "input_tp", "weight_compute", "backward_dp")
"""Parts of the backward time of embedding and head."""


def _ns(seconds: Any) -> Any:
    return np.rint(np.asarray(seconds) * 1e9).astype(np.int64)


def footprint(schedule: Schedule, costs: Mapping[str, float]) -> Footprint:
    """Return what every rank and stage holds."""
    c, stages, ranks = costs, schedule.stages, schedule.ranks
    fixed = tuple(
        {
            "parameters": c[f"parameters_{w}"],
            "gradients": c[f"gradients_{w}"],
            "optimizer": c[f"optimizer_bytes_{w}"],
            "communication": c[f"gathered_bytes_{w}"] + c["boundary_buffer_bytes"],
        }
        for w in (where(r, ranks) for r in range(ranks))
    )
    saved, temporary = [c["saved_bytes"]] * stages, [c["backward_temporary_bytes"]] * stages
    saved[0] += c["saved_embedding_bytes"]
    saved[-1] += c["saved_head_bytes"]
    # The head runs backward first and frees its part before the blocks below it do.
    temporary[-1] = max(c["head_temporary_bytes"], temporary[-1] - c["saved_head_bytes"])
    return Footprint(fixed, tuple(saved), tuple(temporary))


def exposed(timeline: Timeline, costs: Mapping[str, float], placed: PlacedPlan, pp_s: float) -> dict[str, float]:
    """Return the exposed time by cause on the rank that ends last; sums to the step time.

    pp is what the step gains when messages take no time; bubble is what is left.
    """
    c = costs
    rank = int(np.argmax(timeline.first_and_last()[1]))
    place, n = where(rank, placed.plan.pp), placed.microbatches
    extras = [p for p, at in (("embedding", ("first", "only")), ("head", ("last", "only"))) if place in at]
    chunks = n * placed.plan.virtual_stages

    def both(*names: str) -> float:
        return sum(chunks * c[x] + n * sum(c[f"{e}_{x}"] for e in extras) for x in names)

    terms = dict.fromkeys(TERMS, 0.0) | {
        "compute": both("forward_compute", "input_compute", "weight_compute"),
        "recompute": chunks * c["recompute"],
        "tp": both("forward_tp", "input_tp"),
        "dp": both("forward_dp", "backward_dp") + c[f"reduce_{place}"],
        "pp": pp_s,
        "optimizer": c[f"optimizer_{place}"],
        "other": c["tied_reduce"] if place != "middle" else 0.0,
    }
    terms["bubble"] = (timeline.makespan - int(timeline.busy()[rank])) * 1e-9 - pp_s
    # What overlaps exactly leaves a difference of the last bit, of either sign.
    terms = {k: v if abs(v) > 1e-12 * timeline.makespan * 1e-9 else 0.0 for k, v in terms.items()}
    # What whole nanoseconds rounded off belongs to the largest term.
    terms["compute"] += timeline.makespan * 1e-9 - sum(terms.values())
    return terms
