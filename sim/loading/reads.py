"""Where a node's reads are answered, batch by batch: by the law's expected shares, or file by file."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from sim.loading.caches import CACHES
from sim.loading.laws import laws
from sim.loading.rates import Setting
from sim.specs.loading import Loading


class Sources(NamedTuple):
    """How many files come from the node's own cache, from other nodes' and from storage."""

    local: float
    remote: float
    storage: float


class Reads(Protocol):
    """What the next files of a node are."""

    def take(self, count: int) -> Sources:
        """Return where so many files come from."""
        ...


class Expected:
    """The shares of the laws: those of the first epoch for as many files as a node reads of it, then the others'."""

    def __init__(self, loading: Loading, at: Setting, warm: bool = False) -> None:
        made = [laws(loading.cache, first)(at) for first in (True, False)]
        self._first, self._later = ((float(one["local"]), float(one["remote"])) for one in made)
        self._cold = 0 if warm else epoch_samples(loading, at["nodes"])

    def take(self, count: int) -> Sources:
        """Return the expected numbers."""
        cold = min(count, self._cold)
        self._cold -= cold
        local, remote = (cold * a + (count - cold) * b for a, b in zip(self._first, self._later, strict=True))
        return Sources(local, remote, count - local - remote)


class Cached:
    """Everything lies in the node's memory."""

    def take(self, count: int) -> Sources:
        """Return that all of them do."""
        return Sources(count, 0, 0)


class FileByFile:
    """Every epoch a new random order, every read through the cache; the reads of other nodes and jobs go beside it."""

    def __init__(self, loading: Loading, nodes: int, seed: int) -> None:
        data, jobs = loading.dataset, 1 if loading.coordinated else loading.jobs
        held = int(min(loading.cache_bytes, data.size_bytes) / data.sample_bytes + 1e-6)
        self.cache = CACHES[loading.cache](held, nodes)
        self.items: list[int] = []
        """What node 0 has read for the first job, in order; of the last epoch and this one."""
        self._nodes, self._samples = nodes, epoch_samples(loading, nodes)
        seeds = np.random.default_rng(seed).spawn(jobs)
        self._orders = [self._order(loading.dataset.samples, one) for one in seeds]

    def _order(self, samples: int, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
        """Yield what every node reads next, epoch after epoch; samples that do not divide among nodes are left out."""
        while True:
            epoch = rng.permutation(samples)[: self._samples * self._nodes].reshape(self._samples, self._nodes)
            for row in epoch.tolist():
                yield tuple(row)

    def take(self, count: int) -> Sources:
        """Return the numbers of one batch of node 0."""
        found = {"local": 0, "remote": 0, "storage": 0}
        for _ in range(count):
            for job, order in enumerate(self._orders):
                for node, item in enumerate(next(order)):
                    source = self.cache.read(item, node)
                    if (job, node) == (0, 0):
                        found[source] += 1
                        self.items.append(item)
        del self.items[: -2 * self._samples]
        return Sources(**found)


def epoch_samples(loading: Loading, nodes: int) -> int:
    """Return how many samples a node reads in an epoch."""
    return max(1, loading.dataset.samples // nodes)
