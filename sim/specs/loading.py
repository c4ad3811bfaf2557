"""How training data reaches the devices: dataset, storage, cache, preparation (DS-Analyzer, arXiv 2007.06775)."""

from dataclasses import field
from typing import Annotated, Literal

from sim.specs.catalog import storage
from sim.specs.fields import DERIVED, InputError, real, spec, whole
from sim.specs.named import DataOf, StoredAt

Topology = Literal["serial", "staged"]
Cache = Literal["none", "lru", "minio", "partitioned"]

STORAGE = "sata-ssd"
PREFETCH = 2
MEMORY_BYTES_PER_S = 10e9
"""What reading a cached file gives where nothing is stated: a copy by one core."""


@spec
class Loading:
    """The input pipeline of one node.

    `dataset` and `storage`: names of the catalog or their numbers. `prep_s`: seconds of one core to decode and augment
    a sample; `handover_s`: seconds of one core in which the training process receives it. `workers` read and prepare;
    `topology` serial: each worker fetches a sample, then prepares it (torch's DataLoader); staged: fetching overlaps
    preparing (DALI). `cores` run the workers; `trainer_cores` of them are kept busy by training itself (a job on a CPU:
    1). `prefetch`: batches that a worker is ahead. `cache_bytes` of the node's memory keep files by the policy `cache`,
    read at `memory_bytes_per_s`; partitioned: every node keeps its shard and asks the others over the network before it
    reads storage. `sharing_loss`: share of a core that is lost while processes take turns on it. `jobs` train on the
    same data on this node, each with its own workers and its share of everything, or `coordinated`: one fetch and
    preparation for all of them.

    Raises:
        InputError: a number is out of range, a name is unknown, or there is a cache without bytes or bytes without it.
    """

    dataset: DataOf
    storage: StoredAt = DERIVED
    prep_s: Annotated[float, real(0.0, 1e4, "s")] = 0.0
    handover_s: Annotated[float, real(0.0, 1e4, "s")] = 0.0
    workers: Annotated[int, whole(1, 4_096)] = 1
    topology: Topology = "serial"
    cores: Annotated[int, whole(1, 4_096)] = DERIVED
    trainer_cores: Annotated[int, whole(0, 4_096)] = 0
    prefetch: Annotated[int, whole(1, 1_024, "batches per worker")] = PREFETCH
    sharing_loss: Annotated[float, real(0.0, 0.9)] = 0.0
    cache: Cache = "none"
    cache_bytes: Annotated[float, real(0.0, 1e15, "B")] = 0.0
    memory_bytes_per_s: Annotated[float, real(1e6, 1e13, "B/s")] = DERIVED
    jobs: Annotated[int, whole(1, 1_024)] = 1
    coordinated: bool = False
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.cache == "none") != (self.cache_bytes == 0):
            allowed = "0 without a cache" if self.cache == "none" else f"above 0 with cache {self.cache}"
            raise InputError("cache_bytes", self.cache_bytes, allowed)
        if self.coordinated and self.jobs == 1:
            raise InputError("coordinated", True, "false with one job: there is nobody to share with")
        assumed = []
        if getattr(self, "storage") is None:  # noqa: B009 - declared storage, None when left out
            object.__setattr__(self, "storage", storage(STORAGE))
            assumed.append(f"loading.storage: {STORAGE}")
        usual = {
            "cores": (self.workers + self.trainer_cores, "one for each worker and what training itself needs"),
            "memory_bytes_per_s": (MEMORY_BYTES_PER_S, "a copy by one core; not measured"),
        }
        for name, (value, why) in usual.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
                assumed.append(
                    f"loading.{name}" + (f" = {value:g} ({why})" if isinstance(value, float | int) else f": {why}")
                )
        object.__setattr__(self, "assumptions", tuple(assumed))
