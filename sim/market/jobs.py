"""A job that rents its devices, and what moving it costs."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated

import numpy as np

from sim.market.offers import Floats, Offer
from sim.specs.checkpointing import USUAL_FAILURES
from sim.specs.fields import InputError, real, spec, whole
from sim.specs.prices import BOOT_S, WAN_BYTES_PER_S
from sim.specs.tariffs import Tariff, tariffs
from sim.units import HOUR_S

RESTART_S = USUAL_FAILURES["restart_s"][0]
"""Assumption, as after a failure (`sim.specs.checkpointing`): starting all processes again."""


@spec
class RentedJob:
    """Training of `steps` steps, of which a device of some type does `steps_per_s` (`gpus` devices together).

    `whole`: all devices of its instances are paid, also those that it leaves idle; else others rent them. An hour that
    it lasts is worth `usd_per_hour` to its owner: 0 asks for the least cost, much for the least time. It should end
    `deadline_s` after its begin. `home`: cloud and region where its data is ("aws us-east-1"; empty: where it starts).
    `believed`: what strategies take `steps_per_s` to be (left out: what they are).

    Raises:
        InputError: a number is out of range, or no device does anything.
    """

    name: str = "job"
    steps: Annotated[float, real(1e-9, 1e18, "steps")]
    steps_per_s: dict[str, Annotated[float, real(0.0, 1e12, "steps/s")]]
    gpus: Annotated[int, whole(1, 100_000)] = 1
    whole: bool = True
    usd_per_hour: Annotated[float, real(0.0, 1e9, "USD")] = 0.0
    deadline_s: Annotated[float, real(1.0, 1e10, "s")] | None = None
    home: str = ""
    believed: dict[str, Annotated[float, real(0.0, 1e12, "steps/s")]] | None = None

    def __post_init__(self) -> None:
        if not any(self.steps_per_s.values()):
            raise InputError("steps_per_s", dict(self.steps_per_s), "steps/s above 0 for at least one device")

    def rates(self, offers: Sequence[Offer], believed: bool = False) -> Floats:
        """Return steps/s (N,) by offer, as they are or are believed to be; 0 where it cannot run."""
        known = self.believed if believed and self.believed else self.steps_per_s
        return np.array([known.get(offer.device, 0.0) * (self.paid(offer) > 0) for offer in offers])

    def paid(self, offer: Offer) -> int:
        """Return how many devices are paid for; 0 where instances cannot hold the job evenly."""
        if self.gpus > offer.devices and self.gpus % offer.devices:
            return 0
        return max(self.gpus, offer.devices) if self.whole else self.gpus


@spec
class Moves:
    """What a job loses when it starts, moves or is taken off its instance; times in seconds.

    A start takes `boot_s` and `restart_s`; going on elsewhere also `read_s` of the checkpoint, and `write_s` before it
    where the job leaves by itself. Between regions `state_bytes` and `data_bytes` are transferred with
    `wan_bytes_per_s`, at the tariff of where they leave. Who is preempted loses the work of `lost_work_s`, and saving
    takes `overhead` of the time of training. The new instance is paid meanwhile. `usd` is paid once, however often the
    job moves: what a study counts for all its transfers.
    """

    boot_s: Annotated[float, real(0.0, 86_400.0, "s")] = BOOT_S
    restart_s: Annotated[float, real(0.0, 86_400.0, "s")] = RESTART_S
    write_s: Annotated[float, real(0.0, 1e6, "s")] = 0.0
    read_s: Annotated[float, real(0.0, 1e6, "s")] = 0.0
    state_bytes: Annotated[float, real(0.0, 1e18, "B")] = 0.0
    data_bytes: Annotated[float, real(0.0, 1e18, "B")] = 0.0
    wan_bytes_per_s: Annotated[float, real(1.0, 1e15, "B/s")] = WAN_BYTES_PER_S
    lost_work_s: Annotated[float, real(0.0, 1e7, "s")] = 0.0
    overhead: Annotated[float, real(0.0, 1e3)] = 0.0
    usd: Annotated[float, real(0.0, 1e9, "USD")] = 0.0
    tariffs: Mapping[str, Tariff] = field(default_factory=tariffs)

    @classmethod
    def free(cls) -> "Moves":
        """Return moves that cost nothing."""
        return cls(boot_s=0.0, restart_s=0.0)

    @property
    def start_s(self) -> float:
        """What a first start takes."""
        return self.boot_s + self.restart_s

    @property
    def again_s(self) -> float:
        """What a start from the last checkpoint takes, without transfers."""
        return self.start_s + self.read_s

    @property
    def moved_bytes(self) -> float:
        """What is transferred when the region changes."""
        return self.state_bytes + self.data_bytes

    def transfer_s(self, places: Sequence[tuple[str, str]]) -> Floats:
        """Return the seconds (L, L) of a transfer from each place (cloud, region) to each."""
        return self.moved_bytes / self.wan_bytes_per_s * _apart(places)

    def transfer_usd(self, places: Sequence[tuple[str, str]]) -> Floats:
        """Return the price (L, L) of a transfer from each place (cloud, region) to each."""
        per_byte = [[0.0 if a == b else self._tariff(a[0]).usd_per_byte(a[0] == b[0]) for b in places] for a in places]
        return np.array(per_byte).reshape(len(places), len(places)) * self.moved_bytes

    def _tariff(self, cloud: str) -> Tariff:
        if cloud not in self.tariffs:
            if not self.moved_bytes:
                return Tariff(cloud=cloud, usd_per_gb_between_regions=0.0, usd_per_gb_out=0.0)
            raise InputError(
                f"tariffs.{cloud}", None, f"required: what a transfer costs; known: {', '.join(self.tariffs)}"
            )
        return self.tariffs[cloud]


def _apart(places: Sequence[tuple[str, str]]) -> Floats:
    return 1.0 - np.eye(len(places))


def hourly(usd_per_hour: float, seconds: float) -> float:
    """Return what a price by the hour comes to, billed by the second."""
    return usd_per_hour * seconds / HOUR_S
