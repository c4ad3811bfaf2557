"""A device of the catalog or of the user: peak rates, memory, links, power and price, each with its source."""

from collections.abc import Mapping
from math import gcd
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from sim.catalog import meant
from sim.specs.fields import DERIVED, InputError, real, spec, whole

Text = Annotated[str, Field(min_length=1, max_length=400, description="text of 1 to 400 characters")]
Rate = Literal["fp32", "bf16", "fp8", "fp4"]
"""Which units a product runs on: fp32, or the tensor units for 16-bit (bf16 or fp16), 8-bit or 4-bit numbers."""


@spec
class Sourced:
    """A number and where it was read."""

    value: Annotated[float, real(0.0, 1e18)]
    source: Text


def _says(meaning: str) -> Any:
    """Return what a field means, for errors and for the file that `trainsim device new` writes."""
    return Field(description=meaning)


def _text(meaning: str) -> Any:
    return Field(min_length=1, max_length=400, description=f"{meaning}, text of 1 to 400 characters")


PCIE_5_BYTES_PER_S = 63e9
"""One direction of 16 lanes (PCI-SIG: 32 GT/s a lane, coded 128b/130b)."""

HOST_EFFICIENCY = Sourced(
    value=0.8,
    source="assumption: long copies from and to pinned memory reach four fifths of a host link's peak",
)
"""Share of a host link's peak that copies reach; not calibrated. A cluster that states its own rate is not scaled."""

_FLOP_PER_S, _LINK = (1e9, 1e18, "FLOP/s"), (1e6, 1e14, "B/s")
LIMITS: Mapping[str, tuple[float, float, str]] = {
    "sms": (1.0, 1e6, "units"), "peak_bf16_flop_per_s": _FLOP_PER_S, "peak_fp32_flop_per_s": _FLOP_PER_S,
    "peak_fp8_flop_per_s": _FLOP_PER_S, "peak_fp4_flop_per_s": _FLOP_PER_S, "fp8_speedup": (0.1, 100.0, "times bf16"),
    "memory_bytes": (1e6, 1e14, "B"), "memory_bytes_per_s": (1e7, 1e16, "B/s"), "intra_bytes_per_s": _LINK,
    "inter_bytes_per_s_per_node": _LINK, "host_bytes_per_s": _LINK, "usd_per_gpu_hour": (0.0, 1e4, "USD"),
}  # fmt: skip
"""Least, most and unit of numbers that a prediction divides by, or that a cluster bounds; 0 of others is not known."""


@spec
class Device:
    """One accelerator as its makers describe it (vendor peaks are dense rates, links one direction).

    `peak_bf16_flop_per_s` is the 16-bit tensor rate (fp16 where bf16 does not exist); `peak_fp8_flop_per_s` and
    `peak_fp4_flop_per_s` are absent where the hardware has no such units, `peak_fp32_flop_per_s` where nobody trains
    in fp32. With `intra_node` host the device is a core of a host processor, and runs a process of one thread.
    `domain_gpus` devices reach each other at `intra_bytes_per_s`: a node's, unless the fast links join several nodes
    (NVL72) or only a part of one.

    Raises:
        InputError: a value is out of range, `domain_gpus` fits no whole nodes, or the idle draw is above the limit.
    """

    name: Annotated[str, _text("the name that reports show")]
    title: Annotated[str, _text("the product's full name")]
    vendor: Annotated[str, _text("the maker")]
    sms: Annotated[Sourced, _says("streaming multiprocessors or compute units (device query)")]
    boost_hz: Annotated[Sourced, _says("highest clock of the compute units in Hz (nvidia-smi -q -d CLOCK)")]
    peak_bf16_flop_per_s: Annotated[
        Sourced, _says("dense 16-bit tensor FLOP/s (datasheet; halve a figure 'with sparsity')")
    ]
    peak_fp32_flop_per_s: Annotated[
        Sourced | None, _says("dense fp32 FLOP/s without TF32 (datasheet); left out for devices that train in 16 bit")
    ] = None
    peak_fp8_flop_per_s: Annotated[
        Sourced | None, _says("dense 8-bit floating-point tensor FLOP/s (datasheet); left out where there is none")
    ] = None
    peak_fp4_flop_per_s: Annotated[
        Sourced | None, _says("dense 4-bit floating-point tensor FLOP/s (datasheet); left out where there is none")
    ] = None
    fp8_speedup: Annotated[
        Sourced | None,
        _says("measured rate of large fp8 products over bf16 ones; left out, the ratio of the peaks is used"),
    ] = None
    bfloat16: Annotated[bool, _says("whether the tensor units take bf16, and not fp16 alone (before Ampere)")] = True
    memory_bytes: Annotated[Sourced, _says("device memory in bytes (total of nvidia-smi; 1 MiB = 1,048,576 bytes)")]
    memory_bytes_per_s: Annotated[Sourced, _says("memory bandwidth in bytes/s (datasheet)")]
    l2_bytes: Annotated[Sourced, _says("last-level cache in bytes (device query)")]
    power_w: Annotated[Sourced, _says("power limit in W (nvidia-smi -q -d POWER)")]
    idle_power_w: Annotated[Sourced, _says("power draw in W with nothing running (nvidia-smi)")]
    intra_node: Annotated[
        Literal["nvlink", "xgmi", "pcie", "host"],
        _says("links between the devices of a node: nvlink, xgmi, pcie or host (processes of one machine)"),
    ]
    intra_bytes_per_s: Annotated[
        Sourced,
        _says("bytes/s of one device's links inside a node, one direction (half of a 'both directions' figure)"),
    ]
    inter_bytes_per_s_per_node: Annotated[
        Sourced, _says("bytes/s of all network cards of a node together, one direction (400 Gb/s = 50e9 bytes/s)")
    ]
    host_bytes_per_s: Annotated[
        Sourced | None,
        _says(
            "peak bytes/s between one device and host memory, one direction (PCIe 4.0 x16 = 31.5e9); for offload only"
        ),
    ] = None
    gpus_per_node: Annotated[int, whole(1, 72, "devices in one node")] = 8
    domain_gpus: Annotated[
        int,
        whole(
            1, 1_152, "devices joined by the fast links, a multiple or divisor of gpus_per_node (left out: the node)"
        ),
    ] = DERIVED
    usd_per_gpu_hour: Annotated[Sourced | None, _says("price of one device in USD an hour")] = None
    price_date: Annotated[str | None, _text("when that price held")] = None
    like: Annotated[
        str | None,
        AfterValidator(lambda name: name and meant("devices", name)),
        _says("the catalog device whose profile is carried over to this one (left out: the nearest)"),
    ] = None

    def __post_init__(self) -> None:
        if getattr(self, "domain_gpus") is None:  # noqa: B009 - declared int, None when left out
            object.__setattr__(self, "domain_gpus", self.gpus_per_node)
        check_domain(self.domain_gpus, self.gpus_per_node)
        idle, cap = self.idle_power_w.value, self.power_w.value
        if idle > cap:
            raise InputError("idle_power_w", idle, f"a number up to power_w = {cap:g} W")
        for name, (low, high, unit) in LIMITS.items():
            held = getattr(self, name)
            if held is not None and not low <= held.value <= high:
                raise InputError(name, held.value, f"a number from {low:g} to {high:g} {unit}")

    def speedup(self, rate: Rate) -> float:
        """Return how many times faster than 16 bit large matrix products run on the tensor units `rate`.

        Measured (fp8) where it is known, else the ratio of dense peaks. Products in fp32 have a profile of their own,
        so that nothing is scaled to them: 1.

        Raises:
            InputError: the device has no such units.
        """
        if rate in ("bf16", "fp32"):
            return 1.0
        if rate == "fp8" and self.fp8_speedup is not None:
            return self.fp8_speedup.value
        peak = self.peak_fp8_flop_per_s if rate == "fp8" else self.peak_fp4_flop_per_s
        if peak is None:
            raise InputError("precision", rate, f"a precision that {self.title} has units for: {', '.join(self.rates)}")
        return peak.value / self.peak_bf16_flop_per_s.value

    @property
    def on_host(self) -> bool:
        """Whether it is a part of a host processor."""
        return self.intra_node == "host"

    @property
    def since_hopper(self) -> bool:
        """Whether it has compute capability 9 or above, by its link to the host.

        The catalog holds no compute capability; NVIDIA's links to the host are PCIe 5.0 or faster since Hopper.
        """
        link = self.host_bytes_per_s
        return self.vendor == "NVIDIA" and link is not None and link.value >= PCIE_5_BYTES_PER_S

    def peak_flop_per_s(self, rate: Rate) -> float:
        """Return the peak that utilisation is measured against: of fp32 where that is known, else of 16 bit."""
        fp32 = self.peak_fp32_flop_per_s
        return fp32.value if rate == "fp32" and fp32 else self.peak_bf16_flop_per_s.value

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The tensor units the device has."""
        held: dict[Rate, Sourced | None] = {
            "bf16": self.peak_bf16_flop_per_s,
            "fp8": self.peak_fp8_flop_per_s,
            "fp4": self.peak_fp4_flop_per_s,
        }
        return tuple(rate for rate, peak in held.items() if peak is not None)

    def domain_of(self, gpus_per_node: int) -> int:
        """Return `domain_gpus` for nodes of another size: as many whole nodes, or equal parts of one, as fit."""
        if self.domain_gpus == self.gpus_per_node:
            return gpus_per_node
        if self.domain_gpus > gpus_per_node:
            return self.domain_gpus // gpus_per_node * gpus_per_node
        return gcd(self.domain_gpus, gpus_per_node)


def check_domain(domain_gpus: int, gpus_per_node: int) -> None:
    """Raise InputError unless the domain is whole nodes or an equal part of one."""
    if domain_gpus % gpus_per_node and gpus_per_node % domain_gpus:
        raise InputError("domain_gpus", domain_gpus, f"a multiple or divisor of gpus_per_node = {gpus_per_node}")
