"""Three trainings share two slots of this machine: throughputs first, then rounds as a policy assigns them.

The slot `fast` is a core as it is; `slow` is a core whose every batch comes over a link of so many bytes/s. What is
measured has the form that `sim.cluster` takes: jobs, throughputs, when each job ended, and what moving cost.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter

import numpy as np

from calibration.cluster.networks import NETWORKS
from calibration.cluster.rounds import Assign, Ran, run_rounds
from calibration.cluster.worker import Kind, Order, Slot, SlotProcess, cores
from calibration.host import TeamLoad
from sim.cluster.jobs import ClusterJob
from sim.cluster.live import Live
from sim.cluster.policies import policy
from sim.cluster.simulate import Rounds, simulate
from sim.cluster.throughputs import Throughputs
from sim.specs.fields import InputError

FAST, SLOW = "fast", "slow"
LINK_BYTES_PER_S = 100e6
ROUND_S = 2.0
LONGEST_S = 16.0
PROFILED_S = 0.5
WARM_S = 0.1
PASSES = 3
"""Of which the median counts: a machine that others share has a slow second now and then."""

UNBOUNDED = 10**12
SHARES = (1.0, 0.75, 0.5)
"""Work of the three jobs, as times of the longest."""

POLICY = "max_min_fairness_perf"


@dataclass(frozen=True)
class Measured:
    """What was measured; load: the share of the machine that others used, of throughputs and run the greater one."""

    jobs: tuple[ClusterJob, ...]
    throughputs: Throughputs
    policy: str
    round_s: float
    ran: Ran
    load: float

    @property
    def move_s(self) -> float:
        """The mean cost of a move: saving and restoring; 0 where no job moved."""
        return fmean(move.save_s + move.load_s for move in self.ran.moves) if self.ran.moves else 0.0


def scheduled(
    jobs: tuple[ClusterJob, ...],
    throughputs: Throughputs,
    rule: str,
    rounds: Rounds,
    clock: Callable[[], float] = perf_counter,
) -> Assign:
    """Return what assigns slots as the policy `rule` divides them, one device a type.

    Its solver and the rounds are used once before, so that no compiling is part of the first real round.
    """
    devices = dict.fromkeys(throughputs.types, 1)
    simulate(jobs, throughputs, devices, policy(rule), rounds)
    live = Live(jobs, throughputs, devices, policy(rule), rounds)
    begin: float | None = None

    def assign(_number: int, left: Mapping[str, int]) -> dict[str, str]:
        nonlocal begin
        now = clock()
        begin = now if begin is None else begin
        placed = live.place([left.get(job.job_type, 0) for job in jobs], now - begin)
        return {slot: jobs[held[0]].job_type for (slot, _), held in placed.items()}

    return assign


def measured(
    rule: str = POLICY,
    round_s: float = ROUND_S,
    longest_s: float = LONGEST_S,
    link_bytes_per_s: float = LINK_BYTES_PER_S,
    profiled_s: float = PROFILED_S,
    told: Callable[[str], object] = str,
) -> Measured:
    """Return how the trainings ran; the longest has work for `longest_s` seconds alone on the fast slot.

    `rule`: a policy of `sim.cluster.policies.POLICIES` that shares no devices; it divides the slots' time.

    Raises:
        InputError: no such policy, one that shares devices or wants prices, or rounds that a simulation does not know.
        SlotError: a worker failed.
    """
    rounds = Rounds(round_s=round_s, reset_s=0.0, switch_s=0.0)
    if policy(rule).packs:
        raise InputError("policy", rule, "one that shares no devices: a slot holds one training")
    if policy(rule).costs:
        raise InputError("policy", rule, "one that asks for no prices: slots have none")
    with opened(link_bytes_per_s) as slots:
        told("measuring throughputs")
        load = TeamLoad()
        throughputs = profiled(slots, profiled_s)
        jobs = tuple(
            ClusterJob(job_type=name, steps=max(1, round(share * longest_s * throughputs.alone[name, 1][0])))
            for name, share in zip(NETWORKS, SHARES, strict=True)
        )
        assign = scheduled(jobs, throughputs, rule, rounds)
        told(f"running {', '.join(f'{job.steps} steps of {job.job_type}' for job in jobs)}")
        profiling = load.others()
        ran = run_rounds(slots, {job.job_type: job.steps for job in jobs}, assign, round_s)
        return Measured(jobs, throughputs, rule, round_s, ran, max(profiling, load.others()))


@contextmanager
def opened(link_bytes_per_s: float) -> Iterator[dict[str, Slot]]:
    """Yield both slots, each on a core of its own where there are two; their checkpoints are removed at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainsim-cluster-")))
        first, *others = cores()
        slots: dict[str, Slot] = {}
        for name, link, core in ((FAST, None, first), (SLOW, link_bytes_per_s, (others or [first])[0])):
            slot = SlotProcess(NETWORKS, folder, link, core)
            stack.callback(slot.close)
            slots[name] = slot
        yield slots


def profiled(slots: Mapping[str, Slot], seconds: float) -> Throughputs:
    """Return the steps/s of every training on every slot, while another one runs on the other slot.

    The median of `PASSES`, each of so many seconds.
    """
    names = list(NETWORKS)
    rates = {name: np.zeros((PASSES, len(slots))) for name in names}
    for turn in range(PASSES * len(names)):
        held = {slot: names[(turn + m) % len(names)] for m, slot in enumerate(slots)}
        orders: tuple[tuple[Kind, float], ...] = (("place", 0), ("run", WARM_S), ("run", seconds), ("drop", 0))
        for kind, lasting_s in orders:
            for slot, name in held.items():
                slots[slot].ask(Order(kind, name, lasting_s, UNBOUNDED))
            for m, (slot, name) in enumerate(held.items()):
                done = slots[slot].answer()
                if kind == "run":
                    rates[name][turn // len(names), m] = done.steps / done.seconds
    alone = {(name, 1): np.median(rates[name], axis=0) for name in names}
    return Throughputs(types=tuple(slots), alone=alone, source="measured on this machine")
