"""When spot instances can be held: from logs and traces, or drawn by chance."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, isnan
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from sim.market.grid import Intervals
from sim.market.lifetimes import COLUMNS, lives
from sim.market.offers import Market, Offer
from sim.market.price_formats import count_of, device_name
from sim.market.tables import TIME, Table, cells, is_json, read_mapping, read_table, seconds_of
from sim.specs.fields import InputError, real, spec, whole

PLAIN = ("cloud", "zone", "device", "begin_utc", "end_utc")
"""And `devices`, where it differs by how many an instance has."""
ANY = 0
"""Instances with any number of devices."""
MOST_INTERVALS = 1_000_000

Place = tuple[str, str, str]
"""Cloud, zone (region where an offer has no zone) and device."""
Period = tuple[float, float]
Periods = dict[Place, dict[int, list[Period]]]
"""By place and number of devices."""


def read_availability(
    path: str | Path, market: Market, *, offer: str = "", begin_s: float | None = None
) -> dict[Offer, Intervals]:
    """Return when spot offers of a market can be held; offers on demand, and those of which a file says nothing, are
    not in it.

    Known are logs of instances (`sim.market.lifetimes.COLUMNS`), lists of periods (the columns `PLAIN`), both for every
    offer of the same cloud, zone and device, and JSON traces `{"metadata": {"gap_seconds": 600}, "data": [0, 1, ...]}`
    for the one named `offer`, which begin at `begin_s` (by default with the market's prices); several instances that
    are up count as one. An offer can be held while a log held an instance with as many devices, for large ones are
    taken away more often (of one log, one K80 in us-east-1c could be held for 0.82 of the time, eight together for
    0.20); where none had as many, the next larger one, else the largest. Before and after a log nothing can be held.

    Raises:
        InputError: with file, line and column of the first mistake; or the file names no offer of the market.
    """
    file = Path(path)
    if is_json(file):
        return _traced(file, market, offer, begin_s)
    if offer:
        raise InputError("offer", offer, "no name: only JSON traces are of one offer")
    table = read_table(file)
    if not table.has(PLAIN) and not table.has(COLUMNS):
        allowed = f"the columns {','.join(PLAIN)} or {','.join(COLUMNS)}"
        raise InputError(f"{file}, line 1", ",".join(table.header), allowed)
    return _matched(_stated(table) if table.has(PLAIN) else _logged(table), market, str(file))


def read_available(path: str | Path, market: Market, begin_s: float, field: str) -> dict[Offer, Intervals]:
    """Return what `read_availability` does; a JSON trace begins at `begin_s` and is of the one spot offer there is.

    Raises:
        InputError: as it does, or (under the name `field`) a JSON trace where there is not exactly one spot offer.
    """
    spot = [offer.name for offer in market.offers if offer.billing == "spot"]
    if not is_json(Path(path)):
        return read_availability(path, market)
    if len(spot) != 1:
        allowed = f"a table of periods or of instances: a JSON trace is of one spot offer, and {len(spot)} fit"
        raise InputError(field, str(path), allowed)
    return read_availability(path, market, offer=spot[0], begin_s=begin_s)


def _logged(table: Table) -> Periods:
    found: Periods = {}
    for life in lives(table):
        at = found.setdefault((life.cloud, life.zone, life.device), {})
        at.setdefault(life.devices, []).append((life.begin_s, life.end_s))
    return found


def _stated(table: Table) -> Periods:
    found: Periods = {}
    for line, row in cells(table, (*PLAIN, "devices")):
        begin_s, end_s = seconds_of(row["begin_utc"]), seconds_of(row["end_utc"])
        for column, time_s in (("begin_utc", begin_s), ("end_utc", end_s)):
            if isnan(time_s):
                table.wrong(line, column, row[column], TIME)
        if end_s <= begin_s:
            table.wrong(line, "end_utc", row["end_utc"], f"after {row['begin_utc']}")
        try:
            devices = count_of(row, "devices") if row["devices"] else ANY
        except InputError as error:
            table.wrong(line, error.path, error.value, error.allowed)
            continue
        at = found.setdefault((row["cloud"], row["zone"], device_name(row["device"])), {})
        at.setdefault(devices, []).append((begin_s, end_s))
    table.refuse()
    return found


def _matched(periods: Periods, market: Market, file: str) -> dict[Offer, Intervals]:
    found = {}
    for offer in market.offers:
        held = periods.get((offer.cloud, offer.zone or offer.region, offer.device))
        if held and offer.billing == "spot":
            found[offer] = joined(held[_nearest(held, offer.devices)])
    if not found:
        named = "; ".join(" ".join(place) for place in periods)
        raise InputError(file, named, "cloud, zone and device of a spot offer of the market")
    return found


def _nearest(counts: Iterable[int], devices: int) -> int:
    """Return the least count that is as large, else the largest."""
    return min(counts, key=lambda n: (n < devices, abs(n - devices)))


def joined(periods: Iterable[Period]) -> Intervals:
    """Return when at least one of some periods lasts: begins and ends (n, 2), ascending and apart."""
    found: list[list[float]] = []
    for begin_s, end_s in sorted(periods):
        if found and begin_s <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end_s)
        elif end_s > begin_s:
            found.append([begin_s, end_s])
    return np.array(found, dtype=np.float64).reshape(-1, 2)


def _traced(file: Path, market: Market, name: str, begin_s: float | None) -> dict[Offer, Intervals]:
    spot = [offer for offer in market.offers if offer.billing == "spot"]
    named = [offer for offer in spot if offer.name == name]
    if not named:
        raise InputError("offer", name, "one of " + ", ".join(offer.name for offer in spot))
    begin_s = market.begin_s if begin_s is None else begin_s
    if not isfinite(begin_s):
        raise InputError("begin_s", None, "required: when the trace begins, as no price of the market does")
    gap_s, up = _trace(read_mapping(file), str(file))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], up, [False]])))
    intervals: Intervals = np.array(begin_s + gap_s * edges.reshape(-1, 2), dtype=np.float64)
    return dict.fromkeys(named, intervals)


def _trace(raw: Mapping[str, Any], file: str) -> tuple[float, NDArray[np.bool_]]:
    """Return seconds between two looks of a trace, and whether something was up, (n,)."""
    metadata, data = raw.get("metadata"), raw.get("data")
    gap_s: Any = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not _is_number(gap_s) or not 0 < gap_s <= 1e9:
        raise InputError(f"{file}, metadata.gap_seconds", gap_s, "seconds above 0, to 1e9")
    if not isinstance(data, list) or not data:
        raise InputError(f"{file}, data", data, "a list of 0 and 1, one of them or more")
    wrong = next((n for n, value in enumerate(data) if not _is_number(value) or not value >= 0), None)
    if wrong is not None:
        raise InputError(f"{file}, data.{wrong}", data[wrong], "how many instances were up: 0, 1, ...")
    return float(gap_s), np.array(data) > 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@spec
class _Means:
    mean_up_s: Annotated[float, real(1e-3, 1e12, "s")]
    mean_down_s: Annotated[float, real(1e-3, 1e12, "s")]
    seed: Annotated[int, whole(0, 2**63 - 1)]

    @property
    def cycle_s(self) -> float:
        """A time up and a time down."""
        return self.mean_up_s + self.mean_down_s


def drawn(
    offers: Sequence[Offer], mean_up_s: float, mean_down_s: float, begin_s: float, end_s: float, seed: int
) -> dict[Offer, Intervals]:
    """Return when spot offers can be held between two times, by chance: exponential times up and down, in turn.

    Each offer is independent of all others, and up at the beginning with the share that it is up in the long run,
    `mean_up_s / (mean_up_s + mean_down_s)`. That neither remembers how long it lasted is an assumption. The same
    arguments give the same times; offers with other means want another seed.

    Raises:
        InputError: a mean or the seed is out of range, the end is not after the beginning, or there would be over a
            million times up.
    """
    means = _Means(mean_up_s=mean_up_s, mean_down_s=mean_down_s, seed=seed)
    if not begin_s < end_s < inf:
        raise InputError("end_s", end_s, f"a time after begin_s = {begin_s:.0f}")
    spot = [offer for offer in offers if offer.billing == "spot"]
    if len(spot) * (end_s - begin_s) > MOST_INTERVALS * means.cycle_s:
        raise InputError("mean_up_s", mean_up_s, f"at most {MOST_INTERVALS} times up of {len(spot)} offers together")
    return {
        offer: _alternating(np.random.default_rng([seed, n]), means, begin_s, end_s) for n, offer in enumerate(spot)
    }


def _alternating(chance: np.random.Generator, means: _Means, begin_s: float, end_s: float) -> Intervals:
    found: list[Period] = []
    is_up = chance.random() < means.mean_up_s / means.cycle_s
    time_s = begin_s if is_up else begin_s + chance.exponential(means.mean_down_s)
    while time_s < end_s:
        until_s = time_s + chance.exponential(means.mean_up_s)
        found.append((time_s, min(until_s, end_s)))
        time_s = until_s + chance.exponential(means.mean_down_s)
    return joined(found)
