"""Files of prices: what several say together, and the rules by which doubtful rows are read."""

import csv
import gzip
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.market.offers import History, Market, Offer
from sim.market.price_formats import PLAIN
from sim.market.price_rows import Prices, rows_of
from sim.specs.fields import InputError
from sim.specs.files import write_atomically
from sim.units import DAY_S

GAP_S = 7 * DAY_S
"""A longer time between two prices of an offer is told."""


def read_prices(*paths: str | Path, repeats: bool = False) -> Market:
    """Return the offers and prices in one or more files (`.gz` too), which are known by their columns.

    Known are price changes of AWS (also the JSON that `aws ec2 describe-spot-price-history` prints), prices of Azure by
    the day and of GCP, catalogues of SkyPilot, and what `write_prices` writes; prices of GCP and those of a catalogue
    without an instance are of devices, taken as stated. Offers are ordered by cloud, region, zone, device, devices and
    instance, whatever the order of rows. What rules did is in the market's `notes`: rows are sorted by time; of two
    prices of an offer at one time the later row holds, in a file that descends the earlier one, of two files the later
    one; a price holds until the next one. repeats: prices stay that only repeat the one before.

    Raises:
        InputError: with file, line and column of the first mistake, the others in `also`.
    """
    if not paths:
        raise InputError("paths", None, "required: a file of prices, or more")
    numbers: dict[Offer, int] = {}
    notes: list[str] = []
    parts = [_in_time(rows_of(path, numbers, notes), str(path), notes) for path in paths]
    return _market(list(numbers), Prices.joined(parts), notes, repeats)


def _in_time(rows: Prices, file: str, notes: list[str]) -> Prices:
    """Return rows by offer and time, one price each."""
    by_offer = rows.at(np.argsort(rows.offer, kind="stable"))
    same = np.diff(by_offer.offer) == 0
    before, after = by_offer.times_s[:-1][same], by_offer.times_s[1:][same]
    back, on = int((after < before).sum()), int((after > before).sum())
    descends = back > 0 and not on
    if back and on:
        notes.append(f"{file}: rows after a later price of their offer: {back} of {len(rows.usd)}; sorted by time")
    made, told = _last(rows.at(np.arange(len(rows.usd))[::-1]) if descends else rows)
    if told:
        which = "the earlier row holds, as the file descends" if descends else "the later row holds"
        notes.append(f"{file}: other prices of an offer at the same time: {told}; {which}")
    return made


def _last(rows: Prices) -> tuple[Prices, int]:
    """Return rows by offer and time, of equal ones the last, and how many others of them had another price."""
    ordered = rows.at(np.lexsort((rows.times_s, rows.offer)))
    again = (np.diff(ordered.offer) == 0) & (ordered.times_s[1:] == ordered.times_s[:-1])
    other = int((again & (np.diff(ordered.usd) != 0)).sum())
    return ordered.at(np.flatnonzero(np.append(~again, True))), other


def _market(offers: Sequence[Offer], rows: Prices, notes: list[str], repeats: bool) -> Market:
    """Return the market of all rows, of which those of later files come later."""
    held, _ = _last(rows)
    same = np.diff(held.offer) == 0
    _tell_gap(offers, held, same, notes)
    changes = np.flatnonzero(np.append(True, ~same | repeats | (np.diff(held.usd) != 0)))
    held = held.at(changes)
    bounds = np.searchsorted(held.offer, np.arange(len(offers) + 1)).tolist()
    histories = [
        History(offer, held.times_s[begin:end], held.usd[begin:end])
        for offer, begin, end in zip(offers, bounds, bounds[1:], strict=False)
    ]
    return Market(tuple(sorted(histories, key=lambda history: _rank(history.offer))), tuple(notes))


def _rank(offer: Offer) -> tuple[str | int, ...]:
    return offer.cloud, offer.region, offer.zone, offer.device, offer.devices, offer.instance, offer.billing


def _tell_gap(offers: Sequence[Offer], held: Prices, same: NDArray[np.bool_], notes: list[str]) -> None:
    with np.errstate(invalid="ignore"):
        gaps = np.where(same & np.isfinite(held.times_s[:-1]), np.diff(held.times_s), 0.0)
    if not len(gaps) or gaps.max() <= GAP_S:
        return
    at = int(gaps.argmax())
    count, days = len(np.unique(held.offer[:-1][gaps > GAP_S])), gaps[at] / DAY_S
    since = datetime.fromtimestamp(held.times_s[at], UTC).date()
    notes.append(
        f"offers without a price for more than {GAP_S / DAY_S:.0f} days, while the last known one holds: {count}, "
        f"longest {days:.1f} days ({offers[held.offer[at]].name} from {since})"
    )


def write_prices(market: Market, path: str | Path) -> None:
    """Write prices in the plain form that `read_prices` reads, packed where the name ends in `.gz`.

    Raises:
        InputError: a time is no date of the years 1 to 9999, or the file cannot be written.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*PLAIN.keys, PLAIN.time, PLAIN.prices[0][0]])
    stamps = _Stamps()
    for history in market.histories:
        named = [getattr(history.offer, name) for name in PLAIN.keys]
        prices = zip(history.times_s.tolist(), history.usd_per_hour.tolist(), strict=True)
        writer.writerows([*named, stamps[time_s], usd] for time_s, usd in prices)
    text = out.getvalue()
    file = Path(path)
    write_atomically(file, gzip.compress(text.encode(), 6, mtime=0) if file.suffix == ".gz" else text)


class _Stamps(dict[float, str]):
    """Seconds since 1970-01-01 UTC as text, each written once: offers often change their prices together."""

    def __missing__(self, time_s: float) -> str:
        try:
            self[time_s] = "" if time_s == -inf else datetime.fromtimestamp(time_s, UTC).isoformat()
        except (ValueError, OverflowError, OSError):
            allowed = "seconds since 1970-01-01 of a date in the years 1 to 9999"
            raise InputError("prices.times_s", time_s, allowed) from None
        return self[time_s]
