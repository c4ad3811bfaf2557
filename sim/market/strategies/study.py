"""The strategies of the study of dynamic prices (DISPA 2020), each with a liberty more than the one before it."""

from collections.abc import Sequence

import numpy as np

from sim.market.jobs import RentedJob
from sim.market.offers import Offer
from sim.market.strategies.base import Bools, Seen, Strategy, cheapest

DEVICE = "v100"
CLOUD = "aws"
"""What a run starts from in the study: one V100 of AWS."""


class Baseline(Strategy):
    """The cheapest zone for one device of the usual type in one cloud, for good."""

    name = "baseline"
    again = False

    def __init__(self, device: str = DEVICE, cloud: str = CLOUD) -> None:
        self.device, self.cloud = device, cloud

    def allowed(self, offers: Sequence[Offer], job: RentedJob) -> Bools:
        """Return the offers of that type: the instances with the fewest devices that hold the job."""
        usual: Bools = np.array([offer.device == self.device for offer in offers])
        usual &= self._of_cloud(offers) & _single(offers, job)
        return usual

    def _of_cloud(self, offers: Sequence[Offer]) -> Bools:
        found: Bools = np.array([offer.cloud == self.cloud for offer in offers])
        return found

    def choose(self, seen: Seen) -> int:
        """Return the cheapest for what it does."""
        return cheapest(seen.usd_per_step)


class BaselineWorst(Baseline):
    """The dearest zone for one device of the usual type in one cloud, for good."""

    name = "baseline_worst"

    def choose(self, seen: Seen) -> int:
        """Return the dearest."""
        cost = seen.usd_per_step
        return cheapest(np.where(np.isfinite(cost), -cost, np.inf))


class GpuType(Baseline):
    """The type of device that does most for its price, one device an instance, in one cloud."""

    name = "gpu_type"

    def allowed(self, offers: Sequence[Offer], job: RentedJob) -> Bools:
        """Return the smallest instances of every type."""
        return self._of_cloud(offers) & _single(offers, job)


class Packed(Baseline):
    """Also instances of several devices, whose others other jobs rent, in one cloud."""

    name = "packed"

    def allowed(self, offers: Sequence[Offer], job: RentedJob) -> Bools:
        """Return all offers of the cloud."""
        return self._of_cloud(offers)


class MultiCloud(Baseline):
    """All offers of all clouds; the first choice is for good."""

    name = "multi_cloud"

    def allowed(self, offers: Sequence[Offer], job: RentedJob) -> Bools:
        """Return all offers."""
        return np.ones(len(offers), dtype=bool)


class Preemption(MultiCloud):
    """All offers of all clouds, chosen again every time, whatever moving costs."""

    name = "preemption"
    again = True


class PreemptionDataMovement(Preemption):
    """The same; the study adds 9 USD to its cost for transfers (100 GB at AWS's tariff)."""

    name = "preemption_data_movement"


def _single(offers: Sequence[Offer], job: RentedJob) -> Bools:
    """Return which offers are the smallest of their cloud and device that hold the job in one instance."""
    least: dict[tuple[str, str], int] = {}
    for offer in offers:
        if offer.devices >= job.gpus:
            kind = offer.cloud, offer.device
            least[kind] = min(offer.devices, least.get(kind, offer.devices))
    return np.array([offer.devices == least.get((offer.cloud, offer.device)) for offer in offers])
