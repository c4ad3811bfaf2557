"""Workers that share storage, network and cores: a closed queueing network, solved exactly by mean value analysis.

Whoever wants a share when others want it too gets less for a while, although there is enough of it in the mean: two
workers that fetch half of their time do not get all of one core. Delays and shares divided equally make a network of
product form, whose throughput depends on mean demands alone (Baskett, Chandy, Muntz and Palacios, J. ACM 22(2), 1975;
Reiser and Lavenberg, J. ACM 27(2), 1980). All arguments broadcast against each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

HALVINGS = 30
MOST = 512
"""More workers are taken together in so many groups: tiny probabilities of larger networks would vanish."""


@dataclass(frozen=True)
class Network:
    """What a sample asks for, in seconds, each [...]: of its worker alone, of each resource that one user may take
    whole (bandwidths), and of one core; `cores` are divided equally, one at most to each worker and to each of
    `trainer` threads, which are there `busy` (0 - 1) of the time."""

    delay_s: ArrayLike
    shared_s: tuple[ArrayLike, ...]
    core_s: ArrayLike
    cores: ArrayLike
    trainer: ArrayLike = 0.0
    busy: ArrayLike = 0.0
    sharing_loss: ArrayLike = 0.0
    """Share of a core that is lost while threads take turns on it."""

    def share(self, threads: ArrayLike) -> Array:
        """Return the core that each of so many threads gets."""
        turns = self.cores / np.maximum(threads, LEAST)
        return np.where(turns < 1, turns * (1 - np.asarray(self.sharing_loss)), 1.0)

    def worker_share(self, preparing: ArrayLike) -> Array:
        """Return the core that each of so many preparing workers gets in the mean."""
        alone = self.share(preparing)
        if not np.any(self.busy):
            return alone
        beside = self.share(preparing + np.asarray(self.trainer))
        return np.asarray(alone + np.asarray(self.busy) * (beside - alone))


LEAST = 1e-300
"""Stands for nothing in a denominator."""


class Level(NamedTuple):
    """A number of workers, samples/s [...] and the mean core of each trainer thread while it is there [...]."""

    workers: int
    samples_per_s: Array
    trainer_share: Array


def levels(network: Network, most: int) -> Iterator[Level]:
    """Yield every number of workers from 1 to `most`.

    The distribution over how many prepare follows from that with one worker less; that nobody does, from the ratio of
    throughputs with and without cores. Both recursions only add and multiply what is positive.
    """
    delay, core = np.asarray(network.delay_s, float), np.asarray(network.core_s, float)
    shared = [np.asarray(s, float) for s in network.shared_s]
    parts = (delay, core, *shared, *(np.asarray(a, float) for a in (network.cores, network.trainer, network.busy)))
    shape = np.broadcast_shapes(*(p.shape for p in parts))
    preparing = np.zeros((most + 1, *shape))
    preparing[0] = 1.0
    number = np.arange(most + 1).reshape(-1, *(1 for _ in shape))
    per_worker = np.broadcast_to(core / network.worker_share(number[1:]), (most, *shape))
    trainer = np.broadcast_to(network.share(number + np.asarray(network.trainer)), (most + 1, *shape))
    queues, bare = [np.zeros(shape) for _ in shared], [np.zeros(shape) for _ in shared]
    for n in range(1, most + 1):
        waits = [s * (1 + q) for s, q in zip(shared, queues, strict=True)]
        on_cores = (per_worker[:n] * preparing[:n]).sum(axis=0)
        rate = n / np.maximum(delay + on_cores + sum(waits), LEAST)
        bare_waits = [s * (1 + q) for s, q in zip(shared, bare, strict=True)]
        bare_rate = n / np.maximum(delay + sum(bare_waits), LEAST)
        queues, bare = [rate * w for w in waits], [bare_rate * w for w in bare_waits]
        preparing[1 : n + 1] = rate * per_worker[:n] / number[1 : n + 1] * preparing[:n]
        preparing[0] *= rate / bare_rate
        yield Level(n, rate, (preparing[: n + 1] * trainer[: n + 1]).sum(axis=0))


def throughput(network: Network, workers: ArrayLike) -> Array:
    """Return samples/s of so many workers [...]."""
    size, grouped, number = _groups(network, workers)
    return np.asarray(size * _at(grouped, number).samples_per_s)


def _groups(network: Network, workers: ArrayLike) -> tuple[Array, Network, NDArray[np.int64]]:
    """Return workers in at most `MOST` groups: the size of a group, the network as a group sees it, their number."""
    number = np.asarray(workers)
    size = np.asarray(np.maximum(1.0, number / MOST))
    if not np.any(size > 1):
        return size, network, number
    shared = tuple(size * s for s in network.shared_s)
    cores, trainer = network.cores / size, network.trainer / size
    return size, replace(network, shared_s=shared, cores=cores, trainer=trainer), np.minimum(number, MOST)


def _at(network: Network, workers: NDArray[np.int64]) -> Level:
    """Return the level of so many workers, which may differ from setting to setting."""
    rate: Array = np.zeros(())
    share: Array = np.zeros(())
    for level in levels(network, int(workers.max())):
        here = workers == level.workers
        if np.any(here):
            rate = np.where(here, level.samples_per_s, rate)
            share = np.where(here, level.trainer_share, share)
    return Level(int(workers.max()), rate, share)


def beside_trainer(
    network: Network, workers: ArrayLike, compute_samples_per_s: ArrayLike, elsewhere_s: ArrayLike = 0.0
) -> Array:
    """Return samples/s of workers and of a trainer that needs cores of the same node while it computes [...].

    The trainer is there for a share u of the time; then it makes G times the core that each of its threads gets, and
    workers get less. If workers would still be faster than a trainer that is always there (u = 1), full queues hold
    some of them back: as many work as make what it takes. Otherwise u is where both are equally fast; a trainer that
    is there more often makes more and slows workers, so that halving finds it. `elsewhere_s`: what a sample takes it
    besides, without a core (a device), so that it is there for a share of that u only.
    """
    elsewhere = np.asarray(elsewhere_s, float)
    if not np.any(network.trainer):
        return np.asarray(np.minimum(_trained(compute_samples_per_s, 1.0, elsewhere), throughput(network, workers)))
    size, grouped, number = _groups(network, workers)
    most, elsewhere = np.asarray(compute_samples_per_s, float) / size, elsewhere * size
    on_cores = 1 / (1 + elsewhere * most)
    held_back = _held_back(replace(grouped, busy=on_cores), number, most, elsewhere)
    low, high = np.zeros_like(held_back), np.ones_like(held_back)
    for _ in range(HALVINGS):
        busy = (low + high) / 2
        level = _at(replace(grouped, busy=busy * on_cores), number)
        faster = busy * _trained(most, level.trainer_share, elsewhere) > level.samples_per_s
        low, high = np.where(faster, low, busy), np.where(faster, busy, high)
    loaded = _at(replace(grouped, busy=high * on_cores), number).samples_per_s
    waiting = np.minimum(_trained(most, 1.0, elsewhere), loaded)
    return np.asarray(size * np.where(np.isnan(held_back), waiting, held_back))


def _trained(most: ArrayLike, share: ArrayLike, elsewhere_s: Array) -> Array:
    """Return samples/s of a trainer that never waits, makes `most` on cores of its own and has a share of them."""
    return np.asarray(1 / (elsewhere_s + 1 / np.maximum(np.asarray(most) * share, LEAST)))


def _held_back(network: Network, workers: NDArray[np.int64], most: Array, elsewhere_s: Array) -> Array:
    """Return the rate at which workers, fewer or as many, are as fast as a trainer that is always there; else NaN."""
    before_rate: Array = np.zeros(())
    before_train = _trained(most, network.share(network.trainer), elsewhere_s)
    found: Array = np.full(np.broadcast_shapes(workers.shape, before_train.shape), np.nan)
    for level in levels(network, int(workers.max())):
        rate, train = level.samples_per_s, _trained(most, level.trainer_share, elsewhere_s)
        part = (before_train - before_rate) / np.maximum(rate - before_rate + before_train - train, LEAST)
        meets = (rate >= train) & (workers >= level.workers)
        found = np.where(np.isnan(found) & meets, before_train + part * (train - before_train), found)
        before_rate, before_train = rate, train
    return found
