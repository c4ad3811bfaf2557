"""Rows as a table that shows itself: HTML in a notebook, aligned text elsewhere."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from numbers import Real
from typing import Any, NamedTuple

from sim.specs.fields import InputError
from sim.units import THIN_SPACE, digits3, grouped

Source = str | Callable[[Any], Any]
Format = str | Callable[[Any], str]
NONE = "–"
SMALL = 1e-3
"""Numbers below it are written with an exponent."""
PERCENT = re.compile(r"(?<=[0-9])%")


class _Column(NamedTuple):
    heading: str
    cells: list[str]
    right: bool


@dataclass(frozen=True)
class Table:
    """Headings and cells as text, row by row; right: the columns of numbers, which end at the same edge.

    notes: sentences below.
    """

    headings: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return aligned text, a line a row below the headings."""
        lines = [self.headings, *self.cells]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        columns = list(zip(widths, self.right, strict=True))
        rows = (
            "  ".join(c.rjust(n) if right else c.ljust(n) for c, (n, right) in zip(line, columns, strict=True)).rstrip()
            for line in lines
        )
        return "\n".join((*rows, *self.notes))

    def _repr_html_(self) -> str:
        """Return the table as HTML, every text escaped."""
        head = self._row("th", self.headings)
        body = "".join(self._row("td", cells) for cells in self.cells)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{notes}"

    def _row(self, tag: str, cells: Sequence[str]) -> str:
        # A style of its own for every cell: JupyterLab would align all of them to the right.
        return (
            "<tr>"
            + "".join(
                f'<{tag} style="text-align:{"right" if right else "left"}">{escape(cell)}</{tag}>'
                for cell, right in zip(cells, self.right, strict=True)
            )
            + "</tr>"
        )


def table(rows: Sequence[Any] | Mapping[str, Any], /, **columns: Source | tuple[Source, Format]) -> Table:
    """Return rows as a table that shows itself.

    rows: objects or mappings; a mapping of names to rows has the names in front. columns: heading (with spaces for
    underscores) = where the cell comes from: a path of attributes or keys ("measured.step_time_s"; "" is the row
    itself) or a function of the row, alone or with a format: a specification (".1%"), a text with braces ("{:.1f} GB")
    or a function of the value. Without columns all fields of the rows are shown. Numbers have three significant digits,
    whole ones all of theirs; percent signs and thousands that a specification groups (",.0f") stand apart as
    everywhere; None is a dash.

    Raises:
        InputError: rows have no such attribute, or a format does not suit a value.
    """
    names, held = (list(rows), list(rows.values())) if isinstance(rows, Mapping) else ([], list(rows))
    asked: Mapping[str, Source | tuple[Source, Format]] = columns or {name: name for name in _fields(held)}
    made = [_Column("", names, right=False)] if names else []
    made += [_column(name, source, held) for name, source in asked.items()]
    cells = tuple(zip(*(column.cells for column in made), strict=True))
    return Table(tuple(column.heading for column in made), cells, tuple(column.right for column in made))


def _fields(rows: Sequence[Any]) -> list[str]:
    """Return the names of all fields of the rows, in order."""
    found: dict[str, None] = {}
    for row in rows:
        if isinstance(row, Mapping):
            found |= dict.fromkeys(row)
        elif is_dataclass(row):
            found |= dict.fromkeys(f.name for f in fields(row))
        else:
            found |= dict.fromkeys(getattr(row, "_fields", ()))
    if rows and not found:
        raise InputError("columns", None, "columns by name: these rows have no fields")
    return list(found)


def _column(name: str, asked: Source | tuple[Source, Format], rows: Sequence[Any]) -> _Column:
    source, form = asked if isinstance(asked, tuple) else (asked, None)
    values = [source(row) if callable(source) else _at(row, source) for row in rows]
    numeric = [isinstance(value, Real) and not isinstance(value, bool) for value in values if value is not None]
    try:
        cells = [_text(value, form) for value in values]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise InputError(name, form, f"a format of its values ({str(error)[:60]})") from None
    return _Column(name.replace("_", " "), cells, bool(numeric) and all(numeric))


def _at(row: Any, path: str) -> Any:
    """Return what stands at a path of attributes and keys, None behind a None or where a mapping has no such key."""
    if isinstance(row, Mapping) and path in row:
        return row[path]
    value = row
    for name in path.split(".") if path else ():
        if value is None:
            return None
        if isinstance(value, Mapping):
            value = value.get(name)
        elif hasattr(value, name):
            value = getattr(value, name)
        else:
            raise InputError(path, type(value).__name__, f"an object with {name!r}")
    return value


def _text(value: Any, form: Format | None = None) -> str:
    if value is None:
        return NONE
    if callable(form):
        return form(value)
    if form is None:
        return _plain(value)
    made = form.format(value) if "{" in form else format(value, form).replace(",", THIN_SPACE)
    return PERCENT.sub("\u00a0%", made)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return grouped(value)
    if isinstance(value, Real):
        return f"{float(value):.2e}" if 0 < abs(float(value)) < SMALL else digits3(float(value))
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)
