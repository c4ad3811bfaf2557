"""The one that writes a store: under a lock of its own, a block a transaction."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

import psutil

from sim.specs import InputError
from sim.specs.files import checked_target
from sim.specs.locks import lock_file, unlocked
from sim.sweep import store
from sim.sweep.closing import Closing
from sim.sweep.evaluate import Block, Span
from sim.sweep.grid import Grid

BLOCK_ROWS: Mapping[str, int] = {"analytic": 16_384, "path": 8, "events": 4}
"""Configurations of a block: some 50 ms of work, so that little is lost with a worker and little is spent on each."""

NETWORK = (
    "nfs", "cifs", "smb", "afs", "9p", "ceph", "lustre", "gpfs", "gluster", "beegfs", "fuse.sshfs", "fuse.s3fs",
    "fuse.gcsfuse", "ncpfs", "ocfs2", "gfs", "webdav", "davfs", "afpfs",
)  # fmt: skip
"""Beginnings of the names of file systems whose locks and shared memory other machines do not see."""


class StoreFull(RuntimeError):  # noqa: N818 - what happened, as a person would say it
    """There is no room for another block; those before it are safe."""


class Writer(Closing):
    """The only writer of a store for `grid`, until it is closed.

    Raises:
        InputError: another process writes it, it lies on a network file system, it is of another grid, or it has
            blocks and `resume` is off.
        OSError: the disk is full; a new store is not left behind.
    """

    def __init__(self, path: Path, grid: Grid, resume: bool = False) -> None:
        self.path, self.grid = path, grid
        checked_target("store", path)
        refuse_network(path)
        self.lock = locked(path)
        try:
            with roomy(path), store.guarded(path):
                self._open(resume)
        except BaseException:
            unlocked(self.lock)
            raise

    def _open(self, resume: bool) -> None:
        head = store.Head(
            self.grid.data(), self.grid.digest, self.grid.base_digest, self.grid.numbering, BLOCK_ROWS[self.grid.engine]
        )
        if not self.path.exists() or self.path.stat().st_size == 0 or _unfinished(self.path):
            store.create(self.path, head)
        self.db = store.opened(self.path, "rw")
        self.head = held = store.read_head(self.db, self.path)
        if held.digest != head.digest:
            self._extend(held, replace(head, block_rows=held.block_rows), resume)
        if not resume and self.db.execute("SELECT 1 FROM blocks LIMIT 1").fetchone():
            raise InputError("store", str(self.path), "a new file, or --resume: it has blocks of this grid already")
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.digests = store.digests(self.db)
        self.copies = {digest: number for number, digest in self.digests.items()}
        self.pending: dict[int, bytes] = {}
        self.counts = store.counted(self.db, self.head)

    def _extend(self, old: store.Head, new: store.Head, resume: bool) -> None:
        """Take a store of a grid that is the beginning of the new one; refuse that of any other."""
        if not self.grid.extends(old.grid):
            raise InputError("store", str(self.path), "a new file: it is of another grid")
        if old.base != new.base or old.digest != self.grid.digest_of(old.grid):
            allowed = "a new file: since it was made, trainsim, its catalog or a file that the grid names has changed"
            raise InputError("store", str(self.path), allowed)
        if not resume:
            raise InputError("store", str(self.path), "a new file, or --resume: it is of the beginning of this grid")
        with self._transaction():
            # The last block was short, and is made again as a whole one.
            short = old.blocks - 1
            if old.span(short) != new.span(short):
                self.db.execute("DELETE FROM blocks WHERE number = ?", (short,))
            store.write_head(self.db, new)
        self.head = new

    def _digest(self, number: int) -> bytes:
        return self.grid.block_digest(self.grid.numbering.columns(*self.head.span(number)))

    def left(self) -> Iterator[Span]:
        """Yield the blocks to compute; one that equals a block in the store is copied instead."""
        for number in range(self.head.blocks):
            if number in self.digests:
                continue
            digest = self._digest(number)
            if digest in self.copies:
                self._copy(number, digest)
            else:
                self.pending[number] = digest
                yield Span(number, *self.head.span(number))

    def write(self, block: Block) -> None:
        """Add a block; it is safe when this returns. Raises StoreFull where there is no room."""
        digest = self.pending.pop(block.number)
        with self._transaction():
            store.insert(self.db, block, digest)
        self.counts = self.counts.plus(block, self.head.objective)
        self._known(block.number, digest)

    def _copy(self, number: int, digest: bytes) -> None:
        with self._transaction():
            # Equal configurations have equal outcomes; the best one's number moves with its block.
            self.db.execute(
                "INSERT INTO blocks SELECT ?, digest, ok, impossible, failed, filtered, 0.0, "
                "best_number + (? - number) * ?, best, payload FROM blocks WHERE number = ?",
                (number, number, self.head.block_rows, self.copies[digest]),
            )
        self.counts = store.counted(self.db, self.head)
        self._known(number, digest)

    def _known(self, number: int, digest: bytes) -> None:
        self.digests[number] = digest
        self.copies.setdefault(digest, number)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with roomy(self.path):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.commit()
            except BaseException:
                with suppress(sqlite3.Error):
                    self.db.execute("ROLLBACK")
                raise

    def commit(self) -> None:
        """End the transaction; when this returns, what it wrote is on the disk."""
        self.db.execute("COMMIT")

    def close(self) -> None:
        """Close the store, one file again where nobody reads it, and let others write it."""
        with suppress(sqlite3.Error):
            # Only who writes needs a log beside the store, and who only reads could not take it away again.
            self.db.execute("PRAGMA busy_timeout = 0")
            self.db.execute("PRAGMA journal_mode = DELETE")
        with suppress(sqlite3.Error):
            self.db.close()
        unlocked(self.lock)


@contextmanager
def roomy(path: Path) -> Iterator[None]:
    """Turn the errors of a full or failing disk into StoreFull."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise
        raise StoreFull(f"{path}: {error}") from None


def _unfinished(path: Path) -> bool:
    """Return whether a file is a database without anything in it: its making was cut short."""
    with store.guarded(path):
        db = store.opened(path, "rw")
        try:
            return not db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        finally:
            db.close()


def locked(path: Path) -> IO[str]:
    """Return the store's lock file, locked for as long as it is open; raises InputError where that cannot be."""
    return lock_file(path.absolute().with_name(path.name + ".lock"), "store", path)


def discard(path: Path) -> None:
    """Take a store away with its logs; raises InputError, and takes nothing away, where a process writes it."""
    lock = locked(path)
    try:
        for place in store.with_logs(path):
            place.unlink(missing_ok=True)
    finally:
        unlocked(lock)


def refuse_network(path: Path) -> None:
    """Refuse a store on a file system that other machines share: SQLite's WAL and the lock do not work there."""
    whole = path.absolute().resolve()
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    kind = next((mounts[place] for place in (whole, *whole.parents) if place in mounts), "")
    if kind.lower().startswith(NETWORK):
        raise InputError("store", str(path), f"a file on a local disk: {kind} is a network file system")
