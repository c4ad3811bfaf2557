"""Carrying a fitted model over to a device without samples: wave scaling.

Each term of a form moves by the ratio of the resource it uses (compute rate, memory bandwidth, number of
SMs), which weights the ratios by arithmetic intensity as Habitat's wave scaling does. A measured matmul peak
on both devices anchors the compute ratio better than the ratio of datasheet peaks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sim.specs.device import Device


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


_ROLE = {"rate": "compute", "bandwidth": "bandwidth", "m0": "sms", "n0": "sms", "r0": "sms"}
"""k0, s0 and c0 belong to the work inside one tile and t0 to the launch: they do not grow with the chip."""


def carry(parameters: Mapping[str, float], by: Ratios) -> dict[str, float]:
    """Return the parameters of a form on the target device."""
    return {name: value * float(getattr(by, _ROLE.get(name, ""), 1.0)) for name, value in parameters.items()}
