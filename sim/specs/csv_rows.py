"""Tables of dataclasses as CSV: a header of the fields' names, and one line a row."""

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from sim.specs.fields import InputError
from sim.specs.files import write_atomically

MAX_BYTES = 16 * 2**20


def write_rows(rows: Iterable[Any], kind: type[Any], path: Path, cell: Callable[[Any], Any]) -> None:
    """Write rows of the dataclass `kind`, whole or not at all; `cell`: what stands for a value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [f.name for f in fields(kind)]
    writer.writerow(names)
    writer.writerows([cell(getattr(row, name)) for name in names] for row in rows)
    write_atomically(path, out.getvalue())


def read_cells(path: str | Path, kind: type[Any], allowed: str) -> list[list[str]]:
    """Return the cells of every row below the header of a table of `kind`; `allowed`: what the file should be.

    Raises:
        InputError: no file that can be read, or another header.
    """
    file, names = Path(path), [f.name for f in fields(kind)]
    try:
        with file.open("rb") as raw:
            text = raw.read(MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(file), str(error)[:80], allowed) from None
    lines = list(csv.reader(io.StringIO(text, newline="")))
    if not lines or lines[0] != names:
        raise InputError(f"{file}:1", ",".join(lines[0] if lines else [])[:80], ",".join(names))
    return lines[1:]
