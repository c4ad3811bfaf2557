"""A cluster that jobs share, round by round (arXiv 2008.09213, section 5)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from numbers import Integral, Real
from random import Random
from time import perf_counter
from typing import Annotated

import numpy as np

from sim.cluster.active import Active, check
from sim.cluster.arrays import NOW, Fleet, Log, Next, Rule
from sim.cluster.jobs import ClusterJob
from sim.cluster.policies.base import Policy
from sim.cluster.prices import Meter, PriceTable
from sim.cluster.results import Simulated, Told
from sim.cluster.rounds import run_rounds
from sim.cluster.state import Floats, Ints
from sim.cluster.throughputs import Throughputs
from sim.specs.arguments import checked
from sim.specs.fields import InputError, real, spec, whole

SHUFFLED = 5
"""Added to the seed, as in the published scheduler: the order of types for policies that do not tell them apart."""
ENTRIES = 256
"""Rounds that are worked at a time."""
MOST_STUCK = 1_000
"""Rounds in which no job does a step, beside those in which one job could load: then none ever does."""
MOST_DEVICES = 1_000_000
"""Of a type: every round goes through all of them."""
SWITCH_S = 10.0
"""Assumption: what a job loses when it resumes or moves where nothing else is said."""
MOST_SWITCH_S, MOST_USD, WEIGHTS = 1e9, 1e9, (1e-6, 1e6)


@spec
class Rounds:
    """How a cluster is shared: every `round_s` seconds jobs are placed anew, in proportion to their shares.

    Shares are computed when a job has come or gone, `reset_s` after the last time at the earliest, or at once where
    nobody runs. Jobs on several devices are put into as few servers as can be, of `gpus_per_server` devices. A job that
    resumes or moves loses `switch_s`, to load its checkpoint. `gavel_parity`: as the published simulator does it, with
    no such loss, no servers, rounds that end with their last job and whole steps only.
    """

    round_s: Annotated[float, real(1.0, 86_400.0, "s")] = 360.0
    reset_s: Annotated[float, real(0.0, 1e7, "s")] = 1_920.0
    gpus_per_server: Annotated[int, whole(1, 1_024)] = 1
    switch_s: Annotated[float, real(0.0, 86_400.0, "s")] = SWITCH_S
    gavel_parity: bool = False


@checked
def simulate(
    jobs: Iterable[ClusterJob],
    throughputs: Throughputs,
    devices: Mapping[str, int],
    policy: Policy,
    rounds: Rounds | None = None,
    *,
    spread: Throughputs | None = None,
    believed: Throughputs | None = None,
    switch_s: Mapping[str, float] | None = None,
    usd_per_hour: Mapping[str, float] | PriceTable | None = None,
    entity_weights: Mapping[str, float] | None = None,
    window: tuple[int, int] | None = None,
    seed: int = 0,
    record: bool = False,
    progress: Callable[[int, float], None] | None = None,
) -> Simulated:
    """Return what becomes of jobs, in order of arrival, on so many `devices` of each type.

    `spread`: throughputs of jobs whose devices are in more servers than they need; `believed`: what the policy takes
    those of jobs alone to be, where that is not the truth. `switch_s` by type of job wins over that of `rounds`.
    `usd_per_hour`: prices of devices, or a table of them that change; who holds a device then pays, and sees, the price
    of the begin of a round. `window`: end when the jobs from the first to before the second number have ended (`jobs`
    may never end). `record`: keep who held which device in every round. `progress` is told how many jobs have ended,
    and the simulated seconds.

    Raises:
        InputError: a number is out of range, jobs are out of order, a job can run nowhere, a throughput is missing, the
            policy gives a job nothing for ever, jobs take turns in rounds that are shorter than what a move takes, or
            fewer jobs come than the window has.
    """
    table = usd_per_hour if isinstance(usd_per_hour, PriceTable) else None
    prices = {} if usd_per_hour is None or isinstance(usd_per_hour, PriceTable) else usd_per_hour
    _check_numbers("usd_per_hour", prices, 0.0, MOST_USD)
    _check_numbers("switch_s", switch_s or {}, 0.0, MOST_SWITCH_S)
    _check_numbers("entity_weights", entity_weights or {}, *WEIGHTS)
    named = table.types if table else prices
    for name in (name for name, count in devices.items() if named and count and name not in named):
        raise InputError(f"usd_per_hour.{name}", None, "required beside other prices: USD of a device-hour")
    if window is not None and not 0 <= window[0] < window[1]:
        raise InputError("window", "{}:{}".format(*window), "FIRST:LAST, whole numbers, the first below the last")
    run = Simulation(iter(jobs), throughputs, devices, policy, rounds or Rounds(), spread, seed, record)
    run.switch_s, run.usd_per_hour, run.window, run.progress = switch_s or {}, prices, window, progress
    run.meter = Meter(table.of(run.told.types)) if table else None
    for number, job in enumerate(jobs if isinstance(jobs, Sequence) else ()):
        check(job, number, run.known, run.fleet)  # before any has run
    run.entities, run.active.believed = dict(entity_weights or {}), believed and believed.of(run.told.types)
    began = perf_counter()
    run.go()
    took_s, notes = perf_counter() - began, _assumptions(run.rounds, policy, throughputs, spread)
    found = run.told.results(run.active, float(run.clock[NOW]), run.counts, window, run.usd_per_hour, took_s, notes)
    return replace(found, paid_usd=run.meter.paid(len(found.jobs))) if run.meter else found


def _check_numbers(path: str, values: Mapping[str, object], low: float, high: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high:
            raise InputError(f"{path}.{name}", value, f"a number from {low:g} to {high:g}")


def _assumptions(rounds: Rounds, policy: Policy, known: Throughputs, spread: Throughputs | None) -> tuple[str, ...]:
    """Return what a simulation rests on."""
    told = ["a job goes on at the throughput of its devices, whatever runs beside it; devices do not fail"]
    if policy.packs and not known.together:
        told.append(f"no two jobs share devices, though {policy.name} lets them: throughputs of pairs are not known")
    if rounds.gavel_parity:
        return (*told, "as the published simulator: moving costs nothing, a round ends with its last job")
    if rounds.gpus_per_server > 1 and not spread:
        told.append("a job in more servers than it needs is as fast as in few: its throughput there is not known")
    told.append(f"a job that resumes or moves loses {rounds.switch_s:g} s where nothing else is said (an assumption)")
    return (*told, *([f"throughputs: {known.source}"] if known.source else []))


class Simulation:
    """One simulation under way."""

    def __init__(
        self,
        jobs: Iterable[ClusterJob],
        known: Throughputs,
        devices: Mapping[str, int],
        policy: Policy,
        rounds: Rounds,
        spread: Throughputs | None,
        seed: int,
        record: bool,
    ) -> None:
        self.fleet, types = _fleet(known, devices, rounds)
        self.known = known.of(types)
        self.policy, self.rounds, self.jobs = policy, rounds, iter(jobs)
        parity, half = rounds.gavel_parity, rounds.round_s / 2
        wide = (spread or known).of(types)
        self.active = Active(self.known, wide, self.fleet, policy.packs, half, 0.0 if parity else half)
        fixed = policy.aware or policy.packs  # the others take types in any order
        self.rule = Rule(rounds.round_s, parity, policy.strict, fixed, rounds.reset_s)
        self.clock, self.counts, self.last_reset_s, self.needed = np.zeros(2), np.zeros(4, np.int64), 0.0, False
        self.at_once = True
        """Whether nobody had shares yet, or nobody runs by those there are."""
        cells = np.zeros((ENTRIES, int(self.fleet.devices.sum()) if record else 0), dtype=np.int64)
        self.log = Log(np.zeros(ENTRIES), np.zeros(ENTRIES), np.zeros(ENTRIES, dtype=np.int64), cells)
        self.shuffler = Random(seed + SHUFFLED)
        self.orders: list[list[int]] = []
        self.longest_s, self.stuck = 0.0, 0
        """What a move takes at most; rounds since any job last did a step."""
        self.told = Told(types=types, devices=self.fleet.devices, policy=policy.name, record=record)
        self.next = next(self.jobs, None)
        self.switch_s: Mapping[str, float] = {}
        self.usd_per_hour: Mapping[str, float] = {}
        self.meter: Meter | None = None
        self.entities: dict[str, float] = {}
        self.window: tuple[int, int] | None = None
        self.progress: Callable[[int, float], None] | None = None

    def go(self) -> None:
        """Run until every job that counts has ended."""
        if self.next is not None:
            self.clock[NOW] = self.next.arrival_s
        idle = 0
        while not self._done():
            self._admit()
            if len(self.active) and self._due():
                self._reset()
            since_s = float(self.clock[NOW])
            ran = self._rounds()
            self._pay(since_s)
            self._leave()
            if ran:
                idle = 0
            elif self.waits_for_arrival:
                assert self.next is not None
                self.clock[NOW], idle = max(self.clock[NOW], self.next.arrival_s), 0
            else:
                idle += 1
                self._wait(idle)

    def _done(self) -> bool:
        if self.window is not None:
            return all(number in self.told.ended for number in range(*self.window))
        return self.next is None and not len(self.active)

    def _admit(self) -> None:
        """Take in who has arrived by now."""
        come: list[ClusterJob] = []
        while self.next is not None and self.next.arrival_s <= self.clock[NOW]:
            come.append(self.next)
            following = next(self.jobs, None)
            if following is not None and following.arrival_s < self.next.arrival_s:
                path = f"jobs[{len(self.told.jobs) + len(come)}].arrival_s"
                raise InputError(path, following.arrival_s, f"{self.next.arrival_s} or later: in order of arrival")
            self.next = following
        if come:
            ids = range(len(self.told.jobs), len(self.told.jobs) + len(come))
            lost_s = [self.switch_s.get(job.job_type, self.rounds.switch_s) for job in come]
            self.active.admit(come, ids, lost_s)
            self.longest_s = max(self.longest_s, *lost_s)
            self.told.jobs += come
            for job in come:
                self.entities.setdefault(job.entity, 1.0)
            self.needed = True
        if self.next is None and self.window is not None and self.window[1] > len(self.told.jobs):
            told = f"FIRST:LAST, LAST at most {len(self.told.jobs)}, as many jobs as come"
            raise InputError("window", "{}:{}".format(*self.window), told)

    def _due(self) -> bool:
        return self.needed and bool(self.clock[NOW] - self._counted_from_s >= self.rounds.reset_s)

    @property
    def _counted_from_s(self) -> float:
        """When the time between two computations of shares begins; -inf where they are to be computed at once."""
        published = self.rounds.gavel_parity and self.last_reset_s == 0  # those computed at 0 do not count there
        return -inf if self.at_once or published else self.last_reset_s

    def _reset(self) -> None:
        """Ask the policy for new shares."""
        now = float(self.clock[NOW])
        self.active.reset(now - self.last_reset_s)
        prices = np.array([self.usd_per_hour.get(name, 0.0) for name in self.told.types]) if self.usd_per_hour else None
        state = self.active.state(now, self.meter.prices.at(now) if self.meter else prices, self.entities)
        began = perf_counter()
        self.active.share(self.policy.allocate(state))
        self.told.allocation_seconds += perf_counter() - began
        self.told.allocations += 1
        self.last_reset_s, self.needed, self.at_once = now, False, False

    def _rounds(self) -> bool:
        """Run rounds until something happens, and return whether somebody ran in the last of them."""
        orders, entries, used = self._orders(), 0, 1
        if len(self.active):
            arrival = inf if self.next is None else self.next.arrival_s
            if self.meter:
                arrival = min(arrival, self.meter.prices.changes_after(float(self.clock[NOW])))
            active, to = self.active, Next(arrival, self._counted_from_s, self.needed)
            before = active.work.left.copy() if self.longest_s >= self.rounds.round_s else None
            entries, used = run_rounds(
                active.rows, self.fleet, active.work, active.held, active.spent_s, self.clock, self.counts, self.log,
                orders, self.rule, to,
            )  # fmt: skip
            self.told.log(self.log, entries, active)
            if before is not None:
                self._refuse_standstill(before, entries)
        if not self.rule.fixed:
            del self.orders[:used]
        return used == entries

    def _refuse_standstill(self, before: Floats, rounds: int) -> None:
        """Raise `InputError` where jobs take turns and every turn ends before their checkpoint is loaded."""
        round_s = self.rounds.round_s
        self.stuck = 0 if (self.active.work.left < before).any() else self.stuck + rounds
        if self.stuck > MOST_STUCK + 2 * self.longest_s / round_s:
            told = f"longer than the {self.longest_s:g} s that a job loses when it moves: jobs take turns, none gets on"
            raise InputError("rounds.round_s", round_s, told)

    def _pay(self, since_s: float) -> None:
        """Charge jobs for the time since then; where prices have changed, shares are to be computed again."""
        if self.meter:
            self.meter.read(since_s, self.active.ids, self.active.work.used_s)
            self.needed |= bool(len(self.active)) and self.meter.prices.changes_after(since_s) <= self.clock[NOW]

    def _orders(self) -> Ints:
        """Return the orders in which types are served in the coming rounds: as they are, or shuffled for each."""
        while len(self.orders) < ENTRIES:
            order = list(range(len(self.told.types)))
            if not self.rule.fixed:
                self.shuffler.shuffle(order)
            self.orders.append(order)
        return np.array(self.orders)

    def _leave(self) -> None:
        """Let those go that have ended or were given up."""
        ended = self.active.ended()
        if len(ended):
            self.told.end(self.active, ended)
            self.active.leave(ended)
            self.needed = True
            if self.progress:
                self.progress(len(self.told.ended), float(self.clock[NOW]))
        elif self.rounds.gavel_parity and self.active.work.failures.any():
            self.needed = True

    @property
    def waits_for_arrival(self) -> bool:
        """Whether nothing but the next job can end it that nobody runs; as published also where shares are needed."""
        needed = self.needed and len(self.active) > 0 and not self.rounds.gavel_parity
        return self.next is not None and not needed

    def _wait(self, idle: int) -> None:
        """Nobody runs: let shares be computed again where they are needed."""
        if len(self.active) and idle > 2:
            number, job = int(self.active.ids[0]), self.active.jobs[0]
            raise InputError(
                f"jobs[{number}]", job.job_type, f"a job to which the policy {self.policy.name} gives time"
            )
        if self.needed:
            self.at_once = True


def _fleet(known: Throughputs, devices: Mapping[str, int], rounds: Rounds) -> tuple[Fleet, tuple[str, ...]]:
    """Return the devices, numbered by the names of their types, and the types in the order of the throughputs."""
    stated: Mapping[str, object] = devices
    for name, number in stated.items():
        if name not in known.types:
            raise InputError(f"devices.{name}", name, "one of " + ", ".join(known.types))
        if isinstance(number, bool) or not isinstance(number, Integral) or not 0 <= int(number) <= MOST_DEVICES:
            raise InputError(f"devices.{name}", number, f"a whole number from 0 to {MOST_DEVICES}")
    types = tuple(name for name in known.types if devices.get(name, 0) > 0)
    if not types:
        raise InputError("devices", dict(devices), "at least one device")
    count = np.array([devices[name] for name in types], dtype=np.int64)
    by_name = sorted(range(len(types)), key=lambda j: types[j])
    first = np.zeros(len(types), dtype=np.int64)
    first[by_name] = np.cumsum([0, *(count[j] for j in by_name[:-1])])
    servers = np.full(len(types), 1 if rounds.gavel_parity else rounds.gpus_per_server)
    return Fleet(first, count, servers), types
