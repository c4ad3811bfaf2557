"""Locks on what one process alone may write: the system lets go of them when the process ends, however it ends."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from sim.specs.fields import InputError


def lock_file(place: Path, field: str, kept: Path) -> IO[str]:
    """Return the file `place`, which tells who has it, locked for as long as it is open.

    Raises:
        InputError: of `field`, that names `kept`: another process has the lock, or `place` cannot be written.
    """
    try:
        lock = place.open("a+")
    except OSError as error:
        raise InputError(field, str(kept), f"a place that can be written ({error.strerror})") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        pid = lock.read(20).strip()
        lock.close()
        raise InputError(field, str(kept), f"one that no other process writes; process {pid or '?'} does") from None
    if not _is_at(lock, place):
        # Whoever had it took the file away after it was opened here, and a file without a name keeps nobody out.
        lock.close()
        return lock_file(place, field, kept)
    try:
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
    except OSError:  # a full disk
        unlocked(lock)
        raise
    return lock


def unlocked(lock: IO[str]) -> None:
    """Take the lock file away while it is still locked, and let go of it; a second time does nothing."""
    if not lock.closed:
        with suppress(OSError):
            Path(lock.name).unlink()
        lock.close()


def _is_at(file: IO[str], place: Path) -> bool:
    """Return whether an open file is the one that has the name `place` now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), place.stat())
    except FileNotFoundError:
        return False
