"""How many samples a second reach training: laws and queueing network together, for one setting or arrays of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sim.loading.laws import laws
from sim.loading.queueing import LEAST, Array, Network, beside_trainer, throughput
from sim.specs.loading import Cache, Loading, Topology

NO_NETWORK = 1e300
"""Bytes/s of a network that nothing is read over."""


@dataclass(frozen=True)
class Rates:
    """Samples/s of one job on one node [...]: of fetching and of preparing alone, of the loader with what it reads now
    and with everything cached, both up to what training takes; shares of reads from the own and from other caches."""

    fetch: Array
    prep: Array
    steady: Array
    cached: Array
    local: Array
    remote: Array


Setting = Mapping[str, Any]
"""Numbers of a pipeline by name, each one value or an array; names are those of `setting`."""


def setting(loading: Loading, nodes: int = 1, network_bytes_per_s: float | None = None) -> dict[str, Any]:
    """Return the numbers of one job on one node.

    Jobs that do not share their work have equal shares of storage, network and cores, and workers of their own; of the
    memory that caches files nobody has a share: what one has read is there for all. Coordinated jobs are one with the
    workers of all. Storage of the whole cluster is divided equally among its nodes.
    """
    apart = 1 if loading.coordinated else loading.jobs
    readers = apart * (nodes if loading.storage.shared == "cluster" else 1)
    network = NO_NETWORK if network_bytes_per_s is None else network_bytes_per_s / apart
    return {
        "cache_bytes": loading.cache_bytes,
        "dataset_bytes": loading.dataset.size_bytes,
        "sample_bytes": loading.dataset.sample_bytes,
        "nodes": nodes,
        "sharing_jobs": apart,
        "memory_bytes_per_s": loading.memory_bytes_per_s,
        "read_bytes_per_s": loading.storage.read_bytes_per_s / readers,
        "network_bytes_per_s": network,
        "latency_s": loading.storage.latency_s,
        "prep_s": loading.prep_s,
        "handover_s": loading.handover_s,
        "workers": loading.workers * (loading.jobs if loading.coordinated else 1),
        "cores": loading.cores / apart,
        "trainer_cores": loading.trainer_cores / apart,
        "sharing_loss": loading.sharing_loss,
    }


def steady_rate(policy: Cache, topology: Topology, at: Setting, most: ArrayLike) -> Array:
    """Return the samples/s of settings that train at most `most` samples/s, once caches are full."""
    return _loaded(topology, *_fetching(laws(policy)(at)), at, most)


def rates(policy: Cache, topology: Topology, at: Setting, most: ArrayLike, first: bool = False) -> Rates:
    """Return the rates of settings that train at most `most` samples/s; first: in the first epoch."""
    asked = laws(policy, first)(at)
    now = _fetching(asked)
    cached: tuple[Any, Any] = np.divide(at["sample_bytes"], at["memory_bytes_per_s"]), ()
    workers, hand = at["workers"], np.asarray(at["handover_s"], float)
    with np.errstate(divide="ignore"):  # nothing to prepare: as fast as one likes
        prep_s = np.asarray(at["prep_s"], float)
        alone, turns = np.divide(workers, prep_s), np.divide(at["cores"], prep_s + hand)
        prep = np.minimum(alone, np.where(workers > at["cores"], 1 - np.asarray(at["sharing_loss"]), 1.0) * turns)
    return Rates(
        fetch=throughput(Network(*now, 0.0, 1.0), workers),
        prep=prep,
        steady=_loaded(topology, *now, at, most),
        cached=_loaded(topology, *cached, at, most),
        local=asked["local"],
        remote=asked["remote"],
    )


def _fetching(asked: Setting) -> tuple[Any, tuple[Any, ...]]:
    return asked["delay_s"], (asked["storage_s"], asked["network_s"])


def _loaded(topology: Topology, delay: Any, shared: tuple[Any, ...], at: Setting, most: ArrayLike) -> Array:
    """Return samples/s that are fetched, prepared and trained on.

    A worker of the serial topology fetches a sample, then prepares it; staged, so many fetch beside as many who
    prepare. The training process needs a core to be handed a sample, and those of the trainer, if it has any.
    """
    most, hand = np.asarray(most, float), np.asarray(at["handover_s"], float)
    on_cores = np.asarray(at["trainer_cores"]) > 0
    core_s, elsewhere_s = hand + np.where(on_cores, 1 / most, 0.0), np.where(on_cores, 0.0, 1 / most)
    threads = np.where(on_cores, at["trainer_cores"], hand > 0)
    cores = at["prep_s"], at["cores"], threads, 0.0, at["sharing_loss"]
    trainer = (at["workers"], 1 / np.maximum(core_s, LEAST), elsewhere_s)
    if topology == "serial":
        return beside_trainer(Network(delay, shared, *cores), *trainer)
    fetched = throughput(Network(delay, shared, 0.0, 1.0), at["workers"])
    return np.minimum(fetched, beside_trainer(Network(0.0, (), *cores), *trainer))
