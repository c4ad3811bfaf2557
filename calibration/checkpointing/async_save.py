"""`torch.distributed.checkpoint.async_save` as a way of writing, with an index of ours in place of its pickled one.

Its own file system writer ends with a `.metadata` that only pickle can read: here the places of tensors go into the
manifest, and each is read back by `torch.load` with weights only. One process saves all (`no_dist`).
"""

import io
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import WriteResult

from calibration.checkpointing.engine import Engine, Job, Written, pin
from calibration.checkpointing.manifest import Format, Manifest
from calibration.checkpointing.store import Sink


class _Files(FileSystem):
    """DCP's file system, whose one file is a `Sink`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        yield self._sink


class _Writer(FileSystemWriter):
    """DCP's writer, which ends by telling the job where each tensor is."""

    def __init__(self, engine: "AsyncSave", job: Job) -> None:
        super().__init__(job.path.parent, sync_files=False)
        self.engine, self.job = engine, job

    def set_up_storage_writer(self, *args: Any, **kwargs: Any) -> None:
        """Begin, on the thread that writes."""
        pin(self.engine.cores)
        super().set_up_storage_writer(*args, **kwargs)

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        """Write all tensors to one file, and wait for the disk."""
        self.job.copied()
        with self.engine.store.sink(self.job.path, self.engine.phase) as self.sink:
            self.fs = _Files(self.sink)
            return super().write_data(*args, **kwargs)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Tell where everything is."""
        stored = [(one.index.fqn, one.storage_data) for results_of in results for one in results_of]
        places = {name: (at.offset, at.length) for name, at in stored}
        self.job.written(Written(self.sink.bytes, self.sink.crc32, places))


@dataclass
class AsyncSave(Engine):
    """DCP copies the state in the call (nothing of that hides), into buffers that it keeps, and writes on a thread."""

    format: ClassVar[Format] = "async_save"
    hides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        options = {"use_pinned_memory": False, "use_shared_memory": False, "use_async_staging": False}
        self.stager = DefaultStager(StagingOptions(**options, use_non_blocking_copy=False))

    def start(self, job: Job) -> Future[Any]:
        """Begin; see `Engine`."""
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # told of every save, asked for or not
        self.phase("snapshot")
        found = async_save(dict(job.tensors), storage_writer=_Writer(self, job), async_stager=self.stager, no_dist=True)
        assert isinstance(found, Future)  # a response of two futures comes from asynchronous staging alone
        found.add_done_callback(lambda _: job.copied())
        return found

    def hold_updates(self) -> None:
        """Do nothing: the copy is complete."""

    def load(self, path: Path, manifest: Manifest) -> dict[str, Tensor]:
        """Return the tensors, read one by one."""
        found: dict[str, Tensor] = {}
        with path.open("rb") as file:
            for one in manifest.tensors:
                file.seek(one.offset)
                piece = io.BytesIO(file.read(one.length))
                found[one.name] = torch.load(piece, map_location="cpu", weights_only=True)
        return found

    def close(self) -> None:
        """Give back the buffers."""
        self.stager.close()
