"""Jobs and nodes beside each other: caches counted, coordinated against separate loaders, a cache parted over nodes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import log
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from calibration.loading.bench import MEMORY, Bench, Setting, loader, on_cores
from calibration.loading.calibrate import Calibration
from calibration.loading.coordinated import Minibatches, Staging, minibatches, prepared
from calibration.loading.decoding import Order, Prepared
from calibration.loading.measure import compute_samples_per_s, described
from calibration.loading.minio import LRU, MinIO, SharedCache
from calibration.loading.partitioned import Partitioned, Shard, new_token
from calibration.loading.phases import pace
from calibration.loading.results import Cached, Parted, Shared
from calibration.loading.sources import Files, Source
from calibration.loading.trainers import Sleeping
from sim.loading import predict

POLICIES: dict[str, type[SharedCache]] = {"minio": MinIO, "lru": LRU}


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder in memory, where the system has such, that is removed."""
    with TemporaryDirectory(prefix="trainsim-", dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


class Sizes(torch.utils.data.Dataset[Tensor]):
    """The sizes of what is read at places of an endless training: all of a loader but preparation."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, place: int) -> Tensor:
        return torch.tensor(len(self.source.read(place % len(self.source))))


def count_misses(files: Files, policy: str, share: float, epochs: int, seed: int = 0, workers: int = 2) -> Cached:
    """Return the misses of every epoch of a real cache that holds `share` of the bytes."""
    samples, misses = len(files), []
    with scratch() as folder:
        total = sum(len(files.read(item)) for item in range(samples))
        cache = POLICIES[policy](files, folder, int(share * total))
        for epoch in range(epochs):
            cache.restart()
            order = Order(samples, epoch + 1, seed).epoch(epoch)
            for _ in DataLoader(Sizes(cache), 16, sampler=order, num_workers=workers, multiprocessing_context="fork"):
                pass
            misses.append(cache.counts().misses)
        kept = len(cache.held())
    x = kept / samples
    hits = x if policy == "minio" else x + (1 - x) * log(1 - x) if x < 1 else 1.0
    return Cached(policy=policy, samples=samples, share=x, misses=misses, expected=(1 - hits) * samples)


Start = Callable[[int], Iterable[Any]]


def side_by_side(jobs: int, start: Start, train: Sleeping, timed: int, warm: int) -> float:
    """Return the seconds of a batch in the mean of `jobs` processes that each train on what `start(job)` gives.

    Each takes `warm` batches before those that are timed, and as many after them, while others may still be timed.
    """
    context = get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(jobs)]
    processes = [context.Process(target=_job, args=(pipes[n][1], start, n, train, timed, warm)) for n in range(jobs)]
    for process in processes:
        process.start()
    try:
        for _, theirs in pipes:
            theirs.close()
        return sum(float(ours.recv()) for ours, _ in pipes) / jobs
    finally:
        for process in processes:
            process.join()


def _job(pipe: Connection, start: Start, number: int, train: Sleeping, timed: int, warm: int) -> None:
    torch.set_num_threads(1)
    batches = iter(start(number))
    pipe.send(pace(batches, train, timed, warm))
    pace(batches, train, warm, 1)


def share_work(bench: Bench, setting: Setting, jobs: int, known: Calibration, timed: int) -> Shared:
    """Return what each of `jobs` jobs of a setting reaches alone and coordinated; `workers` are those of each job."""
    source = bench.source(setting)
    train = Sleeping(setting.trainer_s)
    warm = 2 * setting.workers * (setting.prefetch + 1)
    epochs = -(-(timed + 2 * warm + 1) * setting.batch // setting.files)
    work = Minibatches(Prepared(source, setting.kind, setting.seed), setting.files, setting.batch, epochs)
    with on_cores(setting.cores), scratch() as folder:
        apart_s = side_by_side(jobs, lambda job: loader(replace(setting, seed=job), source), train, timed, warm)
        preparers = setting.workers * jobs
        staging = Staging(folder, jobs, preparers, work.batches, slots=preparers * setting.prefetch)
        with prepared(staging, work):
            together_s = side_by_side(jobs, lambda job: minibatches(staging, job, work), train, timed, warm)
    alone = described(setting, known, bench.sample_bytes, source.used_bytes())
    rate = compute_samples_per_s(setting, known)
    return Shared(
        jobs=jobs,
        workers=setting.workers,
        separate_samples_per_s=setting.batch / apart_s,
        coordinated_samples_per_s=setting.batch / together_s,
        predicted_separate=predict(replace(alone, jobs=jobs), rate).samples_per_s,
        predicted_coordinated=predict(replace(alone, jobs=jobs, coordinated=True), rate).samples_per_s,
    )


def part(files: Files, nodes: int, epochs: int, share: float) -> Parted:
    """Return how often `nodes` nodes read storage that keep `share` of the bytes each: apart (MinIO), and as one cache.

    In every epoch each node reads its part of a new random order.
    """
    total, samples = sum(len(files.read(item)) for item in range(len(files))), len(files)
    capacity = int(share * total)
    order = [Order(samples, epochs).epoch(epoch)[node::nodes] for epoch in range(epochs) for node in range(nodes)]
    with scratch() as folder:
        for node in range(nodes):
            (folder / str(node)).mkdir()
        apart = [MinIO(files, folder / str(node), capacity) for node in range(nodes)]
        token = new_token()
        shards = [Shard(files, node, nodes, token, capacity) for node in range(nodes)]
        ports = [shard.port for shard in shards]
        together = [Partitioned(files, ports, token, folder / f"counts-{node}") for node in range(nodes)]
        for number, places in enumerate(order):
            for place in places:
                apart[number % nodes].read(place % samples)
                together[number % nodes].read(place % samples)
        own = sum(node.counts().misses for node in together)
        made = Parted(
            nodes=nodes,
            samples=samples,
            epochs=epochs,
            share=share,
            apart_reads=sum(node.counts().misses for node in apart),
            together_reads=sum(shard.storage_reads for shard in shards) + own,
        )
        for node in range(nodes):
            together[node].close()
            shards[node].close()
        return made
