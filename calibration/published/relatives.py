"""Devices that are carried over from a finished profile, most of them of the same architecture.

The base's own step (from A100) crosses architectures; that of most devices here does not, and its error is measured
separately: where two devices of one architecture have measured matmul peaks, the ratio of those against the ratio of
datasheet peaks says how wrong a datasheet ratio is. Of profiles that cross them, whole runs say it (`CROSSED`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import hypot, log

import numpy as np

from calibration.published.blackwell import GB300_PRODUCTS, GROUPED_SOURCE, THROTTLED, attention
from calibration.published.peaks import measured_peak
from calibration.published.public import Public
from sim.costs.carry import Move, carried, ratios
from sim.costs.fitted import six_digits
from sim.costs.profile import Z80, Profile
from sim.specs.catalog import device
from sim.specs.device import Device

PEAK_PAIRS = (
    ("a100-pcie-80gb", "a100-sxm-80gb"),
    ("b200", "b300"),
    ("b200", "gb200"),
)
"""Two devices of one architecture, both with a measured matmul peak."""

CROSSED = (
    0.098,
    "with the run level's it makes the 80 % interval hold 80 % of 76 dense runs of GB200 and GB300 (NVIDIA, "
    "Megatron-Bridge 25.09 - 26.08), every model counting the same",
)
"""Standard deviation of log time of a step on another architecture by measured matmul peaks, and its source. By what
the other two models need, the interval holds 86 % of the runs of the one that is left out."""


@dataclass(frozen=True)
class Relative:
    """A device and the finished profile it comes from.

    `of` is the catalog device where the profile is a second one of it, with newer software, named DEVICE-YEAR. `peak`
    names a catalog device whose measured matmul peak speaks for this one; `links` one whose collectives do (default:
    the base's); `same_chip` means that clocks, SMs and memory are the base's, so nothing is to be scaled;
    `power_limited` that it is the base's chip under a lower power limit; `crosses` that it is of another architecture;
    `attention` names the device whose published attention kernels it runs (left out: the base's).
    """

    name: str
    base: str
    peak: str | None = None
    links: str | None = None
    same_chip: bool = False
    power_limited: bool = False
    of: str | None = None
    crosses: bool = False
    attention: str = ""

    @property
    def device(self) -> str:
        """The catalog device that the profile is of."""
        return self.of or self.name


RELATIVES = (
    Relative("gb200", "b200", peak="gb200", attention="gb200"),
    Relative("gb300", "b200", peak="gb200", attention="gb300"),
    Relative("b300", "b200", peak="b300"),
    Relative("h100-pcie-80gb", "h100-sxm-80gb", links="a100-pcie-80gb"),
    Relative("h100-nvl", "h100-sxm-80gb", links="a100-pcie-80gb"),
    Relative("h100-sxm-96gb-500w", "h100-sxm-80gb", power_limited=True),
    Relative("h200-nvl", "h200-sxm-141gb", links="a100-pcie-80gb"),
    Relative("h100-sxm-80gb-2026", "h200-sxm-141gb", links="h100-sxm-80gb", of="h100-sxm-80gb"),
    Relative("h100-pcie-80gb-2026", "h200-sxm-141gb", links="a100-pcie-80gb", of="h100-pcie-80gb"),
    Relative("h100-nvl-2026", "h200-sxm-141gb", links="a100-pcie-80gb", of="h100-nvl"),
    Relative("b200-2026", "h200-sxm-141gb", peak="b200", links="b200", of="b200", crosses=True, attention="gb200"),
    Relative("b300-2026", "h200-sxm-141gb", peak="b300", links="b300", of="b300", crosses=True, attention="gb300"),
    Relative("gb200-2026", "h200-sxm-141gb", peak="gb200", links="gb200", of="gb200", crosses=True, attention="gb200"),
    Relative("gb300-2026", "h200-sxm-141gb", peak="gb200", links="gb300", of="gb300", crosses=True, attention="gb300"),
    Relative("v100-sxm-16gb", "v100-sxm-32gb", same_chip=True),
)
"""To add a device whose architecture the catalog has: its catalog entry, and a line here."""


def relative(target: Relative, public: Public, profiles: Mapping[str, Profile]) -> Profile:
    """Return the profile of `target` from the finished ones of its base and its links."""
    base, links = profiles[target.base], profiles[target.links or target.base]
    made = carried(base, target.name, _move(target, public), links)
    if target.attention:
        made = _throttled(_with_attention(made, target, public), target.attention)
    return made if base.measured else replace(made, method=f"public data: {made.method}")


def _with_attention(made: Profile, target: Relative, public: Public) -> Profile:
    """Return a profile with published kernels of attention, at the rates that the device's products have over those of
    the one that was timed."""
    found, by = attention(target.attention), _peak(target.device, public) / _peak(target.attention, public)
    whose = target.attention if by == 1 else f"{target.attention}, rate x {by:.4g}"
    if by != 1:
        found = {
            key: replace(
                m,
                parameters=m.parameters | {"rate": six_digits(m.parameters["rate"] * by)},
                status="scaled",
                source=f"{target.attention}'s, rate x {by:.4g} (measured matmul peaks): {m.source}",
            )
            for key, m in found.items()
        }
    models = [*(m for m in made.models if m.op != "attention"), *found.values()]
    return replace(made, method=f"{made.method}; attention as on {whose}", models=models)


def _throttled(made: Profile, like: str) -> Profile:
    """Return a profile with what products that follow each other lose on the device `like`, if its form has that."""
    lost = THROTTLED[like]
    models = [
        replace(
            m,
            parameters=m.parameters | {"throttled": lost},
            source=f"{m.source}; throttled: {like}, {GROUPED_SOURCE}",
        )
        if m.parameters.get("throttled")
        else m
        for m in made.models
    ]
    return replace(made, models=models)


def _peak(name: str, public: Public) -> float:
    """Return the measured matmul peak of a device, of a GB300 by that of a GB200."""
    return measured_peak(public, "gb200") * GB300_PRODUCTS if name == "gb300" else measured_peak(public, name)


def _move(target: Relative, public: Public) -> Move:
    base, wanted = device(target.base), device(target.device)
    by = ratios(base, wanted)
    if target.same_chip:
        return Move(by, 0.0, f"same chip, clocks and bandwidth as {base.name}", "no error, the same chip")
    sigma, text = CROSSED if target.crosses else peak_sigma(public)
    how = f"carried over from {base.name} {'to another' if target.crosses else 'within its'} architecture"
    if target.power_limited:
        return _under_limit(Move(by, sigma, how, text), base, wanted)
    if target.peak is None:
        return Move(by, sigma, f"{how}, by datasheet peaks", text)
    anchored = ratios(base, wanted, *(measured_peak(public, name) for name in (target.base, target.peak)))
    whose = f"measured matmul peaks of {base.name} and {target.peak}"
    if target.peak == target.device:
        return Move(anchored, sigma, f"{how}, by {whose}", text)
    return Move(
        replace(anchored, compute=anchored.compute * GB300_PRODUCTS),
        sigma,
        f"{how}, by {whose}, x {GB300_PRODUCTS:g} for {target.device} over {target.peak}",
        f"{text}; {target.device} over {target.peak}: {GROUPED_SOURCE}",
    )


def peak_sigma(public: Public) -> tuple[float, str]:
    """Return the RMS log error of datasheet ratios of matmul peaks within one architecture, and its source."""
    errors = []
    for base, other in PEAK_PAIRS:
        known = ratios(device(base), device(other), measured_peak(public, base), measured_peak(public, other))
        errors.append(log(known.compute / ratios(device(base), device(other)).compute))
    pairs = ", ".join(f"{a} to {b}" for a, b in PEAK_PAIRS)
    text = f"RMS log error of datasheet ratios against ratios of measured matmul peaks ({pairs})"
    return float(np.sqrt(np.mean(np.square(errors)))), text


def _under_limit(move: Move, base: Device, wanted: Device) -> Move:
    """Return the move with the clock that another power limit leaves.

    Assumed: dynamic power grows with clock x voltage^2, and voltage with the root of the clock, so clock ~ power^(1/2):
    with a voltage in proportion it would be power^(1/3), and where the voltage has reached its floor the clock falls
    with the power itself, which is taken as the edge of an 80 % interval. Both devices are taken to draw their limit in
    large products.
    """
    left = (wanted.power_w.value - wanted.idle_power_w.value) / (base.power_w.value - base.idle_power_w.value)
    clock = left ** (1 / 2)
    edge = abs(log(clock / left)) / Z80
    limit = f"{wanted.power_w.value:g} W instead of {base.power_w.value:g} W"
    return Move(
        replace(move.by, compute=move.by.compute * clock),
        hypot(move.sigma_log, edge),
        f"{move.how}, clock x {clock:.4g} for {limit} (assumed: clock ~ dynamic power ^ 1/2)",
        f"{move.sigma_source}, and the clock under {limit}: clock ~ dynamic power as the edge of an 80 % interval",
    )
