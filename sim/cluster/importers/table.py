"""Tables with a header whose columns may have several names and stand in any order."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sim.specs.fields import InputError
from sim.specs.files import UNPRINTABLE, text_of

MAX_BYTES = 64 * 2**20

WHOLE = re.compile(r"-?[0-9]{1,18}")

Columns = Mapping[str, Sequence[str]]
"""What is read -> the headings that it may stand under; the first that the table has counts."""


@dataclass(frozen=True)
class Line:
    """A line of a table: what is read -> its cell, "" where the table has no such column."""

    place: str
    cells: Mapping[str, str]

    def error(self, name: str, allowed: str) -> InputError:
        """Return what is wrong with a cell."""
        return InputError(f"{self.place}.{name}", self.cells[name], allowed)

    def time_s(self, name: str) -> float:
        """Return a cell's date and time as seconds since 1970 (UTC where it names no zone).

        Raises:
            InputError: the cell is no such date.
        """
        try:
            found = datetime.fromisoformat(self.cells[name])
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise self.error(name, "a date and time like 2025-01-31T08:15:00") from None

    def whole(self, name: str, low: int, high: int) -> int:
        """Return a cell's number; raises InputError where it is no whole number from `low` to `high`."""
        text = self.cells[name]
        if not WHOLE.fullmatch(text) or not low <= int(text) <= high:
            raise self.error(name, f"a whole number from {low} to {high}")
        return int(text)


def read_lines(path: Path, columns: Columns, required: Sequence[str], delimiter: str) -> Iterator[Line]:
    """Yield the lines of a table (`.gz` too); columns that nobody asked for are passed over.

    Raises:
        InputError: the file cannot be read, a required column is missing, or a line has another number of cells.
    """
    text = io.StringIO(text_of(path, MAX_BYTES), newline="")
    comma = delimiter == ","
    rows = csv.reader(text) if comma else csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    try:
        header = [cell.strip().lower() for cell in next(rows, [])]
        at = {name: next((header.index(h.lower()) for h in known if h.lower() in header), None)
              for name, known in columns.items()}  # fmt: skip
        for name in required:
            if at[name] is None:
                raise InputError(
                    f"{path}, line 1", delimiter.join(header)[:80], f"a column {' or '.join(columns[name])}"
                )
        for cells in rows:
            if not any(cells):
                continue
            place = f"{path}, line {rows.line_num}"
            if len(cells) != len(header):
                raise InputError(place, f"{len(cells)} cells", f"{len(header)}, as the header has")
            found = {name: "" if n is None else cells[n].strip() for name, n in at.items()}
            for name, cell in found.items():
                if UNPRINTABLE.search(cell):
                    raise InputError(f"{place}.{name}", cell, "text without control characters")
            yield Line(place, found)
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}", str(error)[:80], "a line of cells") from None
