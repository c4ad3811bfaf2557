"""A two-phase checkpointer: a copy of the state beside training, then a file, one at a time, whole or not at all.

A checkpoint is a folder `step-<n>` of one file and its manifest. Both are written and synced under a temporary name in
the same folder; one rename makes them a checkpoint, and only then the oldest is removed. So a crash at any time leaves
the last ones as they were (CheckFreq, FAST '21, whose released code writes to the final name at once).
"""

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Self

import torch
from torch.distributed.checkpoint.api import CheckpointException

from calibration.checkpointing.engine import Engine, Job, TorchSave, Written
from calibration.checkpointing.manifest import DATA, FILE, Manifest, Progress, Tensor, read_manifest
from calibration.checkpointing.store import Store, forget, sync_folder
from calibration.checkpointing.tree import put_together, taken_apart
from sim.specs.fields import InputError

NAME = "step-"
DRAFT, GONE = ".draft-", ".gone-"
LEAST_KEPT = 2
FAILURES = (Exception, CheckpointException)
"""DCP's is no `Exception`."""

NOT_DAMAGED = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT}
"""Why a file is not read, whatever is in it."""

_numbers = count()


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; those before are as they were."""


@dataclass(frozen=True)
class Span:
    """What the checkpointer did from `begin_s` to `end_s` (of `time.perf_counter`)."""

    kind: Literal["snapshot", "persist"]
    step: int
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class Found:
    """A checkpoint whose checksums are right."""

    folder: Path
    manifest: Manifest


class Checkpointer:
    """Saves to `folder`, of which `keep` checkpoints stay (at least one before the last), as the only writer there.

    Training calls `save` after a step's update, and `before_update` before each; what failed in the background is
    raised by the next `save`, or by `wait`. `spans` holds what was done when.

    Raises:
        InputError: no folder that can be written, another process writes to it, or too few to keep.
    """

    def __init__(self, folder: Path, engine: Engine | None = None, keep: int = LEAST_KEPT) -> None:
        if keep < LEAST_KEPT:
            raise InputError("keep", keep, f"a whole number from {LEAST_KEPT}: one before the last stays")
        self.folder, self.keep = folder, keep
        self._lock = _locked(folder)
        self.engine = engine or TorchSave()
        self.spans: list[Span] = []
        self.saved_bytes = 0
        """Of the file of the last one."""
        self.last: int | None = max((step for step, _ in checkpoints(folder)), default=None)
        self._copied = threading.Event()
        self._copied.set()
        self._flight: tuple[int, Path, Future[Any]] | None = None
        for stray in (*folder.glob(DRAFT + "*"), *folder.glob(GONE + "*")):  # of runs that died: we have the lock
            shutil.rmtree(stray)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def persisting(self) -> bool:
        """Whether a checkpoint is on its way."""
        return self._flight is not None and not self._flight[2].done()

    def save(self, state: Mapping[str, Any], progress: Progress, now: Collection[str] = ()) -> None:
        """Begin to save `state`, once the checkpoint before is written.

        now: names of tensors that forward and backward passes change (statistics of batch norm), copied at once.

        Raises:
            InputError: the state holds what is no tensor, number or text, or the step is not after the last saved.
            CheckpointError: this one cannot be begun, or the one before has failed.
        """
        self.wait()
        if self.last is not None and progress.step <= self.last:
            raise InputError("progress.step", progress.step, f"a step after {self.last}, which is saved")
        tree, tensors = taken_apart(state)
        draft = self.folder / f"{DRAFT}{progress.step}-{os.getpid()}-{next(_numbers)}"
        begin = perf_counter()
        self._copied.clear()

        def copied() -> None:
            if not self._copied.is_set():
                self.spans.append(Span("snapshot", progress.step, begin, perf_counter()))
                self._copied.set()

        def written(found: Written) -> None:
            manifest = Manifest(
                progress=progress,
                format=self.engine.format,
                torch=str(torch.__version__),
                file=DATA,
                bytes=found.bytes,
                crc32=found.crc32,
                tensors=[_tensor(name, one, found) for name, one in tensors.items()],
                tree=tree,
            )
            self._commit(draft, manifest)
            copy = next(span for span in reversed(self.spans) if span.kind == "snapshot")
            self.spans.append(Span("persist", progress.step, copy.end_s, perf_counter()))

        try:
            draft.mkdir()
            flight = self.engine.start(Job(tensors, draft / DATA, copied, written, now))
        except FAILURES as error:
            copied()
            raise self._failed(progress.step, draft, error) from error
        except BaseException:
            copied()  # the next update waits for no snapshot that was given up
            raise
        self._flight = progress.step, draft, flight

    def before_update(self) -> None:
        """Return when the weights may change: the snapshot in progress is complete."""
        self._copied.wait()
        self.engine.hold_updates()

    def wait(self) -> None:
        """Return when nothing is on its way; raises CheckpointError where that failed."""
        if self._flight is None:
            return
        step, draft, flight = self._flight
        wait((flight,))  # where this is interrupted it is still on its way, and reads the buffers
        self._flight = None
        try:
            flight.result()
        except FAILURES as error:
            raise self._failed(step, draft, error) from error

    def _failed(self, step: int, draft: Path, error: BaseException) -> CheckpointError:
        shutil.rmtree(draft, ignore_errors=True)
        system = _of_the_system(error)
        why = error if system is None else system.strerror
        last = "none is saved" if self.last is None else f"the last is of step {self.last}"
        return CheckpointError(f"step {step} is not saved in {self.folder}: {why}; {last}")

    def _commit(self, draft: Path, manifest: Manifest) -> None:
        """Make a checkpoint of a draft whose data is synced, then remove the oldest."""
        with (draft / FILE).open("w") as file:
            file.write(manifest.text())
            file.flush()
            os.fsync(file.fileno())
        sync_folder(draft)
        self.engine.phase("rename")
        draft.rename(self.folder / f"{NAME}{manifest.progress.step:012d}")
        sync_folder(self.folder)
        self.last, self.saved_bytes = manifest.progress.step, manifest.bytes
        self.engine.phase("remove")
        for _, old in checkpoints(self.folder)[self.keep :]:
            self._remove(old)
        self.engine.phase("done")

    def _remove(self, checkpoint: Path) -> None:
        """Remove one, which is no checkpoint any more from its first missing byte on."""
        gone = self.folder / f"{GONE}{next(_numbers)}"
        checkpoint.rename(gone)
        shutil.rmtree(gone)

    def resume(self) -> tuple[Any, Progress] | None:
        """Return the latest valid state (tensors in host memory) and where it was; None where nothing is saved.

        Newer ones, which are damaged, are removed: what is saved next has their steps.

        Raises:
            OSError: as `latest_valid`; nothing is removed.
        """
        self.wait()
        found = latest_valid(self.folder, self.engine.store)
        self.last = found.manifest.progress.step if found else None
        for step, path in checkpoints(self.folder):
            if self.last is None or step > self.last:
                self._remove(path)
        return (load(found, self.engine), found.manifest.progress) if found else None

    def forget(self) -> None:
        """Have the system give up pages of all files here, as if it had not written them, where it can be asked."""
        for _, path in checkpoints(self.folder):
            forget(path / DATA)

    def close(self) -> None:
        """Wait for what is on its way, and let others write to the folder."""
        try:
            self.wait()
        finally:
            self.engine.close()
            os.close(self._lock)


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, folder) of all that is there, valid or not, the latest first."""
    found = [(path.name.removeprefix(NAME), path) for path in folder.glob(NAME + "*") if path.is_dir()]
    return sorted(((int(step), path) for step, path in found if step.isdecimal()), reverse=True)


def latest_valid(folder: Path, store: Store | None = None, upto: int | None = None) -> Found | None:
    """Return the latest checkpoint whose file has the length and checksum of its manifest, None where none has.

    upto: the last step that counts, by default any.

    Raises:
        OSError: a file could not be read for a reason that says nothing of what is in it (no permission, no memory).
    """
    for step, path in checkpoints(folder):
        if upto is not None and step > upto:
            continue
        try:
            (path / FILE).open("rb").close()
            manifest = read_manifest(path)
            data = path / manifest.file
            if data.stat().st_size != manifest.bytes:
                continue  # cut short: nothing to read
            if (store or Store()).crc32(data) == (manifest.crc32, manifest.bytes):
                return Found(path, manifest)
        except InputError:
            continue
        except OSError as error:
            if error.errno in NOT_DAMAGED:
                raise
    return None


def load(found: Found, engine: Engine) -> Any:
    """Return the state of a checkpoint, tensors in host memory.

    Raises:
        InputError: it was written in another way than this engine's, or holds other tensors than its manifest says.
    """
    manifest = found.manifest
    if manifest.format != engine.format:
        raise InputError("format", manifest.format, f"a checkpoint of {engine.format}")
    tensors = engine.load(found.folder / manifest.file, manifest)
    whole = Written(manifest.bytes, manifest.crc32, {one.name: (one.offset, one.length) for one in manifest.tensors})
    held = [_tensor(name, one, whole) for name, one in tensors.items()]
    if sorted(held, key=lambda one: one.name) != sorted(manifest.tensors, key=lambda one: one.name):
        raise InputError(str(found.folder / manifest.file), "other tensors", "the tensors of its manifest")
    return put_together(manifest.tree, tensors)


def _of_the_system(error: BaseException | None) -> OSError | None:
    """Return the error of the system behind others: of DCP's rank, or of a file that torch could not end."""
    if error is None or isinstance(error, OSError):
        return error
    ranks = [one for one, _ in error.failures.values()] if isinstance(error, CheckpointException) else []
    behind = (_of_the_system(one) for one in (*ranks, error.__cause__, error.__context__))
    return next((one for one in behind if one is not None), None)


def _tensor(name: str, one: torch.Tensor, written: Written) -> Tensor:
    offset, length = written.places.get(name, (0, 0))
    return Tensor(
        name=name, dtype=str(one.dtype).removeprefix("torch."), shape=list(one.shape), offset=offset, length=length
    )


def _locked(folder: Path) -> int:
    """Return the descriptor that keeps other processes from writing to `folder`; it ends with this process."""
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError("folder", str(folder), "an existing folder that can be written")
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:  # a lock of the process, which processes that it forks (workers of a loader) do not hold after its end
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise InputError("folder", str(folder), "a folder to which no other process saves") from None
    return descriptor
