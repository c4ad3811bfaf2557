"""Whole numbers that processes share and change one at a time, whoever of them dies."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Cells:
    """`count` int64 in a file, zero at first; best on a file system in memory.

    The lock is the kernel's: it ends with the process that holds it, so that nobody waits for the dead. An object may
    be inherited by fork and be sent to a spawned process.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        with path.open("ab") as file:
            file.truncate(8 * count)
        self._values: NDArray[np.int64] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the mapping of this process."""
        return {**self.__dict__, "_values": None}

    @contextmanager
    def locked(self) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers [count] while no other process or thread has them; what is written there stays.

        The file is opened anew, because a lock belongs to what was opened: threads and forked processes would share it.
        """
        with self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                if self._values is None:
                    self._values = np.memmap(self.path, np.int64, "r+", shape=(self.count,))
                yield self._values
            finally:  # closing would leave it to a process that another thread has just forked
                fcntl.flock(file, fcntl.LOCK_UN)

    def read(self) -> list[int]:
        """Return the numbers as they are now."""
        with self.locked() as values:
            return [int(value) for value in values]
