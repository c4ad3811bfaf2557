"""Rows of one file of prices: which offer each speaks of, and what is left out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.market.offers import Billing, Floats, Offer
from sim.market.price_formats import Format, LeftOut, bare_instance, cloud_of, opened
from sim.market.tables import TIME, Block, Ints, Numbered, Seconds, Table, numbers_of, unprintable
from sim.specs.fields import InputError

MOST_USD = 1e6
PRICE = f"USD of an hour above 0, below {MOST_USD:g}"
TOLD = 10
"""Names that a note lists."""


@dataclass(frozen=True, eq=False)
class Prices:
    """Prices in rows, each (n,): the offer's number, when it begins (-inf: always), USD of an hour."""

    offer: Ints
    times_s: Floats
    usd: Floats

    def at(self, rows: Ints) -> "Prices":
        """Return some rows, in another order."""
        return Prices(self.offer[rows], self.times_s[rows], self.usd[rows])

    @classmethod
    def joined(cls, parts: Sequence["Prices"]) -> "Prices":
        """Return the rows of all parts, one after the other."""
        return cls(
            np.concatenate([part.offer for part in parts]),
            np.concatenate([part.times_s for part in parts]),
            np.concatenate([part.usd for part in parts]),
        )


@dataclass(frozen=True, eq=False)
class _Read:
    """A file's rows: where each stands and the number of its key in `keys`, both (n,), its time, its m prices (n, m).

    `strange`: times and prices that cannot be used, by line and column.
    """

    keys: Numbered
    lines: Ints
    key: Ints
    times_s: Floats
    usd: Floats
    strange: dict[tuple[int, str], str]


def rows_of(path: str | Path, numbers: dict[Offer, int], notes: list[str]) -> Prices:
    """Return the prices of a file in its order; `numbers` is extended by its offers, `notes` by what was left out.

    Raises:
        InputError: with file, line and column of the first mistake, the others in `also`.
    """
    table, form = opened(path)
    read = _read(table, form)
    offers = _offers(table, form, read)
    offered = np.array([isinstance(offer, Offer) for offer in offers])[read.key]
    used = set(read.lines[offered].tolist()) if read.strange else set()
    for (line, column), text in sorted(read.strange.items()):
        if line in used:
            table.wrong(line, column, text, TIME if column == form.time else PRICE)
    table.refuse()
    _tell(table, offers, read.key, notes)
    empty = int((offered & np.isnan(read.usd).all(axis=1)).sum())
    if empty:
        notes.append(f"{table.file}: {form.empty.format(empty)}")
    made = Prices.joined(
        [_paid(read, offers, offered, m, billing, numbers) for m, (_, billing) in enumerate(form.prices)]
    )
    if not len(made.usd):
        raise InputError(table.file, "no price", "a price in at least one row")
    return made


def _read(table: Table, form: Format) -> _Read:
    keys, seconds = Numbered(), Seconds(-inf if form.timeless else nan)
    strange: dict[tuple[int, str], str] = {}
    parts: list[tuple[Ints, Ints, Floats, Floats]] = []
    for block in table.blocks():
        n = len(block.lines)
        cells = zip(*(block.column(name) for name in (*form.keys, *form.also)), strict=True)
        key = np.fromiter(map(keys.__getitem__, cells), np.int64, n)
        times = seconds.of(block.column(form.time)) if form.time else np.full(n, -inf)
        usd = np.column_stack([numbers_of(block.column(column)) for column, _ in form.prices])
        parts.append((np.fromiter(block.lines, np.int64, n), key, times, usd))
        strange |= _strange(block, form.time, np.isnan(times))
        for m, (column, _) in enumerate(form.prices):
            fine = (usd[:, m] > 0) & (usd[:, m] < MOST_USD) | (np.isnan(usd[:, m]) & bool(form.empty))
            strange |= _strange(block, column, ~fine)
    table.refuse()
    if not keys:
        raise InputError(table.file, "no rows", "a row of prices, or more")
    lines, key, times, usd = (np.concatenate(part) for part in zip(*parts, strict=True))
    return _Read(keys, lines, key, times, usd, strange)


def _strange(block: Block, column: str, wrong: NDArray[np.bool_]) -> dict[tuple[int, str], str]:
    if not wrong.any():
        return {}
    cells = block.column(column)
    return {(block.lines[at], column): cells[at] for at in np.flatnonzero(wrong).tolist()}


def _offers(table: Table, form: Format, read: _Read) -> list[Offer | LeftOut]:
    """Return the offer of each key, or why there is none."""
    found: list[Offer | LeftOut] = []
    lines = read.lines[np.unique(read.key, return_index=True)[1]].tolist()  # where each key stands first
    cloud = cloud_of(table.file)
    for key, line in zip(read.keys, lines, strict=True):
        row = {name: cell.strip() for name, cell in zip((*form.keys, *form.also), key, strict=True)}
        row["cloud"] = row.get("cloud") or cloud
        try:
            found.append(_offer(form, row))
        except InputError as error:
            table.wrong(line, error.path, error.value, error.allowed)
    table.refuse()
    first = found[0]
    if isinstance(first, LeftOut) and all(isinstance(made, LeftOut) for made in found):
        raise InputError(table.place(lines[0], first.column), first.value, first.allowed)
    return found


def _offer(form: Format, row: dict[str, str]) -> Offer | LeftOut:
    for name, cell in row.items():
        if unprintable(cell):
            raise InputError(name, cell, "text without control characters")
    made = form.offer(row)
    if isinstance(made, Offer):
        for name in ("cloud", "region", "instance", "device"):
            if not getattr(made, name):
                raise InputError(name, "", f"the name of the {name}")
    return made


def _tell(table: Table, offers: Sequence[Offer | LeftOut], key: Ints, notes: list[str]) -> None:
    """Note what is left out, and what is no instance."""
    rows: dict[str, int] = {}
    names: dict[str, set[str]] = {}
    for offer, count in zip(offers, np.bincount(key).tolist(), strict=True):
        if isinstance(offer, LeftOut):
            rows[offer.why] = rows.get(offer.why, 0) + count
            names.setdefault(offer.why, set()).add(offer.value)
    for why, count in rows.items():
        named = sorted(filter(None, names[why]))
        told = ", ".join(named[:TOLD]) + (f" and {len(named) - TOLD} more" if len(named) > TOLD else "")
        notes.append(f"{table.file}: rows {why} are left out: {count}" + (f" ({told})" if told else ""))
    bare = [o for o in offers if isinstance(o, Offer) and o.instance == bare_instance(o.device, o.devices)]
    if bare:
        notes.append(f"{table.file}: offers of devices without an instance, at prices as stated: {len(bare)}")


def _paid(
    read: _Read,
    offers: Sequence[Offer | LeftOut],
    offered: NDArray[np.bool_],
    m: int,
    billing: Billing | None,
    numbers: dict[Offer, int],
) -> Prices:
    """Return what is stated in the column of prices `m`, paid as `billing` (None: as the offer says)."""
    at = np.flatnonzero(offered & ~np.isnan(read.usd[:, m]))
    number = np.full(len(offers), -1)
    for key in np.unique(read.key[at]).tolist():
        offer = offers[key]
        assert isinstance(offer, Offer)  # no other row is `offered`
        paid = replace(offer, billing=billing) if billing else offer
        number[key] = numbers.setdefault(paid, len(numbers))
    return Prices(number[read.key[at]], read.times_s[at], read.usd[at, m])
