"""What is measured of input pipelines: a setting, and the files, caches, loaders and trainers that it names."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from torch import Tensor
from torch.utils.data import DataLoader

from calibration.instruments import usable_cores
from calibration.loading.decoding import Order, Prepared
from calibration.loading.generated import Kind, Manifest, generate
from calibration.loading.minio import MinIO
from calibration.loading.sources import Files, Source
from calibration.loading.staged import Decoded, Fetched
from calibration.loading.throttled import Throttle, Throttled
from calibration.loading.trainers import Computing, Sleeping
from sim.specs.fields import InputError, real, spec, whole
from sim.specs.loading import PREFETCH, Topology

SCALES: Mapping[Kind, float] = {"images": 384.0, "audio": 4.0}
"""Pixels a side and seconds: 40 kB and 100 kB, about 1 ms of a core each."""

EPOCHS = 10**6
MEMORY = Path("/dev/shm")


@spec
class Setting:
    """One input pipeline to measure, of `files` generated files.

    scale: pixels a side or seconds of sound. cached: share of the bytes that a cache in memory keeps (MinIO). Storage
    is throttled to a bandwidth of all workers and a latency for each file. cores: of this machine, for workers and
    trainer together. The trainer sleeps `trainer_s` a batch, or computes here, then `passes` steps of a small network.
    """

    kind: Kind = "images"
    files: Annotated[int, whole(16, 40_000)] = 256
    scale: Annotated[float, real(0.1, 4_096.0)] = 384.0
    batch: Annotated[int, whole(1, 1_024)] = 16
    workers: Annotated[int, whole(1, 64)] = 1
    topology: Topology = "serial"
    prefetch: Annotated[int, whole(1, 64, "batches per worker")] = PREFETCH
    cached: Annotated[float, real(0.0, 1.0)] = 0.0
    storage_latency_s: Annotated[float, real(0.0, 10.0, "s")] = 0.004
    storage_bytes_per_s: Annotated[float, real(1e4, 1e12, "B/s")] = 100e6
    cores: Annotated[int, whole(1, 1_024)] = 1
    trainer: Literal["sleep", "compute"] = "sleep"
    trainer_s: Annotated[float, real(0.0, 60.0, "s")] = 0.02
    passes: Annotated[int, whole(1, 1_000)] = 1
    seed: Annotated[int, whole(0, 2**32 - 1)] = 0

    @property
    def places(self) -> Order:
        """The order of a training that does not end while anybody measures."""
        return Order(self.files, EPOCHS, self.seed)


class Bench:
    """Generated files in a folder, and all of them in memory; removed with the folders."""

    def __init__(self, folder: Path, memory: Path, setting: Setting) -> None:
        for part in (folder, memory):
            part.mkdir()
        self.folder, self.memory = folder, memory
        self.manifest: Manifest = generate(folder, setting.kind, setting.files, setting.scale, setting.seed)
        self.files = Files(folder, self.manifest)
        self.cached = self._cache(self.files, 1.0, setting.seed)
        self._throttles = 0

    @property
    def sample_bytes(self) -> float:
        """The size of a file in the mean."""
        return self.manifest.total_bytes / len(self.files)

    def throttled(self, setting: Setting) -> Throttled:
        """Return the files behind the setting's storage."""
        self._throttles += 1
        cells = self.memory / f"throttle-{self._throttles}"
        return Throttled(self.files, Throttle(cells, setting.storage_bytes_per_s, setting.storage_latency_s))

    def source(self, setting: Setting) -> MinIO:
        """Return the setting's storage behind a cache that is as full as it gets."""
        return self._cache(self.throttled(setting), setting.cached, setting.seed)

    def _cache(self, source: Source, share: float, seed: int) -> MinIO:
        """Return a cache that the files have filled in an order of its own."""
        folder = self.memory / f"cache-{share:g}-{seed}"
        folder.mkdir(exist_ok=True)
        filling = MinIO(self.files, folder, int(share * self.manifest.total_bytes))
        for item in Order(len(self.files), 1, seed + 1):
            if filling.full:
                break
            filling.read(item)
        made = MinIO(source, folder, filling.capacity_bytes)
        made.restart()
        return made


@contextmanager
def opened(setting: Setting) -> Iterator[Bench]:
    """Yield a bench with the setting's files; what is cached lies in memory where the system has such a folder."""
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with (
        TemporaryDirectory(prefix="trainsim-files-") as files,
        TemporaryDirectory(prefix="trainsim-cache-", dir=memory) as kept,
    ):
        yield Bench(Path(files) / "files", Path(kept) / "cached", setting)


def loader(setting: Setting, source: Source) -> DataLoader[Tensor]:
    """Return the setting's loader of a source: torch's, whose workers fetch and then prepare, or the staged one."""
    data = Prepared(source, setting.kind, setting.seed)
    workers: dict[str, Any] = {
        "num_workers": setting.workers,
        "prefetch_factor": setting.prefetch,
        "multiprocessing_context": "fork",
    }
    if setting.topology == "serial":
        return DataLoader(data, setting.batch, sampler=setting.places, **workers)
    fetched = Fetched(data, setting.places, setting.batch, setting.workers, setting.prefetch)
    return DataLoader(Decoded(data), batch_sampler=fetched, **workers)


def trainer(setting: Setting, batch: Tensor) -> Sleeping | Computing:
    """Return the setting's trainer for such batches."""
    if setting.trainer == "sleep":
        return Sleeping(setting.trainer_s)
    return Computing(batch.shape[1], setting.passes, setting.seed)


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Run this thread, and what it starts, on the first `count` of its cores.

    Raises:
        InputError: it has not so many, or the system does not bind threads to fewer than all.
    """
    most, bound = usable_cores(), hasattr(os, "sched_setaffinity")
    if not 1 <= count <= most or (count < most and not bound):
        raise InputError("cores", count, f"a whole number from 1 to {most}" if bound else f"{most}, all that there are")
    if count == most:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
