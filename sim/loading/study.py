"""The study of nine networks as one sweep: what stalls where, over cached share, cores, storage and cache policy.

Servers, networks and datasets are those of Mohan et al. (arXiv 2007.06775); loaders are staged, as DALI's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, get_args

import numpy as np

from sim.loading.laws import laws
from sim.loading.networks import GPUS, NETWORKS, Network, samples_per_s
from sim.loading.predict import bottleneck_of, shares
from sim.loading.queueing import Array
from sim.loading.rates import NO_NETWORK, Rates, rates
from sim.specs.catalog import dataset
from sim.specs.fields import InputError
from sim.specs.loading import MEMORY_BYTES_PER_S, Cache

PREP_BYTES_PER_S = {"image classification": 30e6, "object detection": 30e6, "audio classification": 118e6}
"""Encoded bytes that one core decodes and augments in a second: assumptions after measurements on one core of this
project's host (JPEG by pillow 27 MB/s, FLAC by libsndfile 118 MB/s)."""


@dataclass(frozen=True)
class Server:
    """A server of the study; network_bytes_per_s: to each other server; cache_bytes: of memory left for files."""

    name: str
    gpu: str
    gpus: int
    cores: int
    cache_bytes: float
    read_bytes_per_s: float
    network_bytes_per_s: float


SERVERS: Mapping[str, Server] = {
    s.name: s
    for s in (
        Server("SSD-V100", "v100", 8, 24, 400e9, 530e6, 5e9),
        Server("HDD-1080Ti", "gtx-1080-ti", 8, 24, 400e9, 15e6, 5e9),
    )
}
"""arXiv 2007.06775: eight GPUs, 24 cores, 500 GB of memory, random reads of 530 and 15 - 50 MB/s. Assumptions: 100 GB
of the memory are not for files; Ethernet of 40 Gb/s."""

CACHED = tuple(round(0.05 * n, 2) for n in range(21))
CORES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
STORAGES: Mapping[str, float] = {"hdd": 15e6, "hdd-fast": 50e6, "sata-ssd": 530e6, "nvme": 3.2e9}
POLICIES: tuple[Cache, ...] = ("lru", "minio")


class Case(NamedTuple):
    """A network on one of its datasets."""

    network: Network
    data: str


CASES = tuple(Case(network, data) for network in NETWORKS for data in network.datasets)


def columns(cases: Sequence[Case], server: Server, gpus: int | None = None) -> dict[str, Any]:
    """Return numbers of cases [case] on a server: what `sim.loading.rates.rates` reads, and `most`.

    gpus: of one job, by default all of the server's.
    """
    entries = [dataset(case.data) for case in cases]
    rate = [samples_per_s(case.network, GPUS[server.gpu]) for case in cases]
    prep = [e.sample_bytes / PREP_BYTES_PER_S[c.network.task] for e, c in zip(entries, cases, strict=True)]
    return {
        "most": np.array(rate) * (gpus or server.gpus),
        "dataset_bytes": np.array([entry.size_bytes for entry in entries]),
        "sample_bytes": np.array([entry.sample_bytes for entry in entries]),
        "prep_s": np.array(prep),
        "cache_bytes": server.cache_bytes,
        "nodes": 1,
        "sharing_jobs": 1,
        "memory_bytes_per_s": MEMORY_BYTES_PER_S,
        "read_bytes_per_s": server.read_bytes_per_s,
        "network_bytes_per_s": NO_NETWORK,
        "latency_s": 0.0,
        "workers": server.cores,
        "cores": server.cores,
        "trainer_cores": 0,
        "handover_s": 0.0,
        "sharing_loss": 0.0,
    }


class Setting(NamedTuple):
    """A row of the sweep."""

    network: str
    data: str
    storage: str
    cached: float
    cores: int
    policy: str
    samples_per_s: float
    compute_samples_per_s: float
    fetch_samples_per_s: float
    prep_samples_per_s: float
    prep_stall_fraction: float
    fetch_stall_fraction: float
    bottleneck: str


@dataclass(frozen=True)
class Study:
    """Rates of every policy at every setting [case, storage, cached, cores] of a server."""

    server: Server
    cases: tuple[Case, ...]
    storages: tuple[str, ...]
    cached: tuple[float, ...]
    cores: tuple[int, ...]
    most: Array
    found: Mapping[Cache, Rates]

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """How many cases, storages, shares and cores there are."""
        return len(self.cases), len(self.storages), len(self.cached), len(self.cores)

    @property
    def settings(self) -> int:
        """How many rows there are."""
        return int(np.prod(self.shape)) * len(self.found)

    def stalls(self, policy: Cache) -> dict[str, Array]:
        """Return compute, prep and fetch as shares of an epoch's time, each [case, storage, cached, cores]."""
        made = shares(self.found[policy], self.most)
        return {name: np.broadcast_to(value, self.shape) for name, value in made.items()}

    def table(self, part: str, policy: Cache, storage: str, cores: int) -> dict[str, dict[str, float]]:
        """Return the share of an epoch's time that a part takes (compute, prep, fetch): case -> cached share -> it.

        Raises:
            InputError: the study has no such storage or number of cores.
        """
        for name, value, held in (("storage", storage, self.storages), ("cores", cores, self.cores)):
            if value not in held:
                raise InputError(name, value, "one of " + ", ".join(map(str, held)))
        values = self.stalls(policy)[part][:, self.storages.index(storage), :, self.cores.index(cores)]
        names = [f"{case.network.name}, {case.data}" for case in self.cases]
        shares = [_label(share) for share in self.cached]
        return {n: dict(zip(shares, map(float, row), strict=True)) for n, row in zip(names, values, strict=True)}

    def rows(self) -> Iterator[Setting]:
        """Yield every setting."""
        for policy, rate in self.found.items():
            stalls = self.stalls(policy)
            parts = {
                "samples_per_s": rate.steady,
                "compute_samples_per_s": self.most,
                "fetch_samples_per_s": rate.fetch,
                "prep_samples_per_s": rate.prep,
                "prep_stall_fraction": stalls["prep"],
                "fetch_stall_fraction": stalls["fetch"],
            }
            whole = {name: np.broadcast_to(part, self.shape) for name, part in parts.items()}
            for at in np.ndindex(self.shape):
                case, store, share, cores = at
                values = {name: float(part[at]) for name, part in whole.items()}
                yield Setting(
                    network=self.cases[case].network.name,
                    data=self.cases[case].data,
                    storage=self.storages[store],
                    cached=self.cached[share],
                    cores=self.cores[cores],
                    policy=policy,
                    bottleneck=self._bottleneck(values),
                    **values,
                )

    @staticmethod
    def _bottleneck(values: Mapping[str, float]) -> str:
        stalls = values["fetch_stall_fraction"], values["prep_stall_fraction"]
        return bottleneck_of(*stalls, values["fetch_samples_per_s"], values["prep_samples_per_s"])


def _label(share: float) -> str:
    """Return a share as a label, different for different shares: `0.5 %`, `35 %` (no break)."""
    return f"{100 * share:.6g}\u00a0%"


def hit_shares(cached: Sequence[float] = CACHED, nodes: int = 1, jobs: int = 1) -> dict[str, dict[str, float]]:
    """Return the share of reads that are hits after the first epoch, by policy and label (`35 %`) of the cached share.

    jobs: that share a node's cache, each in an order of its own.
    """
    at = columns(CASES[:1], SERVERS["SSD-V100"]) | {"nodes": nodes, "sharing_jobs": jobs}
    at["cache_bytes"] = at["dataset_bytes"] * np.array(cached)
    found = {policy: laws(policy)(at) for policy in get_args(Cache) if policy != "none"}
    hits = {policy: np.broadcast_to(one["local"] + one["remote"], len(cached)) for policy, one in found.items()}
    return {p: {_label(x): float(hit) for x, hit in zip(cached, held, strict=True)} for p, held in hits.items()}


def study(
    server: str = "SSD-V100",
    cached: Sequence[float] = CACHED,
    cores: Sequence[int] = CORES,
    storages: Mapping[str, float] = STORAGES,
    policies: Sequence[Cache] = POLICIES,
) -> Study:
    """Return all nine networks on all their datasets at every setting; cached: shares of the dataset (0 - 1).

    One job on all of the server's GPUs; workers as many as cores.
    """
    made = SERVERS[server]
    at = columns(CASES, made)
    at = {key: np.reshape(value, (-1, 1, 1, 1)) if np.ndim(value) else value for key, value in at.items()}
    number = np.array(cores)
    at |= {"cores": number, "workers": number, "read_bytes_per_s": np.array(list(storages.values()))[:, None, None]}
    at["cache_bytes"] = at["dataset_bytes"] * np.array(cached)[:, None]
    found = {policy: rates(policy, "staged", at, at["most"]) for policy in policies}
    return Study(made, CASES, tuple(storages), tuple(cached), tuple(cores), at["most"], found)
