"""A file of JSON lines that measuring goes on from: read and written whole."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sim.specs.fields import InputError
from sim.specs.files import text_of, write_atomically

MOST_BYTES = 2**24


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a journal, none where there is no file yet.

    Raises:
        InputError: a line is no JSON object.
    """
    rows = []
    for number, line in enumerate(text_of(path, MOST_BYTES).splitlines() if path.exists() else (), 1):
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError, RecursionError):
            raise InputError(f"{path}:{number}", line[:40], "a JSON object") from None
    return rows


def write_journal(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a line for each object; the file is there as it was or as it is to be."""
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
