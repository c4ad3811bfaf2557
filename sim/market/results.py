"""What became of a job that rented its devices."""

from collections.abc import Mapping
from dataclasses import dataclass

from sim.market.jobs import RentedJob
from sim.market.offers import Offer
from sim.units import HOUR_S


@dataclass(frozen=True)
class Stay:
    """Holding one offer from `begin_s` to `end_s` (since 1970-01-01 UTC): what was paid and how many steps were kept.

    `ended`: why it ended: moved, preempted, finished, or the prices ended ("cut").
    """

    offer: Offer
    begin_s: float
    end_s: float
    usd: float
    steps: float
    ended: str


@dataclass(frozen=True)
class Rental:
    """A job from its begin to its end: plain data.

    `cost_usd` is the rent of `path` and `transfer_usd`. `hours` pass in all, of which `parts_s` says what for:
    training, moving (booting, restarting, writing, transferring, reading), lost (work that was done again) and waiting.
    `migrations`: stays that began on another offer than the one before. `finished`: whether it ended before the prices.
    """

    job: RentedJob
    strategy: str
    begin_s: float
    cost_usd: float
    transfer_usd: float
    hours: float
    migrations: int
    preemptions: int
    finished: bool
    path: tuple[Stay, ...]
    parts_s: Mapping[str, float]
    assumptions: tuple[str, ...] = ()

    @property
    def objective_usd(self) -> float:
        """The cost with what the hours are worth to the owner."""
        return self.cost_usd + self.hours * self.job.usd_per_hour

    @property
    def held_s(self) -> float:
        """Seconds in which it held an instance."""
        return sum(stay.end_s - stay.begin_s for stay in self.path)

    @property
    def gpu_hours(self) -> float:
        """Device-hours that were paid for."""
        return sum((stay.end_s - stay.begin_s) / HOUR_S * self.job.paid(stay.offer) for stay in self.path)
