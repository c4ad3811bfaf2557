"""What clouds charge for data that leaves them, and which devices their instances have (`sim/catalog`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from sim.catalog import names
from sim.specs.catalog import entry
from sim.specs.device import Sourced, Text
from sim.specs.fields import read, real, spec, whole
from sim.units import GB

MOST_USD_PER_GB = 100.0


@spec
class Tariff:
    """USD per GB (1e9 B) that leaves a region of `cloud` to another of its regions, or to the internet."""

    cloud: str
    usd_per_gb_between_regions: Annotated[float, real(0.0, MOST_USD_PER_GB, "USD/GB")]
    usd_per_gb_out: Annotated[float, real(0.0, MOST_USD_PER_GB, "USD/GB")]

    def usd_per_byte(self, same_cloud: bool) -> float:
        """Return the price of a byte to another region of the same cloud, or to another cloud."""
        return (self.usd_per_gb_between_regions if same_cloud else self.usd_per_gb_out) / GB


@spec
class TariffEntry:
    """A tariff of the catalog, a source beside every number."""

    name: Text
    title: Text
    usd_per_gb_between_regions: Sourced
    usd_per_gb_out: Sourced

    @property
    def tariff(self) -> Tariff:
        """The numbers alone."""
        between, out = self.usd_per_gb_between_regions.value, self.usd_per_gb_out.value
        return Tariff(cloud=self.name, usd_per_gb_between_regions=between, usd_per_gb_out=out)


@spec
class InstanceGroup:
    """How many devices of type `device` each type of instance has, and where it was read."""

    device: Text
    devices: dict[str, Annotated[int, whole(1, 1_024)]]
    source: Text


@spec
class InstancesEntry:
    """The types of instances of a cloud, by what they have."""

    name: Text
    title: Text
    groups: list[InstanceGroup]


@dataclass(frozen=True)
class Instance:
    """What a type of instance has: `devices` of type `device`, named as an offer names it."""

    device: str
    devices: int


@cache
def tariffs() -> Mapping[str, Tariff]:
    """Return the tariffs of the catalog by cloud."""
    return {name: read(TariffEntry, entry("tariffs", name), f"tariffs/{name}").tariff for name in names("tariffs")}


def tariffs_of(clouds: Iterable[str], usd_per_gb: float) -> Mapping[str, Tariff]:
    """Return the tariffs of the catalog, and of such clouds as it does not know one of so many USD a GB."""
    known = tariffs()
    return {
        name: Tariff(cloud=name, usd_per_gb_between_regions=usd_per_gb, usd_per_gb_out=usd_per_gb)
        for name in set(clouds) - set(known)
    } | dict(known)


@cache
def instances(cloud: str) -> Mapping[str, Instance]:
    """Return the types of instances that the catalog knows of a cloud; raises InputError with the known clouds."""
    held = read(InstancesEntry, entry("instances", cloud), f"instances/{cloud}")
    return {name: Instance(group.device, n) for group in held.groups for name, n in group.devices.items()}
