"""What if: stalls and rates over cached bytes, cores, storage, or the number of devices."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from sim.catalog import names
from sim.loading.predict import MOST_WORKERS, bottleneck_of, check, shares, wanted_cores
from sim.loading.rates import rates, setting
from sim.specs.arguments import checked
from sim.specs.catalog import storage
from sim.specs.fields import InputError
from sim.specs.loading import Cache, Loading

Axis = Literal["cache", "cores", "storage", "gpus"]
SHARES = 20
"""Parts of the dataset that the axis cache goes in."""
CORES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
TIMES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class WhatIf:
    """One setting: its value (bytes of cache, cores, name of storage, times as many devices), rates in samples/s of a
    job on a node, and shares of an epoch's time: compute, prep stall, fetch stall, which sum to 1."""

    axis: Axis
    value: float | str
    samples_per_s: float
    compute_samples_per_s: float
    fetch_samples_per_s: float
    prep_samples_per_s: float
    compute_fraction: float
    prep_stall_fraction: float
    fetch_stall_fraction: float
    hit_fraction: float
    bottleneck: str


class _Point(NamedTuple):
    value: float | str
    changes: Mapping[str, Any]
    times: float = 1.0


@checked
def what_if(
    loading: Loading,
    compute_samples_per_s: float,
    axis: Axis,
    nodes: int = 1,
    network_bytes_per_s: float | None = None,
) -> tuple[WhatIf, ...]:
    """Return a row for every setting along an axis, all else as it is; arguments as of `sim.loading.predict`.

    cache: from nothing to all of the dataset by the loading's policy (MinIO where it has none); cores: with workers for
    all of them; storage: every entry of the catalog; gpus: training so many times as fast.

    Raises:
        InputError: as `predict`, or the axis is unknown.
    """
    check(loading, compute_samples_per_s, nodes, network_bytes_per_s)
    if axis not in get_args(Axis):
        raise InputError("axis", axis, "one of " + ", ".join(get_args(Axis)))
    policy: Cache = "minio" if axis == "cache" and loading.cache == "none" else loading.cache
    at = setting(loading, nodes, network_bytes_per_s)
    points = list(POINTS[axis](loading, compute_samples_per_s, nodes))
    changed = {key: np.array([p.changes[key] for p in points]) for key in points[0].changes}
    most = compute_samples_per_s * np.array([p.times for p in points])
    found = rates(policy, loading.topology, at | changed, most)
    part = shares(found, most)

    def column(values: Any) -> list[float]:
        return [float(v) for v in np.broadcast_to(values, (len(points),))]

    columns = {
        "samples_per_s": column(found.steady),
        "compute_samples_per_s": column(most),
        "fetch_samples_per_s": column(found.fetch),
        "prep_samples_per_s": column(found.prep),
        "compute_fraction": column(part["compute"]),
        "prep_stall_fraction": column(part["prep"]),
        "fetch_stall_fraction": column(part["fetch"]),
        "hit_fraction": column(found.local + found.remote),
    }

    def row(number: int) -> WhatIf:
        made = {name: values[number] for name, values in columns.items()}
        stalls = made["fetch_stall_fraction"], made["prep_stall_fraction"]
        decides = bottleneck_of(*stalls, made["fetch_samples_per_s"], made["prep_samples_per_s"])
        return WhatIf(axis=axis, value=points[number].value, bottleneck=decides, **made)

    return tuple(row(number) for number in range(len(points)))


def _cache(loading: Loading, most: float, nodes: int) -> Iterator[_Point]:
    del most, nodes
    for part in range(SHARES + 1):
        size = loading.dataset.size_bytes * part / SHARES
        yield _Point(size, {"cache_bytes": size})


def _cores(loading: Loading, most: float, nodes: int) -> Iterator[_Point]:
    del nodes
    enough = min(MOST_WORKERS, wanted_cores(loading, most))
    largest = max(loading.cores, 2 * enough)
    for cores in sorted({*CORES, loading.cores, enough}):
        if cores <= largest:
            workers = max(loading.workers, -(-(cores - loading.trainer_cores) // loading.jobs))
            now = setting(replace(loading, cores=cores, workers=workers))
            yield _Point(cores, {name: now[name] for name in ("cores", "workers")})


def _storage(loading: Loading, most: float, nodes: int) -> Iterator[_Point]:
    del most
    for name in names("storage"):
        now = setting(replace(loading, storage=storage(name)), nodes)
        yield _Point(name, {key: now[key] for key in ("read_bytes_per_s", "latency_s")})


def _gpus(loading: Loading, most: float, nodes: int) -> Iterator[_Point]:
    del most, nodes
    for times in TIMES:
        yield _Point(times, {"prep_s": loading.prep_s}, times)


POINTS: Mapping[Axis, Callable[[Loading, float, int], Iterator[_Point]]] = {
    "cache": _cache,
    "cores": _cores,
    "storage": _storage,
    "gpus": _gpus,
}
