"""One training step: costs, schedule and engine put together, exactly and in closed form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot
from typing import Any, Literal

import numpy as np

from sim.costs import offload, spread, stage, usage
from sim.costs.inputs import profiles_of
from sim.costs.layers import issue
from sim.costs.layers.structure import Structure
from sim.costs.learned import Correction
from sim.costs.operations import Operation, operations
from sim.costs.profile import Profile, load_profile
from sim.costs.run_level import (
    SOFTWARE_YEAR,
    RunLevelSet,
    between_steps,
    kernels_year,
    level_of,
    software_slowdown,
    straggling,
)
from sim.engine.assembly import COMPUTED, PAIRS, Pace, Waits, durations, footprint, pace, step_schedule
from sim.engine.assumed import of_experts, of_graphs, of_hardware, of_profile, of_scans
from sim.engine.causes import exposed, waits
from sim.engine.certainty import experts_sigma, step_sigma, waiting_sigma
from sim.engine.clock import TICK_S
from sim.engine.contended import layout, sharing_on, waits_under_contention
from sim.engine.critical import CriticalPath, critical_path
from sim.engine.events import Guest, World
from sim.engine.fluid_path import run_shared
from sim.engine.graph import graph_of
from sim.engine.lower import Lowered, lower
from sim.engine.memory import Levels, MemoryTimeline, memory_timelines
from sim.engine.noise import Noise, run_noisy
from sim.engine.path import run_program
from sim.engine.placed import slowest, stage_values
from sim.engine.program import Cause, Program, Run, Sharing
from sim.engine.timeline import Timeline
from sim.schedules import SCHEDULES, Kind, Schedule
from sim.specs import Cluster, InputError, Model, PlacedPlan, Plan
from sim.specs.arguments import checked
from sim.specs.catalog import precision
from sim.specs.device import HOST_EFFICIENCY
from sim.units import HOUR_S, gigabytes, seconds, si

Engine = Literal["path", "events"]
ENGINES: dict[str, str] = {
    "path": "compiled longest path; closed forms say what stays exposed of collectives beside compute",
    "events": "discrete events; collectives run beside compute and share devices and links with it",
}


@dataclass(frozen=True, eq=False, repr=False)
class Step:
    """The prediction of one training step; plain data, intervals are the central 80 %.

    Times in seconds, sizes in bytes. `breakdown_s` is the exposed time on the rank that ends last and sums to
    `step_time_s`. `peak_memory_bytes` is allocated memory on the fullest rank; `fits` compares reserved memory
    and context with the capacity: yes, close (the capacity lies inside the interval) or no. `contention`: what the
    event engine knows of how streams slow each other, as text. `correction`: learned from executed plans, a factor that
    the step time contains (`breakdown_s["learned"]` is what it adds) and no other time or rate knows of. `noise`: what
    it was run with.
    """

    model: Model
    cluster: Cluster
    placed: PlacedPlan
    profile: Profile
    level: RunLevelSet
    costs: Mapping[str, Any]
    timeline: Timeline
    memory: tuple[MemoryTimeline, ...]
    step_time_s: float
    breakdown_s: Mapping[str, float]
    contention: str = ""
    correction: Correction | None = None
    noise: Noise | None = None

    def __repr__(self) -> str:
        plan = f"tp={self.plan.tp}, pp={self.plan.pp}, dp={self.placed.dp}"
        if self.plan.stages:
            plan = f"pp={self.plan.pp}, unequal stages"
        return f"Step({self.model.name}, {plan}, {seconds(self.step_time_s)}, {gigabytes(self.peak_memory_bytes)})"

    @property
    def plan(self) -> Plan:
        """The plan as given."""
        return self.placed.plan

    @property
    def step_time_interval_s(self) -> tuple[float, float]:
        """80 % interval of the step time."""
        return self.profile.interval80(self.step_time_s, self.sigma_log)

    @property
    def sigma_log(self) -> float:
        """Standard deviation of the log of the step time."""
        kernels = self.kernels if self.profile.session else ()  # of others their errors are in the run level
        hosts = waiting_sigma(self.waiting, self.model, self.plan)
        experts = experts_sigma(self.model, self.level)
        own = step_sigma(self.profile, self.level, kernels, self.plan.software_year, hosts, experts)
        if self.correction is None or self.profile.learned is None:
            return own
        beyond = self.profile.learned.beyond(self.correction.group, self.uncorrected_s)
        return hypot(max(own, self.correction.scatter_log), self.correction.sigma_log(beyond))

    @property
    def uncorrected_s(self) -> float:
        """The step time without the learned correction."""
        return self.step_time_s / (self.correction.factor if self.correction else 1.0)

    @cached_property
    def kernels(self) -> tuple[usage.Used, ...]:
        """The kernels of the step with their shares of its time, on the devices of `profile`.

        Waiting in the pipeline scales with compute and counts as it, exposed communication does not.
        """
        structure = Structure.of(self.model)
        found = usage.used(structure, stage.stage_model(structure), self._values, self._updates)
        return tuple(replace(kernel, share=self._busy * kernel.share) for kernel in found)

    @cached_property
    def waiting(self) -> float:
        """How the step grows with what hosts take to issue kernels: 0 where none waits for its host, as on host
        processors, whose profiles are of their own issue."""
        if self.member.hardware.on_host:
            return 0.0
        model = stage.stage_model(Structure.of(self.model))
        return self._busy * usage.issue_share(model, self._values, self._updates)

    @property
    def _updates(self) -> int:
        each = SCHEDULES[self.timeline.schedule.name].pipeline.updates == "microbatch"
        return self.placed.microbatches if each else 1

    @property
    def _busy(self) -> float:
        return sum(self.breakdown_s[k] for k in (*COMPUTED, "bubble", "optimizer")) / self.step_time_s

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """The compute operations of one microbatch, on the devices of `profile`."""
        return operations(Structure.of(self.model), tuple(self.model.blocks.values()), self._values)

    @property
    def member(self) -> Cluster:
        """The devices that `profile` is of: with several kinds in the cluster, the least certain one."""
        products = self.plan.product_kernel
        return next(m for m in self.cluster.members if load_profile(m.profile, products) == self.profile)

    @property
    def _values(self) -> dict[str, Any]:
        """The symbols of the stage model, of the longest of unequal stages."""
        longest = int(np.argmax(self.plan.split_stages)) if self.plan.stages else 0
        return stage_values(self.model, self.member, self.placed.at(longest), self.profile, self.level)

    @property
    def breakdown(self) -> Mapping[str, float]:
        """Exposed seconds by cause; with intervals in `breakdown_interval_s`."""
        return self.breakdown_s

    @property
    def breakdown_interval_s(self) -> dict[str, tuple[float, float]]:
        """80 % interval of each term, under the same relative error as the step."""
        return {k: self.profile.interval80(v, self.sigma_log) for k, v in self.breakdown_s.items()}

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The chain of operations that makes the step as long as it is; its ticks sum to the timeline's makespan."""
        return critical_path(self.timeline.run)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one global batch."""
        return self.plan.global_batch * self.model.tokens_per_sample

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Training throughput of one device."""
        return self.tokens_per_step / self.step_time_s / self.placed.gpus

    def _utilisation(self, flop_per_token: float, step_time_s: float) -> float:
        rate = precision(self.plan.precision).gemm.forward
        return self.tokens_per_step * flop_per_token / step_time_s / self.cluster.peak_flop_per_s(rate)

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation, Megatron's convention (core attention halved), of the 16-bit peak (fp32: of its)."""
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
        flop = np.zeros(self.placed.stages) + self.costs["recompute_flop"]
        alike = [self.placed.at(s % self.plan.pp).plan for s in range(self.placed.stages)]
        each = [n * p.tp * p.cp / p.micro_batch for n, p in zip(flop, alike, strict=True)]
        again = float(sum(each)) / self.model.tokens_per_sample
        return self._utilisation(self.model.flop_per_token("megatron") + again, self.step_time_s)

    @property
    def usd_per_1e9_tokens(self) -> float | None:
        """Price of training on 1e9 tokens, or None where the device has no price."""
        price = self.cluster.usd_per_gpu_hour
        return None if price is None else 1e9 / (self.tokens_per_s_per_gpu * HOUR_S) * price

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

    def levels(self, rank: int) -> Levels:
        """Return a rank's peak as allocated, reserved and nvidia-smi figures."""
        m, peak = self.profile.memory, self.memory[rank].peak_bytes
        device = float(device_memory(peak, self.profile))
        return Levels(rank, peak, peak * m.reserved_over_allocated, device, self.cluster.memory_bytes)

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
        profiles = [load_profile(name) for name in dict.fromkeys(m.profile for m in self.cluster.members)]
        return (
            *self.model.assumptions,
            *self.cluster.assumptions,
            *self.plan.assumed_of(self.model),
            *dict.fromkeys(line for profile in profiles for line in of_profile(profile)),
            *of_hardware(self.cluster, self.plan),
            *of_experts(self.model, self.plan, self.level),
            *of_graphs(self.plan),
            *of_scans(self.model, self.cluster),
            *((issue.told(self.model),) if self.waiting and issue.in_core(self.model, self.plan) else ()),
            "fits compares reserved memory, communicators and context (nvidia_smi) of the fullest rank",
            *self._host_link,
            *spread.told(self.profile, self.kernels),
            *self._switch,
            *self._software,
            *((self.contention,) if self.contention else ()),
            *((PAIRS,) if any(self.timeline.schedule.fused) and not self.contention else ()),
            *self.learned,
            *between_steps(self.level.parameters, self.plan.software_year, self.step_time_s),
            f"ranks laid out {self.plan.rank_order}, innermost first",
            f"run level: {self.level.source}",
        )

    @property
    def _host_link(self) -> tuple[str, ...]:
        if not self.plan.offloads:
            return ()
        share = f"the device's peak x {HOST_EFFICIENCY.value:g}; {HOST_EFFICIENCY.source}"
        how = "as stated" if self.cluster.links.host_bytes_per_s else share
        rates = " + ".join(dict.fromkeys(si(m.host_bytes_per_s or 0.0, "B/s") for m in self.cluster.members))
        beside = "room in host memory is not checked"
        if max(self.plan.offload.weights, self.plan.offload.gradients) > 0:
            beside = f"weights and gradients of embedding and head stay on the device; {beside}"
        if not self.contention:
            beside = f"copies slow what runs beside them as collectives do; {beside}"
        return (f"host link of a device: {rates} in each direction ({how}); {beside}",)

    @property
    def learned(self) -> tuple[str, ...]:
        """What executed plans have taught the profile about such a plan, as text; nothing where nothing was learned."""
        held = self.profile.learned if len(self.cluster.members) == 1 else None
        return (held.words(self.placed, self.step_time_s),) if held else ()

    @property
    def _switch(self) -> tuple[str, ...]:
        share = self.profile.collectives.get("intra_efficiency_switch")
        if not share or self.cluster.links.in_switch_reduction is not None:
            return ()
        return ("cluster.links.in_switch_reduction = true (the profile knows how fast the switch reduces)",)

    @property
    def _software(self) -> tuple[str, ...]:
        year = self.plan.software_year
        if year is None:
            return ()
        change = f"{100 * (software_slowdown(year) - 1):+.1f} % against {SOFTWARE_YEAR:g}"
        why = "an assumption: no run that was fitted says how much a year changes"
        timed = kernels_year(self.profile)
        if timed != SOFTWARE_YEAR:
            of_kernels = f"{100 * (software_slowdown(year, timed) - 1):+.1f} %, as the profile's are of {timed:g}"
            change += f" (memory-bound kernels {of_kernels})"
        return (f"software of {year:.2f}: framework overheads {change}, {why}",)


def memory_sigma(profile: Profile) -> float:
    """Return the standard deviation of the log of predicted device memory."""
    return float(np.hypot(profile.memory.allocated_sigma_log, profile.memory.reserved_sigma_log))


def device_memory(allocated: Any, profile: Profile) -> Any:
    """Return the device memory behind allocated bytes (a number or an array)."""
    m = profile.memory
    return allocated * m.reserved_over_allocated + m.context_bytes + m.communicator_bytes


def most_allocated(profile: Profile, cluster: Cluster) -> float:
    """Return the allocated bytes with which the upper end of the 80 % interval of device memory is the capacity."""
    m, (_, worst) = profile.memory, profile.interval80(1.0, memory_sigma(profile))
    return (cluster.memory_bytes / worst - m.context_bytes - m.communicator_bytes) / m.reserved_over_allocated


@checked
def simulate(
    model: Model,
    cluster: Cluster,
    plan: Plan,
    engine: Engine = "path",
    level: RunLevelSet | None = None,
    noise: Noise | None = None,
    guests: Sequence[Guest] = (),
) -> Step:
    """Return the prediction of one training step of `plan`.

    engine "path" is the compiled longest path, in which closed forms say what stays exposed of collectives beside
    compute; "events" the discrete-event engine, in which these run in lanes of their own and share devices and links.
    Both say the same of random plans within 5 % (a few of 2BW up to 27), with copies by the host within 13 % (nine
    of ten 4 %, of V-shaped orders and DualPipeV 7 %; a few of DualPipeV up to 31 %).
    `level`: run-level parameters, by default the shipped ones. `noise`: slow devices and jitter; the step is then that
    of the replica with the most to do. `guests`: processes from outside (events only).

    Raises:
        InputError: the plan breaks a rule on this model and cluster; the profile is missing or wrong.
    """
    if engine not in ENGINES:
        raise InputError("engine", engine, "one of " + ", ".join(ENGINES))
    if guests and engine != "events":
        raise InputError("engine", engine, "events, where processes from outside join")
    if not (isinstance(guests, Sequence) and all(callable(guest) for guest in guests)):
        raise InputError("guests", guests, "functions of a `World` that yield its events")
    placed = plan.on(model, cluster)
    # The least certain of the devices speaks for a mixed cluster.
    profiles = profiles_of(cluster, plan.product_kernel)
    level = level or level_of(cluster)
    profile = max(profiles, key=lambda p: step_sigma(p, level))
    costs = slowest(model, cluster, placed, level)
    if plan.offloads:
        costs |= slowest(model, cluster, placed, level, offload.offload_costs(bool(plan.stages)))
    schedule = step_schedule(placed, costs)
    copies = noise.distinct(placed.dp, plan.pp) if noise else 1
    shared = None
    if engine == "events":
        traffic = slowest(model, cluster, placed, level, stage.traffic_model)
        lowered = lower(schedule, costs, traffic, layout(model, cluster, placed, level))
        shared = sharing_on(model, cluster, placed, level, plan.offloads)
        timeline, step, causes = _on_events(schedule, lowered, shared, guests, placed.microbatches, noise, copies)
    else:
        timeline, step, causes = _on_path(schedule, costs, placed.microbatches, noise, copies)
    memory = tuple(memory_timelines(timeline, footprint(schedule, costs)))
    waiting = step.ticks * TICK_S * straggling(level.parameters.straggler, placed.gpus)
    step_time = float(step.ticks * TICK_S + waiting)
    breakdown = exposed(timeline, costs, step, causes, waiting, noise is not None)
    correction = profile.learned.of(placed) if profile.learned and len(cluster.members) == 1 else None
    if correction:
        breakdown["learned"] = step_time * (correction.factor - 1)
        step_time *= correction.factor
    beside = shared.source if shared else ""
    return Step(
        model, cluster, placed, profile, level, costs, timeline, memory, step_time, breakdown, beside, correction, noise
    )


Decided = tuple[Timeline, Pace, Waits]
"""A run, the rank that decides its step, and what that rank waits for."""


def _on_events(
    schedule: Schedule,
    lowered: Lowered,
    shared: Sharing,
    guests: Sequence[Guest],
    microbatches: int,
    noise: Noise | None,
    copies: int,
) -> Decided:
    def run(program: Program) -> Run:
        return World(program, shared).run(guests) if guests else run_shared(program, shared)

    joint = lowered.program.cause == Cause.DATA
    found = run_noisy(lowered.program, joint, noise, copies, run)
    timeline = lowered.timeline(schedule, found)
    step = pace(timeline, microbatches)
    return timeline, step, waits_under_contention(lowered, timeline, step)


def _on_path(
    schedule: Schedule, costs: Mapping[str, Any], microbatches: int, noise: Noise | None, copies: int
) -> Decided:
    def run(costs: Mapping[str, Any]) -> Timeline:
        graph = graph_of(schedule)
        # Without flush each update reduces its own gradients.
        joint = graph.kind == (Kind.OPTIMIZER if SCHEDULES[schedule.name].asynchronous else Kind.REDUCE_GRAD)
        program = durations(schedule, costs).program(graph)
        return Timeline.of(schedule, run_noisy(program, joint, noise, copies, run_program))

    timeline = run(costs)
    step, silent = pace(timeline, microbatches), pace(run({**costs, "send": 0.0}), microbatches)
    return timeline, step, waits(timeline, costs, step, silent)
