"""What CoorDL (arXiv 2007.06775) publishes of its gains over DALI, beside what the laws say on the study's servers.

Nothing is fitted to it. Published are maxima over models and datasets; here they are the maxima over the nine networks
on theirs. DALI reads through the page cache (LRU), every job for itself; CoorDL keeps files by MinIO's rule, its nodes
share their caches, and jobs of one server share fetching and preparing.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sim.loading.rates import rates
from sim.loading.study import CASES, SERVERS, Case, columns
from sim.specs.loading import Cache

PAPER = "arXiv 2007.06775v1, abstract"
JOBS = 8
NODES = 2


class Published(NamedTuple):
    """At most how many times as fast training is, and where."""

    name: str
    most: float
    source: str
    settings: str


class Band(NamedTuple):
    """A published maximum beside ours: over all cases, and the case of the largest."""

    published: Published
    least: float
    median: float
    most: float
    case: Case


SEARCH = Published(
    "hyper-parameter search, one server", 5.7, PAPER, f"SSD-V100, {JOBS} jobs of one GPU, 400 GB of cache"
)
ONE_SERVER = Published(
    "training on one server", 2.0, PAPER, "SSD-V100 and HDD-1080Ti, one job of eight GPUs, 400 GB of cache"
)
SERVERS_HDD = Published(
    "training on several servers, hard disks",
    15.0,
    PAPER,
    f"{NODES} HDD-1080Ti, image classification on OpenImages, 400 GB of cache each, disks of 15 and 50 MB/s",
)
PUBLISHED = (SEARCH, ONE_SERVER, SERVERS_HDD)

Gains = dict[Case, float]


def gains(before: Mapping[str, Any], after: Mapping[str, Any], policies: tuple[Cache, Cache], cases: Any) -> Gains:
    """Return by case how many times as fast a job is with the second settings and policy."""
    first, second = (
        rates(policy, "staged", at, at["most"]).steady for policy, at in zip(policies, (before, after), strict=True)
    )
    return {case: float(gain) for case, gain in zip(cases, np.divide(second, first), strict=True)}


def search() -> list[Gains]:
    """Return the gains of jobs that share one fetch and preparation over jobs for themselves."""
    server = SERVERS["SSD-V100"]
    together = columns(CASES, server, server.gpus // JOBS)
    shared = ("read_bytes_per_s", "cores", "workers")
    apart = together | {key: together[key] / JOBS for key in shared} | {"sharing_jobs": JOBS}
    apart["workers"] = server.cores // JOBS
    return [gains(apart, together, ("lru", "minio"), CASES)]


def one_server() -> list[Gains]:
    """Return the gains of MinIO's cache over the page cache, on both servers."""
    held = [columns(CASES, server) for server in SERVERS.values()]
    return [gains(at, at, ("lru", "minio"), CASES) for at in held]


def several_servers() -> list[Gains]:
    """Return the gains of partitioned caches over page caches, with a slow and a fast disk."""
    server = SERVERS["HDD-1080Ti"]
    cases = [case for case in CASES if case.data == "openimages-extended"]
    at = columns(cases, server) | {"nodes": NODES, "network_bytes_per_s": server.network_bytes_per_s}
    disks = [at | {"read_bytes_per_s": rate} for rate in (15e6, 50e6)]
    return [gains(one, one, ("lru", "partitioned"), cases) for one in disks]


MEASURES: tuple[tuple[Published, Callable[[], list[Gains]]], ...] = (
    (SEARCH, search),
    (ONE_SERVER, one_server),
    (SERVERS_HDD, several_servers),
)


def bands() -> tuple[Band, ...]:
    """Return every published maximum beside ours; of several disks, `least` and `most` are their maxima."""
    made = []
    for published, measure in MEASURES:
        runs = measure()
        best = [max(run.items(), key=lambda held: held[1]) for run in runs]
        values = [gain for run in runs for gain in run.values()]
        case, most = max(best, key=lambda held: held[1])
        made.append(Band(published, min(gain for _, gain in best), float(np.median(values)), most, case))
    return tuple(made)
