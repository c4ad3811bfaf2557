"""What became of the jobs of a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, nan

import numpy as np

from sim.cluster.active import Active
from sim.cluster.arrays import EXTENDED, MOVED, OFFERED, SKIPPED, Log
from sim.cluster.jobs import ClusterJob
from sim.cluster.state import Floats, Ints


@dataclass(frozen=True, eq=False)
class Entry:
    """`repeats` rounds of `length_s` from `start_s`, with the jobs `held` (W, 2) on each device, -1 for none.

    Devices are numbered type by type, by the types' names: not in the order of `Simulated.types`.
    """

    start_s: float
    length_s: float
    repeats: int
    held: Ints


@dataclass(frozen=True, eq=False)
class Simulated:
    """What became of n jobs on m types of devices.

    `end_s` (n,) is nan for jobs that were given up (the published simulator does so after five rounds in which a job
    could not do a whole step per device) or had not ended; `used_s` (n, m) are device-seconds; `fairness` (n,) is
    finish-time fairness rho: the completion time over that on a share of 1/a of every type on which the job runs, with
    a the mean number of jobs between arrival and end (Themis, NSDI '20; shares as in arXiv 2008.09213, 4.1).
    `makespan_s` is from the first arrival to the last end of the jobs of the window, or of all; `utilisation` (m,) the
    share of device time that was held meanwhile (of a window to the end of its last round). `average_jct_s` is over the
    jobs of the window, or all. `paid_usd` (n,) where prices changed.
    """

    policy: str
    types: tuple[str, ...]
    devices: Ints
    jobs: tuple[ClusterJob, ...]
    counted: range
    end_s: Floats
    used_s: Floats
    fairness: Floats
    makespan_s: float
    utilisation: Floats
    rounds: int
    rounds_skipped: int
    allocations: int
    allocation_seconds: float
    leases_offered: int
    leases_extended: int
    moves: int
    usd_per_hour: Floats | None
    late: tuple[int, ...]
    seconds: float
    entries: tuple[Entry, ...] = ()
    assumptions: tuple[str, ...] = ()
    paid_usd: Floats | None = None

    @cached_property
    def jct_s(self) -> Floats:
        """Completion times (n,)."""
        arrived: Floats = np.array([job.arrival_s for job in self.jobs])
        return self.end_s - arrived

    @property
    def begin_s(self) -> float:
        """When the first job arrives."""
        return begin_s(self.jobs)

    @property
    def average_jct_s(self) -> float:
        """Mean completion time of those that count and have ended; nan where none has."""
        return self._mean(self.jct_s)

    @property
    def mean_fairness(self) -> float:
        """Of the jobs that count and have ended; nan where none has."""
        return self._mean(self.fairness)

    def _mean(self, values: Floats) -> float:
        counted = values[self.counted.start : self.counted.stop]
        return nan if np.isnan(counted).all() else float(np.nanmean(counted))

    @property
    def mean_utilisation(self) -> float:
        """Over all devices."""
        return float(self.utilisation @ self.devices / self.devices.sum())

    @property
    def cost_usd(self) -> float | None:
        """What the device time that was held costs, or None where no price is known."""
        if self.paid_usd is not None:
            return float(self.paid_usd.sum())
        return None if self.usd_per_hour is None else float((self.used_s / 3_600 @ self.usd_per_hour).sum())

    @property
    def not_ended(self) -> tuple[int, ...]:
        """Jobs that were given up, or had not ended when the window had."""
        return tuple(np.flatnonzero(np.isnan(self.end_s)).tolist())


def begin_s(jobs: Sequence[ClusterJob]) -> float:
    """Return when the first of jobs, in the order of their arrival, arrives; 0 where there is none."""
    return jobs[0].arrival_s if jobs else 0.0


@dataclass
class Told:
    """What a simulation has told so far."""

    types: tuple[str, ...]
    devices: Ints
    policy: str
    record: bool
    jobs: list[ClusterJob] = field(default_factory=list)
    ended: dict[int, float] = field(default_factory=dict)
    used_s: dict[int, Floats] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    rounds: int = 0
    allocations: int = 0
    allocation_seconds: float = 0.0

    def log(self, log: Log, entries: int, active: Active) -> None:
        """Keep what the first entries of a log say."""
        self.rounds += int(log.repeats[:entries].sum())
        if not self.record:
            return
        jobs = np.append(active.ids, -1)[active.rows.job]
        jobs = np.concatenate([jobs, [[-1, -1]]])
        for k in range(entries):
            held = jobs[log.row[k]]
            self.entries.append(Entry(float(log.start_s[k]), float(log.length_s[k]), int(log.repeats[k]), held))

    def end(self, active: Active, places: Ints) -> None:
        """Keep what became of jobs that leave."""
        for place in places.tolist():
            number = int(active.ids[place])
            self.ended[number] = float(active.work.end_s[place])
            self.used_s[number] = active.work.used_s[place].copy()

    def results(
        self,
        active: Active,
        now_s: float,
        counts: Ints,
        window: tuple[int, int] | None,
        usd_per_hour: Mapping[str, float],
        seconds: float,
        assumptions: tuple[str, ...],
    ) -> Simulated:
        """Return what became of all jobs that came."""
        n = len(self.jobs)
        end = np.array([self.ended.get(i, nan) for i in range(n)])
        end[np.isinf(end)] = nan
        since_s, counted = begin_s(self.jobs), end[slice(*(window or (0, n)))]
        last_s = float(now_s if not n or np.isnan(counted).any() else counted.max())
        over_s = (now_s if window else last_s) - since_s
        used = self.used_s | {int(i): active.work.used_s[k] for k, i in enumerate(active.ids)}
        held = active.held.busy_s
        first, count = active.fleet.first, active.fleet.devices
        busy = np.array([held[a : a + c].sum() for a, c in zip(first, count, strict=True)])
        return Simulated(
            policy=self.policy,
            types=self.types,
            devices=self.devices,
            jobs=tuple(self.jobs),
            counted=range(*(window or (0, n))),
            end_s=end,
            used_s=np.array([used[i] for i in range(n)]).reshape(n, len(self.types)),
            fairness=fairness(self.jobs, end, active, now_s),
            makespan_s=last_s - since_s,
            utilisation=busy / (count * over_s) if over_s else np.zeros(len(count)),
            rounds=self.rounds,
            rounds_skipped=int(counts[SKIPPED]),
            allocations=self.allocations,
            allocation_seconds=self.allocation_seconds,
            leases_offered=int(counts[OFFERED]),
            leases_extended=int(counts[EXTENDED]),
            moves=int(counts[MOVED]),
            usd_per_hour=np.array([usd_per_hour.get(name, 0.0) for name in self.types]) if usd_per_hour else None,
            late=tuple(i for i, job in enumerate(self.jobs) if end[i] > active.deadline_s(job)),
            seconds=seconds,
            entries=tuple(self.entries),
            assumptions=assumptions,
        )


def fairness(jobs: list[ClusterJob], end_s: Floats, active: Active, now_s: float) -> Floats:
    """Return each job's finish-time fairness (n,), nan where it has not ended."""
    if not jobs:
        return np.zeros(0)
    come = np.array([job.arrival_s for job in jobs])
    gone = np.where(np.isnan(end_s), now_s, end_s)
    times = np.concatenate([come, gone])
    order = np.argsort(times, kind="stable")
    there = np.cumsum(np.repeat([1.0, -1.0], len(jobs))[order])
    times = times[order]
    load = np.concatenate([[0.0], np.cumsum(there[:-1] * np.diff(times))])
    lasts = np.maximum(gone - come, 1e-12)
    beside = np.maximum(1.0, (np.interp(gone, times, load) - np.interp(come, times, load)) / lasts)
    found = np.full(len(jobs), inf)
    for i, job in enumerate(jobs):
        runs = active.runs(job, active.known)
        share = np.where(runs > 0, active.fleet.devices / (beside[i] * job.scale_factor), 0.0)
        speed = runs @ (share / max(1.0, share.sum()))
        found[i] = (gone[i] - come[i]) * speed / job.steps
    return np.where(np.isnan(end_s), nan, found)
