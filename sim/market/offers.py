"""What can be rented where, and what it costs over time."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from sim.specs.fields import InputError, spec, whole

Floats = NDArray[np.float64]
Billing = Literal["spot", "on-demand"]


@spec
class Offer:
    """A type of instance in one place: `devices` of type `device` (in lower case: v100, a100-80gb), paid as `billing`.

    `zone` is empty where prices are those of a whole region. Spot instances may be taken away.
    """

    cloud: str
    region: str
    zone: str = ""
    instance: str
    device: str
    devices: Annotated[int, whole(1, 1_024)]
    billing: Billing = "spot"

    @property
    def place(self) -> tuple[str, str]:
        """Cloud and region: between two places data is transferred at a price."""
        return self.cloud, self.region

    @property
    def name(self) -> str:
        """Words for a reader: `aws us-east-1a p3.2xlarge`."""
        paid = "" if self.billing == "spot" else " on demand"
        return f"{self.cloud} {self.zone or self.region} {self.instance}{paid}"


@dataclass(frozen=True, eq=False)
class History:
    """What an instance of an offer costs: `usd_per_hour[i]` (n,) from `times_s[i]` (n,) on, the last for ever.

    Times are seconds since 1970-01-01 UTC and ascend; -inf: always.
    """

    offer: Offer
    times_s: Floats
    usd_per_hour: Floats

    def __post_init__(self) -> None:
        path = f"prices.{self.offer.name}"
        if not len(self.times_s) or self.times_s.shape != self.usd_per_hour.shape:
            raise InputError(path, self.times_s.shape, "one time for every price, at least one")
        if (np.diff(self.times_s) <= 0).any():
            raise InputError(f"{path}.times_s", "times that do not ascend", "ascending times, each once")
        wrong = self.usd_per_hour[~((self.usd_per_hour > 0) & (self.usd_per_hour < 1e6))]
        if len(wrong):
            raise InputError(f"{path}.usd_per_hour", float(wrong[0]), "USD of an hour above 0, below 1e6")

    @classmethod
    def constant(cls, offer: Offer, usd_per_hour: float) -> "History":
        """Return a price that never changes."""
        return cls(offer, np.array([-inf]), np.array([usd_per_hour]))


@dataclass(frozen=True, eq=False)
class Market:
    """Offers with their prices. `notes`: what readers did to the files they come from, for whoever uses the result."""

    histories: tuple[History, ...]
    notes: tuple[str, ...] = ()

    @property
    def offers(self) -> tuple[Offer, ...]:
        """All offers, in the order of the histories."""
        return tuple(history.offer for history in self.histories)

    @property
    def begin_s(self) -> float:
        """The first change of a price; -inf where none changes."""
        return min((t for t in self._changes()), default=-inf)

    @property
    def offered_s(self) -> float:
        """When something is offered first; -inf: always."""
        return min((float(history.times_s[0]) for history in self.histories), default=inf)

    @property
    def end_s(self) -> float:
        """The last change of a price; -inf where none changes."""
        return max((t for t in self._changes()), default=-inf)

    @property
    def first_s(self) -> float:
        """When whoever says no other time begins: with the first change of a price, at 0 where none changes."""
        return self.begin_s if self.begin_s > -inf else 0.0

    def _changes(self) -> Iterable[float]:
        return (float(t) for history in self.histories for t in history.times_s[[0, -1]] if t > -inf)

    def only(
        self,
        *,
        clouds: Collection[str] | None = None,
        regions: Collection[str] | None = None,
        devices: Collection[str] | None = None,
        billing: Billing | None = None,
    ) -> "Market":
        """Return the part that lies in some clouds and regions, has some devices and is paid in one way.

        A region is named alone or with its cloud ("azure us_east"). Raises InputError where nothing is left.
        """
        asked = {"clouds": clouds, "regions": regions, "devices": devices}
        for field, wanted in asked.items():
            known = {name for offer in self.offers for name in _said(offer, field)}
            for name in (name for name in wanted or () if name not in known):
                raise InputError(field, name, f"one of {', '.join(sorted(known))}")
        held = tuple(
            history
            for history in self.histories
            if all(wanted is None or set(_said(history.offer, field)) & set(wanted) for field, wanted in asked.items())
            and billing in (None, history.offer.billing)
        )
        if not held:
            raise InputError("prices", {**asked, "billing": billing}, "what leaves at least one offer")
        return replace(self, histories=held)

    def __add__(self, other: "Market") -> "Market":
        return Market(self.histories + other.histories, self.notes + other.notes)


def _said(offer: Offer, field: str) -> tuple[str, ...]:
    """Return the names by which an offer may be asked for."""
    if field == "clouds":
        return (offer.cloud,)
    return (offer.region, " ".join(offer.place)) if field == "regions" else (offer.device,)
