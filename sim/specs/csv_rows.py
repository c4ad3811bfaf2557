"""Tables as CSV: a header of names, those of a dataclass's fields where it has one, and one line a row."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from sim.specs.fields import InputError, init_names, read
from sim.specs.files import text_of, write_atomically

T = TypeVar("T")
MAX_BYTES = 16 * 2**20
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a text that begins so for a formula."""


def write_rows(rows: Iterable[Any], kind: type[Any], path: Path, cell: Callable[[Any], Any]) -> None:
    """Write rows of the dataclass `kind`, whole or not at all; `cell`: what stands for a value that is no text.

    A leading = + - @ of a text is no formula of a spreadsheet; `read_cells` gives the text back.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [f.name for f in fields(kind)]
    writer.writerow(names)
    values = ([getattr(row, name) for name in names] for row in rows)
    writer.writerows([no_formula(each) if isinstance(each, str) else cell(each) for each in row] for row in values)
    write_atomically(path, out.getvalue())


def no_formula(value: str) -> str:
    """Return a text as a cell that no spreadsheet takes for a formula."""
    return f"'{value}" if value.startswith(FORMULA) else value


def read_cells(path: str | Path, kind: type[Any], allowed: str) -> Iterator[tuple[str, list[str]]]:
    """Yield place (`file:line`) and cells of every row below the header of a table of `kind`; blank lines are none.

    `allowed`: what the file should be.

    Raises:
        InputError: no file that can be read, another header, or a row with another number of cells.
    """
    names = [f.name for f in fields(kind)]
    rows = csv_lines(text_of(Path(path), MAX_BYTES), str(path))
    place, header = next(rows, (f"{path}:1", []))
    if header != names:
        raise InputError(place, ",".join(header)[:80], f"{allowed}: {','.join(names)}")
    yield from ((place, [_told(cell) for cell in cells]) for place, cells in rows)


def _told(cell: str) -> str:
    return cell[1:] if cell[:1] == "'" and cell[1:].startswith(FORMULA) else cell


def read_specs(path: str | Path, kind: type[T]) -> Iterator[T]:
    """Yield the rows of a table as instances of the spec `kind`: a column for each field, others are left out.

    Raises:
        InputError: with file, line and column of the first mistake (`file:line.column`).
    """
    kinds = {name: get_type_hints(kind)[name] for name in init_names(kind)}
    for place, cells in read_records(path, tuple(kinds)):
        yield read(kind, {name: _typed(cell, kinds[name]) for name, cell in cells.items()}, place)


def _typed(cell: str, kind: Any) -> Any:
    """Return the number that a cell holds; what is none stays text, which the spec refuses."""
    try:
        return kind(cell) if kind in (int, float) else cell
    except ValueError:
        return cell


def read_records(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield place (`file:line`) and cells by column of every row; the file has these columns, others are left out.

    Raises:
        InputError: no file that can be read, a column is missing or there twice, or a row has another number of cells.
    """
    rows = csv_lines(text_of(Path(path), MAX_BYTES), str(path))
    place, header = next(rows, (f"{path}:1", []))
    if missing := [name for name in columns if name not in header]:
        raise InputError(place, ",".join(header)[:80], f"columns {', '.join(missing)} too")
    if twice := [name for name in columns if header.count(name) > 1]:
        raise InputError(place, ",".join(header)[:80], f"each column once: {', '.join(twice)}")
    at = {name: header.index(name) for name in columns}
    for place, cells in rows:
        yield place, {name: cells[n] for name, n in at.items()}


def csv_lines(text: str, source: str) -> Iterator[tuple[str, list[str]]]:
    """Yield place (`source:line`) and cells of every line that has any, the header first.

    Raises:
        InputError: no CSV, or a line with another number of cells than the header.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns = 0
    try:
        for cells in filter(None, reader):
            place = f"{source}:{reader.line_num}"
            columns = columns or len(cells)
            if len(cells) != columns:
                raise InputError(place, f"{len(cells)} cells", f"{columns}, as the header has")
            yield place, cells
    except csv.Error as error:
        raise InputError(f"{source}:{reader.line_num}", str(error)[:80], "well-formed CSV") from None
