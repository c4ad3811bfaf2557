"""What clouds charge for data that leaves them, and which devices their instances have (`sim/catalog`)."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated

from sim.specs.fields import real, spec
from sim.units import GB


@spec
class Tariff:
    """USD per GB (1e9 B) that leaves a region of `cloud` to another of its regions, or to the internet."""

    cloud: str
    usd_per_gb_between_regions: Annotated[float, real(0.0, 100.0, "USD/GB")]
    usd_per_gb_out: Annotated[float, real(0.0, 100.0, "USD/GB")]

    def usd_per_byte(self, same_cloud: bool) -> float:
        """Return the price of a byte to another region of the same cloud, or to another cloud."""
        return (self.usd_per_gb_between_regions if same_cloud else self.usd_per_gb_out) / GB


@cache
def tariffs() -> Mapping[str, Tariff]:
    """Return the tariffs of the catalog by cloud."""
    return {}
