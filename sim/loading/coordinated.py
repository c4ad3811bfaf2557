"""Jobs that train on the same data and share one preparation of it, as processes; a job may die (CoorDL).

Each job's workers prepare a shard of the epoch's minibatches; a prepared one stays staged until every living job has
used it. What a dead job had still to prepare, another one takes over (arXiv 2007.06775, coordinated prep).
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import simpy

from sim.engine.clock import to_ticks
from sim.loading.predict import check
from sim.loading.processes import Node, Step
from sim.loading.reads import epoch_samples
from sim.specs.arguments import checked
from sim.specs.fields import InputError
from sim.specs.loading import Loading

NOTICED_S = 1.0
"""After which a death is noticed: an assumption."""
LATEST_S = 1e9


@dataclass(frozen=True)
class Coordinated:
    """What each job used (numbers of minibatches in order) and prepared; taken_over: minibatches that a dead job left;
    most_staged: prepared ones at once; samples_per_s: of a job that lived."""

    used: tuple[tuple[int, ...], ...]
    prepared: tuple[int, ...]
    taken_over: int
    most_staged: int
    samples_per_s: float
    seconds: float


@checked
def simulate_coordinated(
    loading: Loading,
    compute_samples_per_s: float,
    batch: int,
    epochs: int = 1,
    deaths: Mapping[int, float] | None = None,
    noticed_s: float = NOTICED_S,
    seed: int = 0,
) -> Coordinated:
    """Return what coordinated jobs do; deaths: job -> when it dies, in s.

    Raises:
        InputError: the jobs are not coordinated, one that dies is none of them, or a number is out of range.
    """
    check(loading, compute_samples_per_s, 1, None)
    if not loading.coordinated:
        raise InputError("loading.coordinated", False, "true")
    if epochs < 1:
        raise InputError("epochs", epochs, "a whole number from 1")
    for job, at_s in (deaths or {}).items():
        if not (isinstance(job, int) and 0 <= job < loading.jobs):
            raise InputError("deaths", job, f"jobs from 0 to {loading.jobs - 1}")
        if not 0 <= at_s <= LATEST_S:
            raise InputError(f"deaths.{job}", at_s, f"a number from 0 to {LATEST_S:g} s")
    if not 0 <= noticed_s <= LATEST_S:
        raise InputError("noticed_s", noticed_s, f"a number from 0 to {LATEST_S:g} s")
    env = simpy.Environment()
    total = epochs * -(-epoch_samples(loading, 1) // batch)
    run = _Run(Node(env, loading, batch, seed), total, batch / compute_samples_per_s)
    for job, at_s in (deaths or {}).items():
        env.process(run.dies(job, at_s, noticed_s))
    env.run(until=run.over)
    seconds = env.now * 1e-9
    return Coordinated(
        used=tuple(map(tuple, run.used)),
        prepared=tuple(run.prepared),
        taken_over=run.taken_over,
        most_staged=run.most_staged,
        samples_per_s=max(map(len, run.used)) * batch / seconds if seconds else 0.0,
        seconds=seconds,
    )


class _Run:
    """The jobs, their shards of `total` minibatches, and what is staged: number -> jobs that have not used it."""

    def __init__(self, node: Node, total: int, step_s: float) -> None:
        loading, self.node, self.env, self.total = node.loading, node, node.env, total
        self.step_ticks = to_ticks(step_s)
        self.jobs = range(loading.jobs)
        self.alive, self.known = set(self.jobs), set(self.jobs)
        """Who lives, and who is known to."""
        self.used: list[list[int]] = [[] for _ in self.jobs]
        self.prepared = [0 for _ in self.jobs]
        self.taken_over = self.most_staged = 0
        self.staged: dict[int, set[int]] = {}
        self.shards = [deque(range(job, total, loading.jobs)) for job in self.jobs]
        self.begun: list[set[int]] = [set() for _ in self.jobs]
        self.ready: list[simpy.Store] = [simpy.Store(self.env) for _ in self.jobs]
        ahead = node.workers * loading.prefetch
        self.ahead = simpy.Container(self.env, ahead, ahead)
        self.over = self.env.event()
        for job in self.jobs:
            self.env.process(self._train(job))
            self._start(job, self.shards[job])

    def _start(self, job: int, shard: deque[int]) -> None:
        for worker in range(self.node.loading.workers):
            self.env.process(self._work(job, job * self.node.loading.workers + worker, shard))

    def _work(self, job: int, worker: int, shard: deque[int]) -> Step:
        """Prepare minibatches of a shard, one after another."""
        while shard and job in self.alive:
            yield self.ahead.get(1)
            if not shard or job not in self.alive:
                self.ahead.put(1)
                return
            number = shard.popleft()
            self.begun[job].add(number)
            yield from self.node.fetch(worker, number)
            yield from self.node.prepare(worker, number)
            if job in self.alive:
                self.begun[job].discard(number)
                self.prepared[job] += 1
                self._stage(number)

    def _stage(self, number: int) -> None:
        self.staged[number] = set(self.known)
        self.most_staged = max(self.most_staged, len(self.staged))
        for job in self.known:
            self.ready[job].put(number)

    def _used(self, number: int, job: int) -> None:
        """Take a job off those that have yet to use a minibatch; the last one makes room for another."""
        left = self.staged[number]
        left.discard(job)
        if not left:
            del self.staged[number]
            self.ahead.put(1)

    def _train(self, job: int) -> Step:
        for _ in range(self.total):
            number = yield self.ready[job].get()
            yield self.env.timeout(self.step_ticks)
            if job not in self.alive:
                return
            self.used[job].append(number)
            self._used(number, job)
        self._end_if_all_have()

    def _end_if_all_have(self) -> None:
        if not self.over.triggered and all(len(self.used[job]) == self.total for job in self.alive):
            self.over.succeed()

    def dies(self, job: int, at_s: float, noticed_s: float) -> Step:
        """Let a job die; once that is noticed the next living one takes its shard over."""
        yield self.env.timeout(to_ticks(at_s))
        self.alive.discard(job)
        self._end_if_all_have()
        yield self.env.timeout(to_ticks(noticed_s))
        self.known.discard(job)
        for number in [n for n, left in self.staged.items() if job in left]:
            self._used(number, job)
        left = deque([*sorted(self.begun[job]), *self.shards[job]])
        for _ in self.begun[job]:
            self.ahead.put(1)  # what the dead one held of the room for staged minibatches
        self.begun[job].clear()
        if left and self.known:
            heir = next((job + n) % len(self.jobs) for n in self.jobs if (job + n) % len(self.jobs) in self.known)
            self.taken_over += len(left)
            self.shards[job] = deque()
            self.shards[heir].extend(left)
            self._start(heir, self.shards[heir])
