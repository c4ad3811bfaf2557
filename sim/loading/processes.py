"""The input pipeline as simpy processes: workers fetch and prepare batches beside whatever else happens in time.

Storage, network and cores are `sim.engine.shared.Shared`; the clock counts ticks of 1 ns. A worker fetches all files of
a batch, then prepares them (serial), or hands them to a preparer and fetches on (staged). Batches of a worker are ahead
of training by `prefetch` at most.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import simpy

from sim.engine.clock import to_ticks
from sim.engine.shared import Shared
from sim.loading.rates import setting
from sim.loading.reads import Expected, FileByFile, Reads
from sim.specs.fields import InputError
from sim.specs.loading import Loading

KEPT_SPANS = 50_000
GRAIN = 64
"""Batches take as long as the sum of so many exponential times at most: workers drift apart, as files of different
sizes make them, and do not fetch all at once for ever (assumption)."""

Step = Generator[simpy.Event, Any, None]


class Span(NamedTuple):
    """What a worker did for a batch, in ticks."""

    worker: int
    batch: int
    kind: Literal["fetch", "prep"]
    start_ns: int
    end_ns: int


@dataclass
class Counts:
    """What has been asked for so far: samples by source (expected numbers unless read file by file), batches handed
    over, bytes read from storage."""

    hits: float = 0.0
    remote: float = 0.0
    misses: float = 0.0
    batches: int = 0
    read_bytes: float = 0.0


@dataclass
class Node:
    """Storage, network, memory and cores of one job on one node, and what a worker does with a batch there."""

    env: simpy.Environment
    loading: Loading
    batch: int
    seed: int = 0
    exact: bool = False
    nodes: int = 1
    network_bytes_per_s: float | None = None
    reads: Reads | None = None
    counts: Counts = field(default_factory=Counts, init=False)
    spans: list[Span] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError("batch", self.batch, "a whole number from 1")
        self.at = setting(self.loading, self.nodes, self.network_bytes_per_s)
        self.storage = Shared(self.env, self.at["read_bytes_per_s"])
        self.network = Shared(self.env, self.at["network_bytes_per_s"])
        self.cores = Shared(self.env, self.at["cores"], 1.0, self.at["sharing_loss"])
        self._random = np.random.default_rng(self.seed)
        if self.reads is None:
            exact = self.exact
            self.reads = FileByFile(self.loading, self.nodes, self.seed) if exact else Expected(self.loading, self.at)

    @property
    def workers(self) -> int:
        """How many work for this job, or for all coordinated ones."""
        return int(self.at["workers"])

    def varied(self) -> float:
        """Return how much longer than the mean a batch takes."""
        grain = min(self.batch, GRAIN)
        return float(self._random.gamma(grain, 1 / grain))

    def fetch(self, worker: int, number: int) -> Step:
        """Wait until a batch's files are there."""
        begin, size, vary = self.env.now, self.loading.dataset.sample_bytes, self.varied()
        assert self.reads is not None
        local, remote, missed = self.reads.take(self.batch)
        counts = self.counts
        counts.hits, counts.remote = counts.hits + local, counts.remote + remote
        counts.misses, counts.read_bytes = counts.misses + missed, counts.read_bytes + missed * size
        alone = (local + remote) * size / self.at["memory_bytes_per_s"] + missed * self.at["latency_s"]
        yield self.env.timeout(to_ticks(alone * vary))
        yield self.storage.use(missed * size * vary)
        yield self.network.use(remote * size * vary)
        self._span(worker, number, "fetch", begin)

    def prepare(self, worker: int, number: int) -> Step:
        """Wait until a batch is decoded and augmented."""
        begin = self.env.now
        yield self.cores.use(self.batch * self.at["prep_s"] * self.varied())
        self._span(worker, number, "prep", begin)

    def _span(self, worker: int, number: int, kind: Literal["fetch", "prep"], begin: float) -> None:
        if len(self.spans) < KEPT_SPANS:
            self.spans.append(Span(worker, number, kind, int(begin), int(self.env.now)))


class Loader(Node):
    """The loader of one job on one node, at work from the moment it is made.

    batch: samples that a node is handed at once; exact: file by file through the cache, else by expected numbers.
    `cores` is the `Shared` that training may use too, `counts` what was asked for so far, `spans` the first things that
    workers did. Nodes and jobs that are not coordinated take equal shares of what they have in common; of coordinated
    jobs every one gets every batch at the same time.

    Raises:
        InputError: the batch is empty.
    """

    def __init__(
        self,
        env: simpy.Environment,
        loading: Loading,
        batch: int,
        seed: int = 0,
        exact: bool = False,
        nodes: int = 1,
        network_bytes_per_s: float | None = None,
        reads: Reads | None = None,
    ) -> None:
        super().__init__(env, loading, batch, seed, exact, nodes, network_bytes_per_s, reads)
        ahead = self.workers * loading.prefetch
        self._ahead = simpy.Container(env, ahead, ahead)
        self._ready: simpy.Store = simpy.Store(env)
        self._fetched: simpy.Store = simpy.Store(env)
        self._begun = 0
        for worker in range(self.workers):
            if loading.topology == "serial":
                env.process(self._serial(worker))
            else:
                env.process(self._fetcher(worker))
                env.process(self._preparer(worker))

    def take(self) -> simpy.Event:
        """Return an event that happens when a batch is handed over, for which training's own process needs a core."""
        taken = self._ready.get()
        taken.callbacks.append(self._handed_over)
        return self.env.process(self._received(taken)) if self.loading.handover_s else taken

    def _handed_over(self, _: simpy.Event) -> None:
        self.counts.batches += 1
        self._ahead.put(1)

    def _received(self, taken: simpy.Event) -> Step:
        yield taken
        yield self.cores.use(self.batch * self.loading.handover_s)

    def _next(self) -> int:
        self._begun += 1
        return self._begun - 1

    def _serial(self, worker: int) -> Step:
        while True:
            yield self._ahead.get(1)
            number = self._next()
            yield from self.fetch(worker, number)
            yield from self.prepare(worker, number)
            self._ready.put(number)

    def _fetcher(self, worker: int) -> Step:
        while True:
            yield self._ahead.get(1)
            number = self._next()
            yield from self.fetch(worker, number)
            self._fetched.put(number)

    def _preparer(self, worker: int) -> Step:
        while True:
            number = yield self._fetched.get()
            yield from self.prepare(worker, number)
            self._ready.put(number)
