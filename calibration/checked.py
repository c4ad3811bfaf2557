"""Checks of a device in parts, each a row of plain data: within a time, kept as they grow, none spoiled by another."""

from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean
from time import monotonic
from typing import Any

Row = dict[str, Any]
Summary = Callable[[Sequence[Row]], dict[str, Any]]


def check_parts(
    parts: Iterable[tuple[str, Callable[[], Row]]], seconds: float, summary: Summary, keep: Callable[[Row], None]
) -> dict[str, Any]:
    """Return what `summary` says of all rows that were made within `seconds`, also by dtype, with the rows.

    parts: a dtype each, and what makes a row. keep: is given the result so far after every row. `complete`: nothing was
    cut short. What fails is a row with its `failure`, and the next one is made.
    """
    end, rows = monotonic() + seconds, list[Row]()
    for dtype, part in parts:
        if monotonic() >= end:
            return _found(rows, summary, complete=False)
        rows.append({"dtype": dtype, **_tried(part)})
        keep(_found(rows, summary, complete=False))
    return _found(rows, summary, complete=True)


def _tried(part: Callable[[], Row]) -> Row:
    try:
        return part()
    except Exception as error:  # whatever goes wrong in a part is its result: time on a device is dear
        return {"failure": f"{type(error).__name__}: {error}"[:2000]}


def _found(rows: Sequence[Row], summary: Summary, complete: bool) -> dict[str, Any]:
    dtypes = dict.fromkeys(row["dtype"] for row in rows)
    by_dtype = {dtype: summary([row for row in rows if row["dtype"] == dtype]) for dtype in dtypes}
    return {"complete": complete, **summary(rows), "by_dtype": by_dtype, "rows": list(rows)}


def column(rows: Sequence[Row], name: str) -> list[Any]:
    """Return a value of the rows that have it."""
    return [row[name] for row in rows if name in row]


def mean_ratio(rows: Sequence[Row], name: str) -> float | None:
    """Return the geometric mean of a ratio over the rows that have it, None where none has."""
    values = column(rows, name)
    return geometric_mean(values) if values else None
