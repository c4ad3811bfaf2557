"""Storage as the operating system gives it: sequential bandwidth, the cost of fsync, and reads of small files.

No cache of the machine is dropped. Where the system offers `posix_fadvise`, pages of the files read are given up first
(`DONTNEED`, after an fsync, without which dirty pages stay); the system may keep them all the same, and a disk or its
host has caches of its own. `Storage.cached` says when nothing could be given up, so that reads show the page cache.
"""

import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from sim.specs.arguments import checked
from sim.specs.fields import InputError

BLOCK_BYTES = 2**20
SMALL_BYTES = 4096
LEAST_BYTES, MOST_BYTES = 2**22, 2**34
REPEATS = 5
FSYNCS = 25
SMALL_FILES = 256

Clock = Callable[[], float]


@dataclass(frozen=True)
class Storage:
    """What one folder's file system reached: medians of `repeats`, of files of `file_bytes`.

    `fsync_s` is the time of writing one block of 4 KiB at a file's end and of fsync; `small_read_s` that of opening and
    reading a file of `small_bytes`, one after the other in random order. `cached`: pages could not be given up.
    """

    read_bytes_per_s: float
    write_bytes_per_s: float
    fsync_s: float
    small_read_s: float
    small_bytes: int
    file_bytes: int
    repeats: int
    cached: bool


@checked
def measure_storage(
    folder: Path, file_bytes: int = 2**26, repeats: int = REPEATS, seed: int = 0, clock: Clock = perf_counter
) -> Storage:
    """Return what `folder` reaches; everything written is in a folder of its own and removed, `file_bytes` at most
    and 1 MiB of small files.

    Raises:
        InputError: `folder` is no folder that can be written, or has not twice the room; sizes out of range.
    """
    _check(folder, file_bytes, repeats)
    with tempfile.TemporaryDirectory(prefix="trainsim-storage-", dir=folder) as made:
        where = Path(made)
        block = random.Random(seed).randbytes(BLOCK_BYTES)  # nothing that a file system could compress
        file = where / "sequential"
        blocks = file_bytes // BLOCK_BYTES
        writes, reads = [], []
        for _ in range(repeats):
            writes.append(_timed(clock, lambda: _write(file, block, blocks)))
            gone = _give_up(file)
            reads.append(_timed(clock, lambda: _read(file)))
        return Storage(
            read_bytes_per_s=blocks * BLOCK_BYTES / statistics.median(reads),
            write_bytes_per_s=blocks * BLOCK_BYTES / statistics.median(writes),
            fsync_s=statistics.median(_fsyncs(where / "synced", block[:SMALL_BYTES], clock)),
            small_read_s=statistics.median(_small_reads(where, block, random.Random(seed), clock)),
            small_bytes=SMALL_BYTES,
            file_bytes=blocks * BLOCK_BYTES,
            repeats=repeats,
            cached=not gone,
        )


def _check(folder: Path, file_bytes: int, repeats: int) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError("folder", str(folder), "an existing folder that can be written")
    if not LEAST_BYTES <= file_bytes <= MOST_BYTES:
        raise InputError("file_bytes", file_bytes, f"from {LEAST_BYTES} to {MOST_BYTES}")
    if repeats < 1:
        raise InputError("repeats", repeats, "1 or more")
    free = os.statvfs(folder)
    room = free.f_bavail * free.f_frsize
    if room < 2 * file_bytes:
        raise InputError("file_bytes", file_bytes, f"at most half of the {room} bytes that are free in {folder}")


def _timed(clock: Clock, action: Callable[[], object]) -> float:
    """Return the seconds of `action`, at least a nanosecond."""
    begin = clock()
    action()
    return max(1e-9, clock() - begin)


def _write(file: Path, block: bytes, blocks: int) -> None:
    """Write the file and wait until it is on the disk."""
    with file.open("wb", buffering=0) as out:
        for _ in range(blocks):
            out.write(block)
        os.fsync(out.fileno())


def _read(file: Path) -> None:
    """Read the file to its end, block by block into one buffer."""
    buffer = bytearray(BLOCK_BYTES)
    with file.open("rb", buffering=0) as data:
        while data.readinto(buffer):
            pass


def _give_up(*files: Path) -> bool:
    """Ask the system to forget the pages of files that are on the disk; return whether it can be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for file in files:
        with _opened(file) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return True


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _fsyncs(file: Path, data: bytes, clock: Clock) -> list[float]:
    """Return the seconds of every write that is waited for."""
    times = []
    with file.open("wb", buffering=0) as out:
        for _ in range(FSYNCS):
            begin = clock()
            out.write(data)
            os.fsync(out.fileno())
            times.append(max(1e-9, clock() - begin))
    return times


def _small_reads(where: Path, block: bytes, order: random.Random, clock: Clock) -> list[float]:
    """Return the seconds of opening and reading every one of `SMALL_FILES`."""
    files = [where / f"small-{n}" for n in range(SMALL_FILES)]
    for n, file in enumerate(files):
        with file.open("wb") as out:
            out.write(block[n : n + SMALL_BYTES])
            out.flush()
            os.fsync(out.fileno())
    _give_up(*files)
    return [_timed(clock, file.read_bytes) for file in order.sample(files, len(files))]
