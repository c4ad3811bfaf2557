"""Partitioned problems: one policy for each part of the jobs and of the devices (POP, arXiv 2110.11927).

Many jobs of which each uses little of the cluster are divided nearly as well in parts, and a program of an n-th of the
jobs is solved in far less than an n-th of the time.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sim.cluster.policies import POLICIES, policy
from sim.cluster.policies.base import Policy
from sim.cluster.policies.optimising import Optimising
from sim.cluster.state import Floats, Ints, Pairs, State
from sim.specs.fields import InputError

MOST_PARTS = 10_000


@dataclass(frozen=True)
class Loss:
    """What splitting costs: the policy's objective over the parts, and over the whole, both at all jobs.

    `fraction` is by how much the former is worse, of the latter.
    """

    split: float
    whole: float
    fraction: float


class Pop(Policy):
    """Splits jobs at random over `parts`, each with that part of every type's devices, and solves each.

    Parts are equal in jobs of every scale, so in devices asked for; a job stays in its part, pairs across parts are
    left out. Every `check_every`-th time the problem is solved as one too, and what the split loses kept in `losses`
    (0: never). Raises InputError for a policy that is no program (queues have an order that parts would break).
    """

    def __init__(self, kind: str, parts: int, seed: int = 0, gavel_parity: bool = False, check_every: int = 0) -> None:
        super().__init__(seed, gavel_parity)
        known = [name for name, of in POLICIES.items() if issubclass(of, Optimising)]
        if kind not in known:
            raise InputError("kind", kind, f"one of {', '.join(known)}")
        if not 1 <= parts <= MOST_PARTS:
            raise InputError("parts", parts, f"a whole number from 1 to {MOST_PARTS}")
        self._policies = [policy(kind, seed, gavel_parity) for _ in range(parts)]
        self._whole = policy(kind, seed, gavel_parity)
        self.check_every, self._calls = check_every, 0
        self.losses: list[float] = []
        self._part: dict[int, int] = {}
        self._draw = np.random.default_rng(seed)
        self.packs = self._whole.packs  # type: ignore[misc]
        self.name = f"{kind} in {parts} parts"  # type: ignore[misc]

    def allocate(self, state: State) -> Floats:
        """Return X (n + k, m), of each part's jobs as its policy gives it."""
        shares = np.zeros((state.jobs + len(state.pairs.jobs), len(state.types)))
        part = self._assigned(state)
        for at, solver in enumerate(self._policies):
            jobs, pairs = np.flatnonzero(part == at), np.flatnonzero((part[state.pairs.jobs] == at).all(axis=1))
            if len(jobs):
                rows = np.concatenate([jobs, state.jobs + pairs])
                shares[rows] = solver.allocate(part_of(state, jobs, pairs, len(self._policies)))
        if self.check_every and state.jobs and self._calls % self.check_every == 0:
            self.losses.append(self.loss(state, shares).fraction)
        self._calls += 1
        return shares

    def loss(self, state: State, shares: Floats) -> Loss:
        """Return what `shares` (n + k, m) are worth beside those of the problem as one."""
        whole = self._whole
        assert isinstance(whole, Optimising)
        best = whole.objective(state, whole.allocate(state))
        split = whole.objective(state, shares)
        worse = split - best if whole.minimises else best - split
        return Loss(split, best, worse / abs(best) if best else 0.0)

    def _assigned(self, state: State) -> Ints:
        """Return the part (n,) of every job; new ones come, in random order, where fewest of their scale are."""
        ids = state.ids.tolist()
        self._part = {job: self._part[job] for job in ids if job in self._part}
        scales = {int(scale): np.zeros(len(self._policies), dtype=np.int64) for scale in np.unique(state.scale)}
        for job, scale in zip(ids, state.scale.tolist(), strict=True):
            if job in self._part:
                scales[scale][self._part[job]] += 1
        fewest = np.zeros(len(self._policies), dtype=np.int64)
        for at in self._draw.permutation(state.jobs).tolist():
            if ids[at] not in self._part:
                there = scales[int(state.scale[at])]
                to = int(np.lexsort((fewest, there))[0])
                self._part[ids[at]] = to
                there[to] += 1
                fewest[to] += 1
        return np.array([self._part[job] for job in ids], dtype=np.int64)


def part_of(state: State, jobs: Ints, pairs: Ints, parts: int) -> State:
    """Return the state of some rows of jobs (and of pairs among them) with one of equal `parts` of the devices."""
    row = np.full(state.jobs, -1)
    row[jobs] = np.arange(len(jobs))

    def of(values: NDArray[np.float64] | None) -> Floats | None:
        return None if values is None else values[jobs]

    return replace(
        state,
        ids=state.ids[jobs],
        steps_per_s=state.steps_per_s[jobs],
        scale=state.scale[jobs],
        steps_left=state.steps_left[jobs],
        waited_s=state.waited_s[jobs],
        weights=state.weights[jobs],
        pairs=Pairs(row[state.pairs.jobs[pairs]], state.pairs.steps_per_s[pairs]),
        slack_s=of(state.slack_s),
        entity=state.entity[jobs] if len(state.entity) else state.entity,
        part=state.part / parts,
    )
