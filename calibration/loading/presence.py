"""Which of several processes are alive, as the kernel knows it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Presence:
    """A file of which every participant locks the byte of its number: the lock ends with its process, however it ends.

    A participant is a process; it may be several. Locks are not inherited by fork. May be sent to other processes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._process = self._descriptor = -1
        self._own: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but what is of this process."""
        return {"path": self.path, "_process": -1, "_descriptor": -1, "_own": set()}

    @contextmanager
    def being(self, who: int) -> Iterator[None]:
        """Be participant `who` inside; waits while another process is."""
        fcntl.lockf(self._opened(), fcntl.LOCK_EX, 1, who)
        self._own.add(who)
        try:
            yield
        finally:
            self._own.discard(who)
            fcntl.lockf(self._opened(), fcntl.LOCK_UN, 1, who)

    def is_alive(self, who: int) -> bool:
        """Return whether participant `who` is there."""
        descriptor = self._opened()
        if who in self._own:  # asking by locking would succeed, and unlocking then end it
            return True
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, who)
        except OSError:
            return True
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, who)
        return False

    def _opened(self) -> int:
        """Return this process's one descriptor: closing any of several would end all its locks."""
        if self._process != os.getpid():
            self._process, self._own = os.getpid(), set()
            self._descriptor = os.open(self.path, os.O_RDWR)
        return self._descriptor
