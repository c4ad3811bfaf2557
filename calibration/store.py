"""The folder of a measurement: `samples.parquet`, written as it goes, and `session.json`, which says whose it is."""

import io
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from calibration.device import Fingerprint
from sim.specs.fields import InputError, read, real, spec, version_one, whole
from sim.specs.files import load_mapping, what_stands, write_atomically

TEXTS = ("op", "direction", "dtype", "layout", "implementation", "group", "use", "id")
NUMBERS = ("t_s", "t_min_s", "t_p10_s", "t_p90_s")
READINGS = ("sm_clock_hz", "memory_clock_hz", "power_w", "temperature_c", "sentinel_ratio")
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in TEXTS),
        ("calls", pa.int64()),
        *((name, pa.float64()) for name in NUMBERS),
        ("n", pa.int64()),
        ("launches", pa.int64()),
        ("flop", pa.float64()),
        ("bytes", pa.float64()),
        ("shape", pa.string()),
        *((name, pa.float64()) for name in READINGS),
        ("flagged", pa.bool_()),
        ("error", pa.float64()),
        *((name, pa.string()) for name in ("at", "session", "commit")),
    ]
)
"""Columns of `samples.parquet`; times are seconds of one kernel call, `shape` is JSON text (name -> number)."""

SAMPLES, SESSION = "samples.parquet", "session.json"
MOST_BYTES, MOST_ROWS = 2**26, 200_000
EVERY_S = 3.0
UNITS = {"time": "s", "size": "bytes", "work": "FLOP", "clock": "Hz", "power": "W", "temperature": "degrees C"}

Text = Annotated[str, Field(max_length=2_000, description="text of at most 2000 characters")]
Count = Annotated[int, whole(0, MOST_ROWS, "samples")]


@spec
class Skip:
    """A case that was not measured, and why."""

    id: Text
    reason: Text


@spec
class Session:
    """One measuring session, as `session.json` holds it; `sentinel_s` is what drift is told from (0: not yet timed).

    despite_load: others used the machine when a call began. No sample tells then how it is undisturbed, so that all of
    that call are flagged and the fit takes flagged ones too; on a machine that gets busy later, guards flag batches and
    the fit takes the others.
    """

    schema_version: Annotated[int, version_one()] = 1
    session: Text
    date: Text
    fingerprint: Fingerprint
    method: Text
    units: dict[str, str] = Field(default_factory=lambda: dict(UNITS))
    suite: Literal["smoke", "full"]
    seed: Annotated[int, whole(0, 2**32 - 1)]
    budget_s: Annotated[float, real(0.0, 1e6, "s")]
    commit: Text
    despite_load: bool = False
    sentinel_s: Annotated[float, real(0.0, 1e3, "s")] = 0.0
    measured: Count = 0
    flagged: Count = 0
    left: Count = 0
    skipped: tuple[Skip, ...] = ()

    def save(self, folder: Path) -> None:
        """Write `session.json` whole into `folder`."""
        plain = asdict(self) | {"fingerprint": self.fingerprint.plain()}
        write_atomically(folder / SESSION, dumps(plain, indent=1, allow_nan=False))


def new_session(**given: Any) -> Session:
    """Return a session with a random id, today's UTC date and the commit of this code; the rest as `given`."""
    return Session(session=uuid4().hex[:16], date=f"{datetime.now(UTC):%Y-%m-%d}", commit=commit(), **given)


def load_session(folder: Path) -> Session:
    """Return the session of a folder.

    Raises:
        InputError: there is none, or a field of it is wrong.
    """
    return read(Session, load_mapping(folder / SESSION), SESSION)


def commit() -> str:
    """Return the git commit of this code ("+" where files have changed since), empty outside a checkout."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--abbrev=40",
        "--dirty=+",
        "--exclude=*",
    ]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.strip() if told.returncode == 0 else ""


class Store:
    """The samples of a folder by case id; each write replaces the file as a whole.

    A case may have been measured on several hosts (what they issue: `calibration.issue` takes the mean): the last
    sample in the file is the one that may be replaced, the others stay.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        """Take up what `folder` holds already.

        Raises:
            InputError: its `samples.parquet` cannot be read.
        """
        self._path = folder / SAMPLES
        self._now = now
        self._written_s = now()
        held = read_samples(self._path) if self._path.exists() else []
        if any(row["sentinel_ratio"] is None for row in held):
            raise InputError(str(self._path), "no sentinel_ratio", "samples of a session, each with its sentinel's")
        self.rows: dict[str, dict[str, Any]] = {row["id"]: row for row in held}
        self._others = [row for row in held if self.rows[row["id"]] is not row]

    @property
    def flagged(self) -> int:
        """How many of the samples are flagged."""
        return sum(row["flagged"] for row in self.rows.values())

    def add(self, row: Mapping[str, Any]) -> None:
        """Take up a sample; one that replaces another must be better (not flagged) or the first."""
        if row["id"] not in self.rows or not row["flagged"]:
            self.rows[row["id"]] = dict(row)

    def write_if_due(self) -> None:
        """Write when the last write is more than three seconds ago."""
        if self._now() - self._written_s >= EVERY_S:
            self.write()

    def write(self) -> None:
        """Write all samples, replacing the file in one step."""
        write_atomically(self._path, parquet([*self._others, *self.rows.values()]))
        self._written_s = self._now()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    """Return the content of a `samples.parquet` with these rows."""
    held = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), held, compression="zstd")
    return held.getvalue()


def read_samples(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a `samples.parquet`.

    Raises:
        InputError: the file is no Parquet file, too large, or has other columns, or a sample lacks what tells whether
            it is to be trusted.
    """
    try:
        if not path.is_file():
            raise InputError(str(path), what_stands(path), "a whole Parquet file of samples")
        if path.stat().st_size > MOST_BYTES:
            raise InputError(str(path), f"{path.stat().st_size} bytes", f"at most {MOST_BYTES} bytes")
        file = pq.ParquetFile(path)
        if file.metadata.num_rows > MOST_ROWS:
            raise InputError(str(path), f"{file.metadata.num_rows} rows", f"at most {MOST_ROWS} rows")
        if not file.schema_arrow.equals(SCHEMA):
            raise InputError(str(path), file.schema_arrow.names, "the columns " + ", ".join(SCHEMA.names))
        rows = cast("list[dict[str, Any]]", file.read().to_pylist())
    except InputError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:  # text that is none, too
        raise InputError(str(path), " ".join(str(error).split())[:80], "a whole Parquet file of samples") from None
    for n, row in enumerate(rows):
        _check(row, f"{path}[{n}]")
    return rows


NAMED = ("op", "direction", "dtype", "implementation", "group", "use", "id")


def _check(row: Mapping[str, Any], place: str) -> None:
    """Refuse a sample without the texts that name it, its seconds, or what guards said of it.

    The sentinel was asked beside every sample of a session; profiler traces know none, and flag nothing.
    """
    if not isinstance(row["t_s"], float) or not 1e-9 <= row["t_s"] <= 1e6:
        raise InputError(f"{place}.t_s", row["t_s"], "a number from 1e-9 to 1e6 s")
    wrong = [name for name in NAMED if not isinstance(row[name], str) or len(row[name]) > 400]
    if wrong or not isinstance(row["flagged"], bool):
        name = (wrong or ["flagged"])[0]
        raise InputError(f"{place}.{name}", row[name], "text of at most 400 characters; flagged true or false")
    ratio = row["sentinel_ratio"]
    if row["flagged"] if ratio is None else not 1e-6 <= ratio <= 1e6:
        raise InputError(f"{place}.sentinel_ratio", ratio, "a number from 1e-6 to 1e6")
