"""The jobs that are in the cluster: their arrays for rounds, and what a policy sees of them."""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from sim.cluster.arrays import Fleet, Held, Rows, Work
from sim.cluster.jobs import ClusterJob, Kind
from sim.cluster.state import Floats, Ints, Pairs, State
from sim.cluster.throughputs import Throughputs
from sim.specs.fields import InputError
from sim.units import many

NONE = -1


class Active:
    """Jobs between arrival and end, in order of arrival; `packs`: with a row for every pair of the same scale.

    A new row begins with `start_s` of time received on every type, a pair with `pair_start_s`. `spread` holds the
    throughputs of jobs whose devices are in more servers than they need, `believed` those that a policy sees of jobs
    alone, where they are others than the true ones.
    """

    def __init__(
        self, known: Throughputs, spread: Throughputs, fleet: Fleet, packs: bool, start_s: float, pair_start_s: float
    ) -> None:
        self.known, self.spread, self.fleet, self.packs = known, spread, fleet, packs
        self.believed: Throughputs | None = None
        self.start_s, self.pair_start_s = start_s, pair_start_s
        m, none = len(known.types), np.zeros(0, dtype=np.int64)
        self.jobs: list[ClusterJob] = []
        self.ids = none
        flat, deep = np.zeros((0, m)), np.zeros((0, m, 2))
        self.work = Work(np.zeros(0), none, none, np.zeros(0), np.zeros(0), np.zeros(0), flat)
        self.rows = Rows(np.zeros((0, 2), dtype=np.int64), none, deep, deep, flat, none, flat, flat, none)
        self.held = Held(np.full(int(fleet.devices.sum()), NONE), np.zeros(int(fleet.devices.sum())))
        self.spent_s = np.zeros(m)

    def __len__(self) -> int:
        return len(self.ids)

    def admit(self, jobs: Sequence[ClusterJob], ids: Sequence[int], switch_s: Sequence[float]) -> None:
        """Add jobs that have arrived.

        Raises:
            InputError: nothing says how fast a job is, or it can run nowhere.
        """
        for one, number in zip(jobs, ids, strict=True):
            check(one, number, self.known, self.fleet)
        n, new, m = len(self), len(jobs), len(self.known.types)
        found = [self._new_rows(i, one, [*self.jobs, *jobs[: i - n]]) for i, one in enumerate(jobs, n)]
        counts = [len(rows) for rows, _, _ in found]
        job = np.concatenate([np.array(rows, dtype=np.int64) for rows, _, _ in found])
        speed, spread = (np.concatenate([each[k] for each in found]) for k in (1, 2))
        begin = np.where(job[:, 1:] < 0, self.start_s, self.pair_start_s) * np.ones(m)
        nothing, first = np.zeros((len(job), m)), len(self.rows.scale) + np.cumsum([0, *counts[:-1]])
        scale = np.repeat([one.scale_factor for one in jobs], counts)
        more = (job, scale, speed, spread, nothing, np.zeros(len(job), np.int64), begin, nothing, first)
        self.rows = Rows(*(np.concatenate(both) for both in zip(self.rows, more, strict=True)))
        steps, zeros = np.array([one.steps for one in jobs], dtype=float), np.zeros(new, dtype=np.int64)
        lost, used = np.array(switch_s, dtype=float), np.zeros((new, m))
        fresh = (steps, zeros, zeros, np.full(new, float(NONE)), lost, np.zeros(new), used)
        self.work = Work(*(np.concatenate(both) for both in zip(self.work, fresh, strict=True)))
        self.jobs += jobs
        self.ids = np.concatenate([self.ids, np.array(ids, dtype=np.int64)])

    def _new_rows(
        self, i: int, job: ClusterJob, before: Sequence[ClusterJob]
    ) -> tuple[list[tuple[int, int]], Floats, Floats]:
        """Return the rows (job, other or -1) that come with job i, and their speeds, together and spread."""
        alone, wide = self.known.alone[job.kind], self.spread.alone.get(job.kind, self.known.alone[job.kind])
        zero = np.zeros_like(alone)
        rows, speed, spread = [(i, NONE)], [np.stack([alone, zero], 1)], [np.stack([wide, zero], 1)]
        for k, other in enumerate(before if self.packs else ()):
            both = _together(self.known, other.kind, job.kind)
            if other.scale_factor == job.scale_factor and both is not None:
                wide_both = _together(self.spread, other.kind, job.kind)
                rows.append((k, i))
                speed.append(both)
                spread.append(both if wide_both is None else wide_both)
        return rows, np.stack(speed), np.stack(spread)

    def ended(self) -> Ints:
        """Return the places of jobs that have ended or were given up."""
        return np.flatnonzero(self.work.end_s != NONE)

    def leave(self, places: Ints) -> None:
        """Take jobs out, with all their rows."""
        stays = np.ones(len(self), dtype=bool)
        stays[places] = False
        place = np.append(np.where(stays, np.cumsum(stays) - 1, NONE), NONE)
        job = place[self.rows.job]
        rows = (job[:, 0] >= 0) & ((job[:, 1] >= 0) | (self.rows.job[:, 1] < 0))
        row = np.append(np.where(rows, np.cumsum(rows) - 1, NONE), NONE)
        held = self.rows
        self.rows = Rows(
            job[rows], held.scale[rows], held.speed[rows], held.spread[rows], held.share[rows], held.known[rows],
            held.had_s[rows], held.deficit_s[rows], row[held.single[stays]],
        )  # fmt: skip
        work = self.work
        self.work = Work(
            work.left[stays], work.ran[stays], work.failures[stays], work.end_s[stays], work.switch_s[stays],
            work.loading_s[stays], work.used_s[stays],
        )  # fmt: skip
        self.held.row[:] = row[self.held.row]
        self.jobs = [one for one, stay in zip(self.jobs, stays.tolist(), strict=True) if stay]
        self.ids = self.ids[stays]

    def reset(self, elapsed_s: float) -> None:
        """Begin to count time anew, and keep what each row has missed of its share in `elapsed_s`."""
        rows = self.rows
        rows.deficit_s[:] += rows.share * rows.known[:, None] * elapsed_s - (rows.had_s - self.start_s)
        rows.had_s[:] = self.start_s
        self.spent_s[:] = rows.had_s.sum(0)

    def share(self, shares: Floats) -> None:
        """Take the shares (n + k, m) of the jobs, then of the pairs."""
        self.rows.share[self.rows.single] = shares[: len(self)]
        self.rows.share[self.pairs()] = shares[len(self) :]
        self.rows.known[:] = 1

    def pairs(self) -> Ints:
        """Return the rows that are pairs."""
        return np.flatnonzero(self.rows.job[:, 1] >= 0)

    def _seen(self, single: Ints) -> Floats:
        true: Floats = self.rows.speed[single, :, 0]
        if self.believed is None:
            return true
        return np.array([self.believed.alone[job.kind] for job in self.jobs]).reshape(true.shape)

    def deadline_s(self, job: ClusterJob) -> float:
        """Return when a job should have ended: a multiple of what it is taken to need on the fastest type it fits."""
        fastest = float(self.runs(job, self.believed or self.known).max())
        return inf if job.slo is None or fastest <= 0 else job.arrival_s + job.slo * job.steps / fastest

    def runs(self, job: ClusterJob, known: Throughputs) -> Floats:
        """Return the steps/s (m,) of a job alone, 0 on types with fewer devices than it needs."""
        return np.where(self.fleet.devices >= job.scale_factor, known.alone[job.kind], 0.0)

    def state(self, now_s: float, usd_per_hour: Floats | None, entities: Mapping[str, float]) -> State:
        """Return what a policy sees; `entities`: their weights, numbered in this order."""
        single, pair, number = self.rows.single, self.pairs(), {name: i for i, name in enumerate(entities)}
        return State(
            ids=self.ids,
            types=self.known.types,
            steps_per_s=self._seen(single),
            scale=self.rows.scale[single],
            devices=self.fleet.devices,
            steps_left=self.work.left,
            waited_s=now_s - np.array([job.arrival_s for job in self.jobs]),
            weights=np.array([job.weight for job in self.jobs]),
            pairs=Pairs(self.rows.job[pair], self.rows.speed[pair]),
            usd_per_hour=usd_per_hour,
            slack_s=np.array([self.deadline_s(job) for job in self.jobs]) - now_s,
            entity=np.array([number[job.entity] for job in self.jobs], dtype=np.int64),
            entity_weights=np.array(list(entities.values())),
        )


def _together(known: Throughputs, a: Kind, b: Kind) -> Floats | None:
    """Return the throughputs (m, 2) of a and b on shared devices, or None where nothing says them."""
    if (a, b) in known.together:
        return known.together[a, b]
    return known.together[b, a][:, ::-1] if (b, a) in known.together else None


def check(job: ClusterJob, number: int, known: Throughputs, fleet: Fleet) -> None:
    """Raise `InputError` for a job of which nothing says how fast it is, or that can run nowhere."""
    path = f"jobs[{number}]"
    if job.kind not in known.alone:
        scales = sorted(scale for name, scale in known.alone if name == job.job_type)
        if scales:
            raise InputError(f"{path}.scale_factor", job.scale_factor, "one of " + ", ".join(map(str, scales)))
        names = sorted({name for name, _ in known.alone})
        raise InputError(f"{path}.job_type", job.job_type, "one of " + ", ".join(names))
    room = fleet.devices >= job.scale_factor
    if not room.any():
        most = many(fleet.devices.max(), "device")
        raise InputError(f"{path}.scale_factor", job.scale_factor, f"at most {most} of one type")
    if not (room & (known.alone[job.kind] > 0)).any():
        raise InputError(f"{path}.job_type", job.job_type, "a job with a throughput above 0 on a type that has room")
