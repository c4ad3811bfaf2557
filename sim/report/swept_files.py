"""A sweep's table as Parquet or CSV, written a block at a time, whole or not at all."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import compute, csv, parquet

from sim.specs.files import drafted, writable
from sim.sweep.numbering import Axis, Column
from sim.sweep.outcome import FITS, INTERVAL, NUMBERS, OUTCOMES, Outcome
from sim.sweep.store import Store

Progress = Callable[[int], None]
"""Called with how many more rows are written."""

ROWS = 16_384
"""Rows that are written together."""

FORMULA = r"^([=+\-@\t\r])"
"""Beginnings of text that a spreadsheet takes for a formula; an apostrophe before it keeps it text."""


class _Writes(Protocol):
    def write_table(self, table: Any) -> None: ...
    def close(self) -> None: ...


def save_parquet(store: Store, path: str | Path, progress: Progress = lambda rows: None) -> Path:
    """Write every configuration that a store holds to a Parquet file; raises InputError where it cannot be written."""

    def writer(place: str, schema: Any) -> _Writes:
        return parquet.ParquetWriter(place, schema, compression="zstd")  # type: ignore[no-any-return]

    return _saved(store, Path(path), writer, False, progress)


def save_csv(store: Store, path: str | Path, progress: Progress = lambda rows: None) -> Path:
    """Write every configuration that a store holds to a CSV file, what is missing as nothing; raises InputError
    where it cannot be written."""
    return _saved(store, Path(path), csv.CSVWriter, True, progress)


def _saved(store: Store, path: Path, writer: Callable[[str, Any], _Writes], neutral: bool, progress: Progress) -> Path:
    with drafted(path) as place, writable(path):
        file = writer(str(place), _schema(store))
        try:
            for table in _tables(store, neutral):
                file.write_table(table)
                progress(table.num_rows)
        finally:
            file.close()
    return path


def _tables(store: Store, neutral: bool) -> Iterator[Any]:
    """Yield the table in parts of some `ROWS` rows."""
    schema, held, rows = _schema(store), list[Any](), 0
    for start, found in store.blocks():
        held.append(_table(store, start, found, schema, neutral))
        rows += len(found)
        if rows >= ROWS:
            yield pa.concat_tables(held)
            held, rows = [], 0
    if held:
        yield pa.concat_tables(held)


def _schema(store: Store) -> Any:
    """Return the columns: number, the axes by path, outcome, reason, numbers."""
    axes = [(axis.path, _kind(axis)) for axis in store.head.numbering.axes]
    numbers = {**NUMBERS, **(INTERVAL if store.head.grid.get("engine") != "analytic" else {})}
    typed = [(name, pa.string() if name == "fits" else pa.from_numpy_dtype(kind)) for name, kind in numbers.items()]
    return pa.schema([("number", pa.int64()), *axes, ("outcome", pa.string()), ("reason", pa.string()), *typed])


def _kind(axis: Axis) -> Any:
    kinds = {type(v) for v in axis.values} or {int if axis.whole else float}
    single = {bool: pa.bool_(), int: pa.int64(), str: pa.string()}.get(next(iter(kinds))) if len(kinds) == 1 else None
    return single or (pa.float64() if kinds <= {int, float} else pa.string())


def _table(store: Store, start: int, found: Outcome, schema: Any, neutral: bool) -> Any:
    columns = store.columns(start, start + len(found))
    arrays = [pa.array(np.arange(start, start + len(found)))]
    arrays += [_values(column.used(), schema.field(path).type) for path, column in columns.items()]
    arrays += [_named(found.outcome.astype(np.int64), OUTCOMES), _named(found.reason.astype(np.int64), found.reasons)]
    for name, values in found.numbers.items():
        arrays.append(_named(values.astype(np.int64), FITS) if name == "fits" else pa.array(values, from_pandas=True))
    if neutral:
        arrays = [
            compute.replace_substring_regex(each, pattern=FORMULA, replacement=r"'\1")
            if pa.types.is_string(each.type)
            else each
            for each in arrays
        ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _values(column: Column, kind: Any) -> Any:
    values = [
        json.dumps(v) if pa.types.is_string(kind) and not isinstance(v, str) and v is not None else v
        for v in column.values
    ]
    return pa.array(values, type=kind).take(pa.array(column.index))


def _named(codes: Any, words: tuple[str, ...]) -> Any:
    """Return codes as words, -1 as nothing."""
    return pa.array(words, type=pa.string()).take(pa.array(codes, mask=codes < 0))
