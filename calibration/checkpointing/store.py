"""Where checkpoints are written: files of a folder, each written front to back, on storage that may be slowed down."""

import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

BLOCK_BYTES = 2**22
"""Of one write and one read."""

LEAST_WAIT_S = 2e-3
"""Shorter sleeps than this take longer than they should."""

Phase = Callable[[str], object]
"""Told what comes next: snapshot, write (before every piece), fsync, rename, remove, done."""


def untold(phase: str) -> None:
    """Tell nobody."""


class Sink:
    """A file being written, as torch.save and DCP want it, with the CRC-32 of what was written so far.

    CRC-32 finds what a disk or a crash does to a file; a cryptographic hash would find forgeries too, but takes three
    times as long on a core that training may need, and no file is ever unpickled freely.
    """

    def __init__(self, path: Path, store: "Store", phase: Phase) -> None:
        self._file = path.open("wb", buffering=0)
        self._store, self._phase = store, phase
        self.crc32 = self.bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`, block by block; return its bytes."""
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), BLOCK_BYTES):
            self._whole(view[begin : begin + BLOCK_BYTES])
        return len(view)

    def _whole(self, block: memoryview) -> None:
        self._phase("write")
        self._store.wait(len(block))
        left = block
        while left:
            left = left[self._file.write(left) :]
        self.crc32 = zlib.crc32(block, self.crc32)
        self.bytes += len(block)

    def tell(self) -> int:
        """Return the position, which is the end."""
        return self.bytes

    def flush(self) -> None:
        """Do nothing: no byte is held back."""

    def close(self) -> None:
        """Return when what was written is on the disk."""
        if not self._file.closed:
            self._phase("fsync")
            os.fsync(self._file.fileno())
            self._file.close()

    def abandon(self) -> None:
        """Close without waiting for the disk."""
        self._file.close()


@dataclass
class Store:
    """Storage that moves at most `bytes_per_s` (left out: what it can), shared by all threads that use this object."""

    bytes_per_s: float | None = None
    _free_at: float = field(default=0.0, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def wait(self, count: int) -> None:
        """Sleep until `count` further bytes have passed."""
        if self.bytes_per_s is None:
            return
        with self._lock:
            now = time.perf_counter()
            self._free_at = max(now - LEAST_WAIT_S, self._free_at) + count / self.bytes_per_s
            wait_s = self._free_at - now
        if wait_s > LEAST_WAIT_S:
            time.sleep(wait_s)

    @contextmanager
    def sink(self, path: Path, phase: Phase = untold) -> Iterator[Sink]:
        """Yield a new file at `path`, which is on the disk when the block ends without an error."""
        sink = Sink(path, self, phase)
        try:
            yield sink
            sink.close()
        finally:
            sink.abandon()

    def crc32(self, path: Path) -> tuple[int, int]:
        """Return the CRC-32 and the bytes of a file, read to its end."""
        found = size = 0
        with path.open("rb", buffering=0) as file:
            while block := file.read(BLOCK_BYTES):
                self.wait(len(block))
                found, size = zlib.crc32(block, found), size + len(block)
        return found, size


def sync_folder(folder: Path) -> None:
    """Return when the names in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def forget(path: Path) -> None:
    """Ask the system to give up its pages of a file that is on the disk, where it can be asked."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
