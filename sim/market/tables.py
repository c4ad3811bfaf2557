"""Files of rows, read block by block: columns in any order, and every mistake told with its place."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.market.offers import Floats
from sim.specs.fields import MAX_PROBLEMS, InputError
from sim.specs.files import mapping_of, text_of
from sim.specs.prices import YEARS, dated_s

MAX_BYTES = 256 * 2**20
"""Of a file, unpacked: 3 million rows and more."""
MAX_JSON_BYTES, MAX_JSON_VALUES = 64 * 2**20, 5_000_000

BLOCK = 512
"""Rows read together: many enough to work on columns, few enough to stay in a processor's cache (3 times as fast)."""

TIME = (
    "a date and time like 2020-03-01T10:11:21Z or 2020-03-01 (month/day/year too), of the years "
    f"{YEARS[0]} to {YEARS[1]}"
)

Cells = Sequence[str]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """Some rows: where each stands in the file, and their cells by the column's name in lower case."""

    lines: Sequence[int]
    columns: Mapping[str, Cells]

    def column(self, name: str) -> Cells:
        """Return the cells of a column; empty ones where the file has no such column."""
        return self.columns.get(name.lower(), ("",) * len(self.lines))


@dataclass
class Table:
    """A file of rows. `at` and a number say where a row stands; `problems` gathers what is wrong."""

    file: str
    header: tuple[str, ...]
    rows: Iterator[list[str]]
    at: str = "line "
    first: int = 2
    problems: list[InputError] = field(default_factory=list)

    def has(self, columns: Sequence[str]) -> bool:
        """Return whether the file has all these columns."""
        return {name.lower() for name in columns} <= set(self._names)

    @property
    def _names(self) -> list[str]:
        return [name.lower() for name in self.header]

    def place(self, line: int, column: str = "") -> str:
        """Return where a cell stands."""
        return f"{self.file}, {self.at}{line}" + (f".{column}" if column else "")

    def wrong(self, line: int, column: str, value: object, allowed: str) -> None:
        """Remember a cell that cannot be used."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(InputError(self.place(line, column), value, allowed))

    def refuse(self) -> None:
        """Raise what was found to be wrong as one InputError, if anything was."""
        if self.problems:
            first, *others = self.problems
            raise InputError(first.path, first.value, first.allowed, others)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows; blank ones are passed over, those with another number of cells are remembered as wrong."""
        line = self.first
        try:
            while block := list(islice(self.rows, BLOCK)):
                lines: Sequence[int] = range(line, line + len(block))
                line += len(block)
                if set(map(len, block)) != {len(self.header)}:
                    lines, block = self._whole(lines, block)
                yield Block(lines, dict(zip(self._names, zip(*block, strict=True), strict=True)) if block else {})
        except csv.Error as error:
            raise InputError(self.place(getattr(self.rows, "line_num", line)), str(error)[:80], "cells") from None

    def _whole(self, lines: Sequence[int], block: list[list[str]]) -> tuple[list[int], list[list[str]]]:
        kept = []
        for line, cells in zip(lines, block, strict=True):
            if len(cells) == len(self.header):
                kept.append((line, cells))
            elif any(cells):
                self.wrong(line, "", f"{len(cells)} cells", f"{len(self.header)}, as the header has")
        return [line for line, _ in kept], [cells for _, cells in kept]


def read_table(path: str | Path) -> Table:
    """Return the table in a file of comma-separated values (`.gz` too) with a header.

    Raises:
        InputError: the file cannot be read, is larger than 256 MiB, is empty, or names a column twice.
    """
    file = Path(path)
    text = io.TextIOWrapper(io.BytesIO(text_of(file, MAX_BYTES).encode()), "utf-8", newline="")
    rows = csv.reader(text, strict=True)
    try:
        header = tuple(cell.strip() for cell in next(rows, []))
    except csv.Error as error:
        raise InputError(f"{file}, line 1", str(error)[:80], "a header") from None
    if not any(header):
        raise InputError(str(file), "an empty file", "a header and rows")
    names = [name.lower() for name in header if name]
    twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if twice:
        raise InputError(f"{file}, line 1", twice, "each column once")
    return Table(str(file), header, rows)


def cells(table: Table, columns: Sequence[str]) -> Iterable[tuple[int, dict[str, str]]]:
    """Yield line and cells by column of each row; raises InputError for text that a terminal would obey, or no row."""
    empty = True
    for block in table.blocks():
        for line, *held in zip(block.lines, *(block.column(name) for name in columns), strict=True):
            empty = False
            row = {name: cell.strip() for name, cell in zip(columns, held, strict=True)}
            for name, cell in row.items():
                if unprintable(cell):
                    raise InputError(table.place(line, name), cell, "text without control characters")
            yield line, row
    table.refuse()
    if empty:
        raise InputError(table.file, "no rows", "a row or more")


def read_mapping(path: Path) -> Mapping[str, Any]:
    """Return the mapping in a JSON file of at most 64 MiB; raises InputError as `sim.specs.files.mapping_of`."""
    return mapping_of(text_of(path, MAX_JSON_BYTES), ".json", str(path), MAX_JSON_BYTES, MAX_JSON_VALUES)


def is_json(path: Path) -> bool:
    """Return whether a file's name says JSON, packed or not."""
    return path.name.removesuffix(".gz").endswith(".json")


class Numbered(dict[tuple[str, ...], int]):
    """What repeats in many rows, numbered as it comes."""

    def __missing__(self, key: tuple[str, ...]) -> int:
        self[key] = len(self)
        return self[key]


class Seconds(dict[str, float]):
    """Texts of times as seconds since 1970-01-01 UTC, each read once; nan where it is none, `empty` where empty."""

    def __init__(self, empty: float = nan) -> None:
        super().__init__({"": empty})

    def __missing__(self, text: str) -> float:
        self[text] = seconds_of(text)
        return self[text]

    def of(self, cells: Cells) -> Floats:
        """Return the seconds of each cell, (n,)."""
        return np.fromiter(map(self.__getitem__, cells), np.float64, len(cells))


def seconds_of(text: str) -> float:
    """Return seconds since 1970-01-01 UTC of an ISO 8601 time (UTC unless it says) or m/d/Y; nan where it is none."""
    try:
        text = text.strip()
        when = datetime.strptime(text, "%m/%d/%Y") if "/" in text else datetime.fromisoformat(text)
        return dated_s(when)
    except ValueError:
        return nan


def numbers_of(cells: Cells) -> Floats:
    """Return the number in each cell (n,); nan where a cell is empty, inf where it holds none."""
    try:
        made = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return np.fromiter(map(_number, cells), np.float64, len(cells))
    made[np.isnan(made)] = inf
    return made


def _number(cell: str) -> float:
    try:
        made = float(cell) if cell.strip() else nan
    except ValueError:
        return inf
    return inf if cell.strip() and isnan(made) else made


def unprintable(text: str) -> bool:
    """Return whether a name holds what is no character of a line: a terminal would obey it."""
    return not text.isprintable()
