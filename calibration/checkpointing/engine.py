"""How a state gets into one file: copied, then written beside training, by torch.save or by DCP's async_save."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, cast

import torch
from torch import Tensor

from calibration.checkpointing.manifest import Format, Manifest
from calibration.checkpointing.snapshot import Buffers, Place
from calibration.checkpointing.store import Phase, Store, untold


@dataclass(frozen=True)
class Written:
    """A file that is on the disk; places: of each tensor its offset and length, where it has one of its own."""

    bytes: int
    crc32: int
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A state to write to `path`; tensors named in `now` are copied before the call that starts it returns.

    `copied` is called once when all are copied, then `written` once the file is on the disk, on the writing thread.
    """

    tensors: Mapping[str, Tensor]
    path: Path
    copied: Callable[[], object]
    written: Callable[[Written], object]
    now: Collection[str] = ()


@dataclass
class Engine(ABC):
    """A way of writing; cores: where the writing runs, by default where training does."""

    store: Store = field(default_factory=Store)
    phase: Phase = field(default=untold)
    cores: frozenset[int] | None = None
    format: ClassVar[Format]
    hides: ClassVar[bool]
    """Whether the copy goes on beside training."""

    @abstractmethod
    def start(self, job: Job) -> Future[Any]:
        """Begin; the future is done when the file is written or has failed."""

    @abstractmethod
    def hold_updates(self) -> None:
        """Let weight updates that are launched from now on wait for the copies."""

    @abstractmethod
    def load(self, path: Path, manifest: Manifest) -> dict[str, Tensor]:
        """Return the tensors of a file whose checksum is right."""

    @abstractmethod
    def close(self) -> None:
        """Give back threads and buffers."""


@dataclass
class TorchSave(Engine):
    """Copies on a thread of its own beside forward and backward pass, which then writes by `torch.save`.

    A thread, not a process: torch releases the interpreter's lock while it copies, writes and checks, so that a step on
    another core takes as much longer beside either (measured: 1 - 6 %), a process needs the copies in shared memory,
    and it would outlive a trainer that is killed.
    """

    place: Place = "host"
    format: ClassVar[Format] = "torch.save"
    hides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.buffers = Buffers(self.place)
        self._thread = ThreadPoolExecutor(1, "checkpoint", initializer=self._pinned)

    def _pinned(self) -> None:
        pin(self.cores)

    def start(self, job: Job) -> Future[Any]:
        """Begin; see `Engine`."""
        self.buffers.fit(job.tensors)
        self.buffers.copy({name: job.tensors[name] for name in job.now})
        return self._thread.submit(self._run, job)

    def _run(self, job: Job) -> None:
        try:
            self.phase("snapshot")
            self.buffers.copy({name: one for name, one in job.tensors.items() if name not in job.now})
        finally:
            job.copied()
        with self.store.sink(job.path, self.phase) as sink:
            torch.save(self.buffers.on_host(), cast("IO[bytes]", sink))
        job.written(Written(sink.bytes, sink.crc32))

    def hold_updates(self) -> None:
        """See `Engine`."""
        self.buffers.hold_updates()

    def load(self, path: Path, manifest: Manifest) -> dict[str, Tensor]:
        """Return the tensors, whose pages are read when they are used."""
        found: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return found

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


def pin(cores: frozenset[int] | None) -> None:
    """Keep the calling thread on these cores, where the system can."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
