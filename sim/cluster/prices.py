"""Prices of device-hours that change while jobs run."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from sim.cluster.state import Floats, Ints
from sim.specs.fields import InputError
from sim.units import HOUR_S


@dataclass(frozen=True, eq=False)
class PriceTable:
    """USD of a device-hour of `types`: `usd_per_hour` (K, m) from `times_s` (K,) on; the first also before."""

    types: tuple[str, ...]
    times_s: Floats
    usd_per_hour: Floats

    def __post_init__(self) -> None:
        if self.usd_per_hour.shape != (len(self.times_s), len(self.types)) or not self.usd_per_hour.size:
            raise InputError("usd_per_hour", self.usd_per_hour.shape, "a row a time, a column a type, at least one")
        if (np.diff(self.times_s) <= 0).any():
            raise InputError("times_s", "times that do not ascend", "ascending times, each once")
        if not ((self.usd_per_hour > 0) & np.isfinite(self.usd_per_hour)).all():
            raise InputError("usd_per_hour", float(self.usd_per_hour.min()), "USD of a device-hour above 0")

    def of(self, types: Sequence[str]) -> "PriceTable":
        """Return the same of some types, in this order."""
        at = [self.types.index(name) for name in types]
        return PriceTable(tuple(types), self.times_s, self.usd_per_hour[:, at])

    def at(self, now_s: float) -> Floats:
        """Return the prices (m,) at a time."""
        row: Floats = self.usd_per_hour[max(0, int(np.searchsorted(self.times_s, now_s, side="right")) - 1)]
        return row

    def changes_after(self, now_s: float) -> float:
        """Return when prices change next, inf for never."""
        at = int(np.searchsorted(self.times_s, now_s, side="right"))
        return float(self.times_s[at]) if at < len(self.times_s) else inf


class Meter:
    """What every job has paid, metered whenever prices may have changed."""

    def __init__(self, prices: PriceTable) -> None:
        self.prices = prices
        self.paid_usd: dict[int, float] = {}
        self._seen: dict[int, Floats] = {}

    def read(self, since_s: float, ids: Ints, used_s: Floats) -> None:
        """Charge what jobs `ids` (n,) have used (n, m) more than when it was last read, at the prices of `since_s`."""
        price = self.prices.at(since_s) / HOUR_S
        for number, used in zip(ids.tolist(), used_s, strict=True):
            more = used - self._seen.get(number, 0.0)
            self.paid_usd[number] = self.paid_usd.get(number, 0.0) + float(more @ price)
            self._seen[number] = used.copy()

    def paid(self, jobs: int) -> Floats:
        """Return USD (n,) by number of a job."""
        return np.array([self.paid_usd.get(number, 0.0) for number in range(jobs)])
