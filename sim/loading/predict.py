"""How fast a job is fed, where it waits, and what would end the waiting."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

import numpy as np

from sim.loading.laws import laws, wanted
from sim.loading.queueing import LEAST
from sim.loading.rates import Rates, rates, setting, steady_rate
from sim.specs.arguments import checked
from sim.specs.fields import InputError
from sim.specs.loading import Loading
from sim.units import digits3, many, percent, si

TOLERANCE = 0.01
"""Stalls of less than this share of an epoch are none, and this much less than the most is as good as it."""
MOST_WORKERS = 4_096


@dataclass(frozen=True)
class Prediction:
    """What one job of one node gets. Rates in samples/s, stalls as shares of an epoch's time, one in which caches are
    full if not said otherwise: any after the first, but of several nodes whose caches are not partitioned a later one.

    Stalls are the differential phases of DS-Analyzer: t1 an epoch of training alone, t2 as it is, t3 with everything in
    memory; prep stall (t3 - t1)/t2, fetch stall (t2 - t3)/t2. hit_fraction: of reads, from the node's own memory and
    that of other nodes (of these `remote_fraction`). read_bytes_per_epoch: from storage, by all jobs and nodes. prep
    is infinite where nothing is prepared. recommended_cache_bytes: x* (`laws.wanted_share`) of the dataset (a node's
    part of it where nodes partition it, unless the network is too slow for that), 0 where storage is fast enough;
    recommended_cores: least for which P is what training takes; recommended_workers: least that are within 1 % of what
    any number does on these cores.
    """

    samples_per_s: float
    compute_samples_per_s: float
    fetch_samples_per_s: float
    prep_samples_per_s: float
    fetch_stall_fraction: float
    prep_stall_fraction: float
    bottleneck: str
    hit_fraction: float
    remote_fraction: float
    epoch_s: float
    first_epoch_s: float
    read_bytes_per_epoch: float
    recommended_cache_bytes: float
    recommended_cores: int
    recommended_workers: int
    why: str
    assumptions: tuple[str, ...]


@checked
def predict(
    loading: Loading, compute_samples_per_s: float, nodes: int = 1, network_bytes_per_s: float | None = None
) -> Prediction:
    """Return how fast training is with this input pipeline; compute_samples_per_s: of one job on one node, never
    waiting; network_bytes_per_s: what a node gets from the others, for cache partitioned.

    Raises:
        InputError: a rate or number of nodes is not positive, or the network of partitioned nodes is not said.
    """
    check(loading, compute_samples_per_s, nodes, network_bytes_per_s)
    at = setting(loading, nodes, network_bytes_per_s)
    steady = rates(loading.cache, loading.topology, at, compute_samples_per_s)
    first = rates(loading.cache, loading.topology, at, compute_samples_per_s, first=True)
    rate, samples = float(steady.steady), loading.dataset.samples / nodes
    stalls = shares(steady, compute_samples_per_s)
    fetch, prep = float(stalls["fetch"]), float(stalls["prep"])
    bottleneck = bottleneck_of(fetch, prep, float(steady.fetch), float(steady.prep))
    missed = 1 - float(steady.local + steady.remote)
    parted, cache = _wanted_cache(loading, at, min(float(steady.prep), compute_samples_per_s))
    cores = wanted_cores(loading, compute_samples_per_s)
    workers = _wanted_workers(loading, at, compute_samples_per_s)
    if bottleneck == "prep":
        why = _preparing(loading, at, steady, fetch + prep, cores, float(compute_samples_per_s))
    else:
        why = _why(loading, bottleneck, steady, fetch + prep, _cached(cache, parted), workers)
    return Prediction(
        samples_per_s=rate,
        compute_samples_per_s=float(compute_samples_per_s),
        fetch_samples_per_s=float(steady.fetch),
        prep_samples_per_s=float(steady.prep),
        fetch_stall_fraction=fetch,
        prep_stall_fraction=prep,
        bottleneck=bottleneck,
        hit_fraction=1 - missed,
        remote_fraction=float(steady.remote),
        epoch_s=samples / rate,
        first_epoch_s=samples / float(first.steady),
        read_bytes_per_epoch=missed * loading.dataset.size_bytes * (1 if loading.coordinated else loading.jobs),
        recommended_cache_bytes=cache,
        recommended_cores=cores,
        recommended_workers=workers,
        why=why,
        assumptions=(*loading.assumptions, *_assumed(loading, nodes)),
    )


MOST_SAMPLES_PER_S = 1e12
"""Far above any training: the workers that would feed more could no longer be counted."""


def check(loading: Loading, compute_samples_per_s: float, nodes: int, network_bytes_per_s: float | None) -> None:
    """Refuse rates and numbers that cannot be; raises InputError."""
    if not 0 < compute_samples_per_s <= MOST_SAMPLES_PER_S:
        allowed = f"a number above 0, at most {MOST_SAMPLES_PER_S:g} samples/s"
        raise InputError("compute_samples_per_s", compute_samples_per_s, allowed)
    if nodes < 1:
        raise InputError("nodes", nodes, "a whole number from 1")
    if network_bytes_per_s is not None and not 0 < network_bytes_per_s < inf:
        raise InputError("network_bytes_per_s", network_bytes_per_s, "a number above 0 B/s")
    if network_bytes_per_s is None and loading.cache == "partitioned" and nodes > 1:
        raise InputError("network_bytes_per_s", None, "required: nodes of cache partitioned read from each other")


def shares(found: Rates, compute_samples_per_s: Any) -> dict[str, Any]:
    """Return the shares of an epoch's time: compute, prep (stall), fetch (stall), each [...]; they sum to 1."""
    compute, cached = found.steady / compute_samples_per_s, found.steady / found.cached
    cached = np.clip(cached, compute, 1.0)  # rounding
    return {"compute": compute, "prep": cached - compute, "fetch": 1 - cached}


def bottleneck_of(fetch_stall: float, prep_stall: float, fetch_samples_per_s: float, prep_samples_per_s: float) -> str:
    """Return what decides, of the shares of the time in which training waits, F and P: compute, fetch or prep.

    Serial workers may fetch faster than they prepare, and still training waits for nothing but fetching.
    """
    if fetch_stall + prep_stall < TOLERANCE:
        return "compute"
    if prep_stall < TOLERANCE <= fetch_stall:
        return "fetch"
    return "fetch" if fetch_samples_per_s < prep_samples_per_s else "prep"


def _wanted_cache(loading: Loading, at: dict[str, Any], rate: float) -> tuple[bool, float]:
    """Return x* of the dataset in bytes, of what one node keeps, and before it whether nodes that part the files would
    get those of others fast enough; where not, a node has to keep x* itself."""
    share = float(wanted()(at | {"wanted_samples_per_s": rate})["share"])
    nodes = at["nodes"] if loading.cache == "partitioned" else 1
    over_network = rate * share * (1 - 1 / nodes) * at["sample_bytes"]
    parted = over_network <= at["network_bytes_per_s"]
    return parted, share * loading.dataset.size_bytes / (nodes if parted else 1)


def _cached(cache: float, parted: bool) -> str:
    """Return what has to stay cached, in words."""
    kept = f"{si(cache, 'B')} that stay cached (x*)"
    return kept if parted else f"the network brings no more of what other nodes keep, and {kept} in each (cache minio)"


def wanted_cores(loading: Loading, most: float) -> int:
    """Return the least cores of the node that prepare what training takes, with those of training itself."""
    apart = 1 if loading.coordinated else loading.jobs
    of_sample = loading.prep_s + (0.0 if loading.trainer_cores else loading.handover_s)
    return max(1, ceil(most * apart * of_sample - 1e-9)) + loading.trainer_cores


def _wanted_workers(loading: Loading, at: dict[str, Any], most: float) -> int:
    """Return the least workers of each job that come within 1 % of the best on these cores."""
    rate = _by_workers(loading, at, most)
    asked = laws(loading.cache)(at)
    alone = float(sum(asked[name] for name in ("delay_s", "storage_s", "network_s"))) + loading.prep_s
    best = min(most, at["cores"] / max(loading.prep_s, LEAST), 1 / max(float(asked["storage_s"]), LEAST))
    enough = min(MOST_WORKERS, 16 + 4 * ceil(best * alone))
    if loading.sharing_loss:
        enough = _fastest(rate, enough)
    aim = (1 - TOLERANCE) * rate(enough)
    return 1 + bisect_left(range(1, enough + 1), aim, key=rate)


def _by_workers(loading: Loading, at: dict[str, Any], most: float) -> Callable[[Any], Any]:
    """Return the samples/s of a job as a function of its workers."""
    together = loading.jobs if loading.coordinated else 1
    return lambda n: steady_rate(loading.cache, loading.topology, at | {"workers": n * together}, most)


def _fastest(rate: Callable[[Any], Any], most: int) -> int:
    """Return the workers of up to `most` with which the rate is highest: more of them lose to taking turns on cores."""
    tried = np.unique(np.geomspace(1, most, 64).round().astype(int))
    best = int(np.argmax(rate(tried)))
    near = range(int(tried[max(0, best - 1)]), int(tried[min(best + 1, len(tried) - 1)]))
    return near[0] + bisect_left(near, True, key=lambda workers: bool(rate(workers + 1) <= rate(workers)))


def _why(loading: Loading, bottleneck: str, found: Rates, waiting: float, cached: str, workers: int) -> str:
    """Return the sentence that says that training or fetching decides."""
    if bottleneck == "compute":
        return f"Training never waits: it takes {digits3(float(found.steady))} samples/s, and the loader gives more."
    head = f"training waits {percent(waiting)} of the time"
    hit = percent(float(found.local + found.remote))
    come = f"files come at {digits3(float(found.fetch))} samples/s with {hit} of them cached"
    if loading.topology == "staged":
        return f"Fetching decides: {head}, as {come}; {cached} would do."
    return (
        f"Fetching decides: {head}, as {come}, and a worker prepares none meanwhile; {many(workers, 'worker')} "
        f"{'is' if workers == 1 else 'are'} best on these cores, and with everything cached training gets "
        f"{digits3(float(found.cached))} samples/s."
    )


def _preparing(loading: Loading, at: dict[str, Any], found: Rates, waiting: float, cores: int, most: float) -> str:
    """Return the sentence that says that preparing decides, and what so many cores would bring.

    Serial workers fetch, too: on cores that prepare enough there may have to be more of them, or files come too slowly.
    """
    head = (
        f"Preparing decides: training waits {percent(waiting)} of the time, as {many(loading.workers, 'worker')} on "
        f"{many(loading.cores, 'core')} {'prepares' if loading.workers == 1 else 'prepare'} "
        f"{digits3(float(found.prep))} samples/s; {many(cores, 'core')} with"
    )
    there = at | {"cores": at["cores"] * cores / loading.cores}
    rate, enough = _by_workers(loading, there, most), (1 - 2 * TOLERANCE) * most
    as_many = float(rate(max(1, (cores - loading.trainer_cores) // loading.jobs)))
    if as_many >= enough:
        return f"{head} as many workers would do."
    if loading.topology == "staged":
        short = float(found.fetch) < float(found.steady) / (1 - waiting)
        fetched = f"prepare enough, but files come at {digits3(float(found.fetch))} samples/s"
        return f"{head} as many workers would {fetched if short else f'bring {digits3(as_many)} samples/s'}."
    workers = _wanted_workers(loading, there, most)
    brought = float(rate(workers))
    end = "would do" if brought >= enough else f"would bring {digits3(brought)} samples/s"
    return f"{head} {many(workers, 'worker')} {end}."


def _assumed(loading: Loading, nodes: int) -> list[str]:
    """Return what the laws take for granted here."""
    told = [
        (True, "every epoch reads every file once, in a new random order"),
        (True, "queues between workers and training are long enough to smooth out how long batches take"),
        (loading.jobs > 1 and not loading.coordinated, "jobs read in orders of their own and share one cache"),
        (
            loading.cache in ("lru", "minio") and nodes > 1,
            "every epoch gives each node other files, and caches are as full as they get, which takes several epochs",
        ),
        (
            loading.storage.shared == "cluster" and nodes > 1,
            "nodes read at the same time, with equal shares of storage",
        ),
    ]
    return [f"loading: {text}" for is_so, text in told if is_so]
