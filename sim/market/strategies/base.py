"""What a strategy of renting is asked, and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.market.jobs import RentedJob
from sim.market.offers import Floats, Offer
from sim.units import HOUR_S

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
WAIT = -1
"""Hold nothing until the next step."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What is known when a choice is made; of N offers each array (N,).

    `usd_per_hour`: what holding an offer costs the job now, inf where it cannot be held; `steps_per_s` what it does
    there. `held`: the offer it holds, or WAIT. `left_steps` of work, `gone_s` since its begin, at the begin of step
    number `step` of `step_s`; whoever takes an offer chooses again `next_s` later, if nobody takes it away. Taking an
    offer loses `move_s` and costs `move_usd`, zero for the one held; one that is taken away loses the work of `lost_s`.
    `place` numbers the L places of offers; a later move from each to each loses `away_s` (L, L).
    `reliable`: offers that are never taken away. `allowed`: those that the strategy may rent.
    """

    job: RentedJob
    step: int
    step_s: float
    next_s: Floats
    gone_s: float
    left_steps: float
    held: int
    usd_per_hour: Floats
    steps_per_s: Floats
    move_s: Floats
    move_usd: Floats
    lost_s: float
    place: Ints
    away_s: Floats
    reliable: Bools
    allowed: Bools

    @property
    def usd_per_step(self) -> Floats:
        """What a step costs on each offer, the worth of the owner's time included; inf where it cannot be held."""
        rates = np.where(self.steps_per_s > 0, self.steps_per_s, np.nan)
        found = (self.usd_per_hour + self.job.usd_per_hour) / (rates * HOUR_S)
        return np.where(self.allowed & np.isfinite(found), found, np.inf)


class Strategy(ABC):
    """A rule by which a job rents. `again`: it chooses every time it may, not only when it holds nothing.

    Nobody chooses while the job is being started.
    """

    name: ClassVar[str]
    again: ClassVar[bool] = True

    def allowed(self, offers: Sequence[Offer], job: RentedJob) -> Bools:
        """Return which offers (N,) it may rent; all, unless a strategy says otherwise."""
        return np.ones(len(offers), dtype=bool)

    @abstractmethod
    def choose(self, seen: Seen) -> int:
        """Return the number of the offer to hold until the next choice, or WAIT."""


def cheapest(usd_per_step: Floats) -> int:
    """Return the offer on which a step costs least, the first of equals; WAIT where none can be held."""
    best = int(np.argmin(usd_per_step))
    return best if np.isfinite(usd_per_step[best]) else WAIT
