"""Carrying a fitted model over to a device without samples: wave scaling.

Each term of a form moves by the ratio of the resource it uses (compute rate, memory bandwidth, number of
SMs), which weights the ratios by arithmetic intensity as Habitat's wave scaling does (Yu et al., USENIX ATC 2021,
section 3.3). A measured matmul peak on both devices anchors the compute ratio better than the ratio of datasheet
peaks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import hypot, log
from typing import TYPE_CHECKING

from sim.costs.fitted import KernelModel, all_six_digits, six_digits
from sim.costs.kernels import NARROW
from sim.specs.device import Device

if TYPE_CHECKING:
    from sim.costs.profile import Profile


@dataclass(frozen=True)
class Ratios:
    """Target over base: compute rate, memory bandwidth, SMs; `anchored` if the first is of measured peaks."""

    compute: float
    bandwidth: float
    sms: float
    anchored: bool


def ratios(base: Device, target: Device, base_peak: float | None = None, target_peak: float | None = None) -> Ratios:
    """Return the ratios between two catalog devices; peaks are measured FLOP/s, None where there is none."""
    anchored = base_peak is not None and target_peak is not None
    if base_peak is not None and target_peak is not None:
        compute = target_peak / base_peak
    else:
        compute = target.peak_bf16_flop_per_s.value / base.peak_bf16_flop_per_s.value
    bandwidth = target.memory_bytes_per_s.value / base.memory_bytes_per_s.value
    return Ratios(compute, bandwidth, target.sms.value / base.sms.value, anchored)


_ROLE = {
    "rate": "compute",
    "bandwidth": "bandwidth",
    "m0": "sms",
    "n0": "sms",
    "r0": "sms",
    "units": "sms",
    "least": "sms",
    "boost_flop": "compute",
    "throttled_flop": "compute",
}
"""k0, serial, column_serial, s0, c0 and c1 belong to the work inside one tile and t0 to the launch: they do not grow
with the chip; b1, cold, cold_bytes and written are left as they are, and row_serial and serial_rows, of which a part
would. The clock falls after a time, so what is done until then grows with the rate."""


def carry(parameters: Mapping[str, float], by: Ratios) -> dict[str, float]:
    """Return the parameters of a form on the target device."""
    return {name: value * float(getattr(by, _ROLE.get(name, ""), 1.0)) for name, value in parameters.items()}


CHIP = ("sms", "boost_hz", "peak_bf16_flop_per_s", "memory_bytes_per_s", "l2_bytes", "power_w")
"""What kernels of a device go by; its links, price and amount of memory are not theirs."""


def same_chip(base: Device, target: Device) -> bool:
    """Return whether two devices have the same numbers of all that their kernels go by."""
    return all(getattr(base, field).value == getattr(target, field).value for field in CHIP)


def nearest(target: Device, devices: Iterable[Device]) -> Device:
    """Return the device nearest in the logs of 16-bit peak and memory bandwidth, links of the same kind first."""

    def distance(base: Device) -> tuple[bool, float]:
        by = ratios(base, target)
        return base.intra_node != target.intra_node, hypot(log(by.compute), log(by.bandwidth))

    return min(devices, key=distance)


@dataclass(frozen=True)
class Move:
    """A move from a base to another device: what it changes, its standard deviation of log time, and why, as text."""

    by: Ratios
    sigma_log: float
    how: str
    sigma_source: str


def carried(profile: "Profile", name: str, move: Move, links: "Profile") -> "Profile":
    """Return `profile` carried over to the device `name`, as an estimate; collectives are those of `links`.

    The errors of both moves add as variances: of the base itself, and of this one.
    """
    return replace(
        profile,
        name=name,
        base=profile.name,
        estimate=True,
        method=f"{move.how} (base: {profile.method})",
        models=[_moved(model, profile.name, move) for model in profile.models],
        collectives=links.collectives,
        collectives_source=f"as on {links.name}: {links.collectives_source}",
        scaling_sigma_log=six_digits(hypot(profile.scaling_sigma_log, move.sigma_log)),
        fingerprint=None,
        session="",
        contention=[],
        issue_of=(profile.issue_of or profile.name) if profile.issue_s else "",
        uncertainty_source=f"as on {profile.name} ({profile.uncertainty_source}); this move: {move.sigma_source}",
    )


def carried_to_fp32(base: "Profile", name: str, by: Ratios, how: str, sigma_log: float) -> "Profile":
    """Return a profile of 16-bit kernels carried over to those of fp32, an estimate by stated ratios."""
    made = carried(base, name, Move(by, sigma_log, how, "assumed"), base)
    return replace(made, dtype="float32", models=[_in_fp32(each) for each in made.models])


def _in_fp32(model: KernelModel) -> KernelModel:
    """Return a model of fp32 kernels, which narrow rows do not slow as they do 16-bit ones."""
    parameters = {name: value for name, value in model.parameters.items() if name not in NARROW}
    return replace(model, dtype="float32", parameters=parameters, held_out={})


def _moved(model: KernelModel, base: str, move: Move) -> KernelModel:
    by = move.by
    return replace(
        model,
        parameters=all_six_digits(carry(model.parameters, by)),
        standard_errors={},
        domain={},
        log_residual_quantiles={},
        held_out={use: errors for use, errors in model.held_out.items() if use == "narrow"},
        bins=[],
        outside_slope=0.0,
        n_train=0,
        n_flagged=0,
        status="scaled",
        source=f"{base}'s, compute rate x {by.compute:.4g}, bandwidth x {by.bandwidth:.4g}; errors: {base}'s own; "
        f"there: {model.source}",
    )
