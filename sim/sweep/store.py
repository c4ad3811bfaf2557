"""The store of a sweep: one SQLite file in WAL mode, one writer, any number of readers.

A block is in it for good when its transaction is committed (`synchronous=FULL`); what is killed before that leaves no
trace of the block. Nothing in it is code: payloads are Arrow columns behind a checksum, the grid
is JSON.
"""

import errno
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.specs import InputError
from sim.specs.arguments import checked
from sim.specs.fields import short
from sim.specs.files import what_stands
from sim.sweep.closing import Closing
from sim.sweep.evaluate import Block
from sim.sweep.numbering import Axis, Column, Numbering
from sim.sweep.outcome import BETTER, MOST_ROWS, OUTCOMES, Damaged, Outcome

NO_ROOM = (
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP,
)  # fmt: skip
"""Of a disk that takes no more; other failures to read or write are told as those of a damaged file."""

APPLICATION_ID = 0x7472_7377
"""Marks the file as a store ("trsw"), as SQLite's header has room for."""

SCHEMA_VERSION = 2
TABLES = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "blocks": (
        "CREATE TABLE blocks (number INTEGER PRIMARY KEY, digest BLOB NOT NULL, ok INTEGER NOT NULL, "
        "impossible INTEGER NOT NULL, failed INTEGER NOT NULL, filtered INTEGER NOT NULL, seconds REAL NOT NULL, "
        "best_number INTEGER, best REAL, payload BLOB NOT NULL)"
    ),
    "blocks_digest": "CREATE INDEX blocks_digest ON blocks (digest)",
}
"""The whole schema, by name; a file with any other is no store."""

BUSY_S = 30.0
MOST_READ = 64


@dataclass(frozen=True)
class Counts:
    """Configurations by what became of them; `left` are still to do. `best`: number and value of the best so far."""

    total: int
    ok: int
    impossible: int
    failed: int
    filtered: int
    seconds: float
    best: tuple[int, float] | None

    @property
    def done(self) -> int:
        """Configurations in the store."""
        return self.ok + self.impossible + self.failed + self.filtered

    @property
    def left(self) -> int:
        """Configurations still to do."""
        return self.total - self.done

    def plus(self, block: Block, objective: str) -> "Counts":
        """Return the counts with one more block."""
        sign, both = BETTER[objective][1], [b for b in (self.best, block.best) if b]
        best = min(both, key=lambda b: (sign * b[1], b[0]), default=None)
        more = {name: getattr(self, name) + n for name, n in zip(OUTCOMES, block.counts, strict=True)}
        return replace(self, **more, seconds=self.seconds + block.seconds, best=best)


@dataclass(frozen=True)
class Head:
    """What a store says of itself: the grid (plain data), its hash and that of what all blocks rest on (base), the
    numbering and the rows of a block."""

    grid: Mapping[str, Any]
    digest: str
    base: str
    numbering: Numbering
    block_rows: int

    @property
    def objective(self) -> str:
        """What the best has least of (or most)."""
        return str(self.grid["objective"])

    @property
    def blocks(self) -> int:
        """Blocks of the whole grid."""
        return -(-self.numbering.size // self.block_rows)

    def named(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return columns of configurations, of which `number` is the first, with the axes' values by path after it."""
        values = self.numbering.at(columns["number"])
        return {"number": columns["number"], **{path: taken(c) for path, c in values.items()}, **columns}

    def span(self, block: int) -> tuple[int, int]:
        """Return the first number of a block and the one after its last."""
        return block * self.block_rows, min(self.numbering.size, (block + 1) * self.block_rows)


class Store(Closing):
    """A store to read, also while a sweep writes it: `sim.Store("runs.db").counts`.

    Raises:
        InputError: there is no such file, it is no store, or it is damaged.
    """

    @checked
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise InputError(str(path), what_stands(self.path), "the store of a sweep")
        with guarded(self.path):
            self.db = _to_read(self.path)
            self.head = read_head(self.db, self.path)

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    @property
    def counts(self) -> Counts:
        """How far the sweep is, now."""
        with guarded(self.path):
            return counted(self.db, self.head)

    def blocks(self) -> Iterator[tuple[int, Outcome]]:
        """Yield the first number of every block in the store and its rows, in order; one is in memory at a time."""
        with guarded(self.path):
            numbers = [int(n) for (n,) in self.db.execute("SELECT number FROM blocks ORDER BY number")]
        for number in numbers:
            yield self.head.span(number)[0], self.outcome(number)

    def outcome(self, number: int) -> Outcome:
        """Return the rows of a block."""
        start, stop = self.head.span(number)
        with guarded(self.path):
            row = self.db.execute("SELECT payload FROM blocks WHERE number = ?", (number,)).fetchone()
            if row is None or not isinstance(row[0], bytes) or stop <= start:
                raise Damaged(f"block {number} is missing")
            try:
                return Outcome.unpacked(row[0], stop - start)
            except Damaged as error:
                raise Damaged(f"block {number}: {error}") from None

    def columns(self, start: int, stop: int) -> dict[str, Column]:
        """Return the axes' values of the configurations from `start` to before `stop`."""
        return self.head.numbering.columns(start, stop)

    def some_blocks(self, most: int = MOST_READ) -> Iterator[tuple[int, Outcome]]:
        """Yield `blocks`, of a large store `most` alone, spread evenly."""
        with guarded(self.path):
            numbers = [int(n) for (n,) in self.db.execute("SELECT number FROM blocks ORDER BY number")]
        for k in sorted({round(k) for k in np.linspace(0, len(numbers) - 1, most)} if numbers else ()):
            yield self.head.span(numbers[k])[0], self.outcome(numbers[k])

    def sample(
        self, points: int = 5_000, blocks: Sequence[tuple[int, Outcome]] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return at most `points` predicted configurations, spread evenly over those in the store, as columns: number,
        the axes' values by path, and the numbers of `Outcome`.

        blocks: by default `some_blocks`, so that a notebook may ask while the sweep runs.
        """
        blocks = list(self.some_blocks()) if blocks is None else blocks
        every, seen = max(1, -(-sum(found.counts()[0] for _, found in blocks) // max(1, points))), 0
        held: dict[str, list[NDArray[Any]]] = {}
        for start, found in blocks:
            rows = np.flatnonzero(found.outcome == OUTCOMES.index("ok"))
            kept = rows[(np.arange(len(rows)) + seen) % every == 0]
            seen += len(rows)
            for name, column in ({"number": start + np.arange(len(found))} | dict(found.numbers)).items():
                held.setdefault(name, []).append(column[kept])
        columns = {name: np.concatenate(parts) for name, parts in held.items()}
        return columns and self.head.named(columns)

    def configuration(self, number: int) -> dict[str, Any]:
        """Return the axes' values of one configuration."""
        return {path: c.values[int(c.index[0])] for path, c in self.columns(number, number + 1).items()}


def taken(column: Column) -> NDArray[Any]:
    """Return a column's values as an array of their own type; what is no number, text or flag as objects."""
    plain = len({type(v) for v in column.values}) == 1 and isinstance(column.values[0], int | float | str | bool)
    if plain:
        return np.array(column.values)[column.index]
    values = np.empty(len(column.values), dtype=object)
    values[:] = column.values
    return values[column.index]


def _to_read(path: Path) -> sqlite3.Connection:
    """Return a connection that reads; what a killed writer had begun is taken back first, which has to write."""
    for mode in ("ro", "rw"):
        db = opened(path, mode)
        try:
            db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        except sqlite3.OperationalError as error:
            db.close()
            if mode == "rw" or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
        else:
            if mode == "ro":
                return db
            db.close()
    return opened(path, "ro")


def opened(path: Path, mode: str) -> sqlite3.Connection:
    """Return a connection that trusts nothing in the file. mode: ro, rw or rwc."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    return db


def with_logs(path: Path) -> list[Path]:
    """Return the files of a store: itself and SQLite's logs beside it."""
    return [path.with_name(path.name + end) for end in ("", "-wal", "-shm")]


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Turn what a foreign or damaged file causes into one clear error; a full disk is an OSError with its name."""
    try:
        yield
    except (sqlite3.DatabaseError, Damaged, UnicodeError) as error:
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode in NO_ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            raise InputError(str(path), "busy", "a store that no other program holds locked") from None
        raise InputError(str(path), short(str(error), 80), "the undamaged store of a sweep") from None


def read_head(db: sqlite3.Connection, path: Path) -> Head:
    """Return what a store says of itself; raises InputError where it is none, or of another version."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise InputError(str(path), "another kind of file", "the store of a sweep")
    if version != SCHEMA_VERSION:
        raise InputError(str(path), f"schema version {version}", f"schema version {SCHEMA_VERSION} (this trainsim's)")
    found = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    if found != TABLES:
        raise InputError(str(path), "other tables", "the store of a sweep")
    try:
        held = {str(key): json.loads(value) for key, value in db.execute("SELECT key, value FROM meta")}
        numbering = numbering_of(held["numbering"])
        if not 1 <= held["block_rows"] <= MOST_ROWS or held["grid"]["objective"] not in BETTER:
            raise ValueError("block_rows or objective out of range")
        return Head(held["grid"], str(held["digest"]), str(held["base"]), numbering, int(held["block_rows"]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from None


def numbering_of(data: Mapping[str, Any]) -> Numbering:
    """Return the numbering that `numbering_data` gave."""
    axes = tuple(Axis.read(axis) for axis in data["axes"])
    found = Numbering(axes, data["method"], data["count"], data["seed"])
    if not axes or not 1 <= found.size < 2**62 or not all(isinstance(a.path, str) for a in axes):
        raise ValueError("axes out of range")
    return found


def numbering_data(numbering: Numbering) -> dict[str, Any]:
    """Return a numbering as plain data."""
    return {**vars(numbering), "axes": [axis.data() for axis in numbering.axes]}


def counted(db: sqlite3.Connection, head: Head) -> Counts:
    """Return how far a sweep is."""
    sums = ", ".join(f"coalesce(sum({name}), 0)" for name in OUTCOMES)
    *each, seconds = db.execute(f"SELECT {sums}, coalesce(sum(seconds), 0.0) FROM blocks").fetchone()
    order = "ASC" if BETTER[head.objective][1] > 0 else "DESC"
    query = f"SELECT best_number, best FROM blocks WHERE best IS NOT NULL ORDER BY best {order}, best_number LIMIT 1"
    best = db.execute(query).fetchone()
    ok, impossible, failed, filtered = map(int, each)
    total = head.numbering.size
    return Counts(total, ok, impossible, failed, filtered, float(seconds), best and (int(best[0]), float(best[1])))


def digests(db: sqlite3.Connection) -> dict[int, bytes]:
    """Return the content hash of every block in the store, by number."""
    return {int(number): bytes(digest) for number, digest in db.execute("SELECT number, digest FROM blocks")}


def create(path: Path, head: Head) -> None:
    """Make an empty store, whole or not at all."""
    new = not path.exists()
    try:
        _create(path, head)
    except BaseException:
        for place in with_logs(path) if new else ():
            place.unlink(missing_ok=True)
        raise


def _create(path: Path, head: Head) -> None:
    with closing(opened(path, "rwc")) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")
        for statement in TABLES.values():
            db.execute(statement)
        write_head(db, head)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")


def write_head(db: sqlite3.Connection, head: Head) -> None:
    """Set what a store says of itself, inside a transaction."""
    held = {
        "grid": head.grid, "digest": head.digest, "base": head.base,
        "numbering": numbering_data(head.numbering), "block_rows": head.block_rows,
    }  # fmt: skip
    rows = [(key, json.dumps(value)) for key, value in held.items()]
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)


def insert(db: sqlite3.Connection, block: Block, digest: bytes) -> None:
    """Add a block in the transaction that is open; a number that is there already is an error."""
    number, value = block.best or (None, None)
    row = (block.number, digest, *block.counts, block.seconds, number, value, block.payload)
    db.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
