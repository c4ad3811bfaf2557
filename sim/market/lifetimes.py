"""How long spot instances lived, from logs of when they were created and when they were gone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.market.offers import Floats
from sim.market.price_formats import count_of, device_name
from sim.market.tables import TIME, Table, cells, read_table, seconds_of
from sim.specs.fields import InputError

COLUMNS = ("cloud", "event", "timestamp_utc", "instance", "n_gpus", "gpu", "zone")
"""And `log`, where a file holds several: instances that are left at the end of their log were not gone by then."""
CREATED, GONE = "created", "preempted_or_gone"


@dataclass(frozen=True)
class Life:
    """An instance with `devices` of one type, up from `begin_s` to `end_s`; `ended`: it was gone then.

    One that was not was up when its log ended.
    """

    cloud: str
    zone: str
    device: str
    devices: int
    begin_s: float
    end_s: float
    ended: bool


@dataclass(frozen=True)
class _Event:
    line: int
    time_s: float
    created: bool
    zone: str
    device: str
    devices: int


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """How long n instances with one type of device of a cloud lived: `lived_s` (n,), and which of them `ended` (n,).

    The others lived longer than that: they were up when nobody looked any more.
    """

    cloud: str
    device: str
    lived_s: Floats
    ended: NDArray[np.bool_]

    def surviving(self) -> tuple[Floats, Floats]:
        """Return the ages (k,) at which instances ended, and the share (k,) that lives beyond each.

        Kaplan, Meier, Nonparametric Estimation from Incomplete Observations, JASA 53 (1958): who is lost from sight
        counts until then.
        """
        ages, gone = np.unique(self.lived_s[self.ended], return_counts=True)
        left = len(self.lived_s) - np.searchsorted(np.sort(self.lived_s), ages)
        shares: Floats = np.cumprod(1.0 - gone / left, dtype=np.float64)
        return ages, shares

    @property
    def mean_s(self) -> float:
        """The mean life, none counted beyond the longest that was seen: the area under the share that survives.

        Less than the true mean where the longest one did not end.
        """
        ages, shares = self.surviving()
        edges = np.concatenate([[0.0], ages, [self.lived_s.max()]])
        return float(np.diff(edges) @ np.concatenate([[1.0], shares]))


def read_lifetimes(path: str | Path) -> tuple[Lifetimes, ...]:
    """Return how long instances lived, by cloud and device, from a log with the columns `COLUMNS` (`.gz` too).

    Raises:
        InputError: with file, line and column of the first mistake, the others in `also`.
    """
    table = read_table(path)
    if not table.has(COLUMNS):
        raise InputError(f"{path}, line 1", ",".join(table.header), "the columns " + ",".join(COLUMNS))
    held: dict[tuple[str, str], list[Life]] = {}
    for life in lives(table):
        held.setdefault((life.cloud, life.device), []).append(life)
    return tuple(_lifetimes(cloud, device, found) for (cloud, device), found in sorted(held.items()))


def _lifetimes(cloud: str, device: str, found: Sequence[Life]) -> Lifetimes:
    lived = np.array([life.end_s - life.begin_s for life in found])
    return Lifetimes(cloud, device, lived, np.array([life.ended for life in found]))


def lives(table: Table) -> tuple[Life, ...]:
    """Return every life in a table with the columns `COLUMNS`, in the order of instances; raises InputError."""
    events: dict[tuple[str, str, str], list[_Event]] = {}
    for line, row in cells(table, (*COLUMNS, "log")):
        event = _event(table, line, row)
        if event:
            events.setdefault((row["cloud"], row["log"], row["instance"]), []).append(event)
    table.refuse()
    ends: dict[tuple[str, str], float] = {}
    for (cloud, log, _), held in events.items():
        ends[cloud, log] = max([ends.get((cloud, log), -np.inf), *(event.time_s for event in held)])
    found: list[Life] = []
    for (cloud, log, _), held in events.items():
        found += _lives(table, cloud, sorted(held, key=lambda event: event.time_s), ends[cloud, log])
    table.refuse()
    return tuple(found)


def _event(table: Table, line: int, row: Mapping[str, str]) -> _Event | None:
    time_s = seconds_of(row["timestamp_utc"])
    if isnan(time_s):
        table.wrong(line, "timestamp_utc", row["timestamp_utc"], TIME)
    if row["event"] not in (CREATED, GONE):
        table.wrong(line, "event", row["event"], f"one of {CREATED}, {GONE}")
    try:
        devices = count_of(row, "n_gpus")
    except InputError as error:
        table.wrong(line, error.path, error.value, error.allowed)
        return None
    return _Event(line, time_s, row["event"] == CREATED, row["zone"], device_name(row["gpu"]), devices)


def _lives(table: Table, cloud: str, events: Iterable[_Event], log_end_s: float) -> list[Life]:
    """Return the lives of what one name stands for: one after the other."""
    found: list[Life] = []
    up: _Event | None = None
    for event in events:
        if event.created == (up is not None):
            told = "gone before it is created again" if up else "created before it is gone"
            table.wrong(event.line, "event", CREATED if event.created else GONE, f"an instance that is {told}")
        elif up is not None:
            found.append(Life(cloud, up.zone, up.device, up.devices, up.time_s, event.time_s, True))
        up = event if event.created else None
    return [*found, Life(cloud, up.zone, up.device, up.devices, up.time_s, log_end_s, False)] if up else found
