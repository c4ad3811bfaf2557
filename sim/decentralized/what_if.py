"""What if links were faster, partitions more, data more skewed, the model larger: the same training simulated again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sim.decentralized.accuracy import AccuracyModel, Estimate
from sim.decentralized.laws import bsp_law, law
from sim.decentralized.results import Simulated
from sim.decentralized.setting import Decentralized
from sim.decentralized.simulate import checked_model, simulate
from sim.specs.arguments import checked, numbers
from sim.specs.fields import InputError

Axis = Literal["bandwidth", "partitions", "skew", "model_bytes"]
USUAL: dict[Axis, tuple[float, ...]] = {
    "bandwidth": (1.25e6, 5e6, 1.25e7, 5e7, 1.25e8, 1.25e9),
    "partitions": (2, 3, 5, 8, 12),
    "skew": (0.0, 0.25, 0.5, 0.75, 1.0),
    "model_bytes": (1e7, 1e8, 1e9, 1e10),
}
"""Values of each axis where none are stated: bytes/s of every link, K, fraction, bytes."""


@dataclass(frozen=True)
class WhatIf:
    """One value of an axis, and what the training comes to with it; `theta` is the one that it ends with."""

    axis: Axis
    value: float
    seconds: float
    traffic_bytes: int
    theta: float
    saving: float | None
    accuracy: Estimate | None
    accuracy_loss: Estimate | None

    @classmethod
    def of(cls, axis: Axis, value: float, found: Simulated) -> "WhatIf":
        """Return the row of a simulated training."""
        return cls(
            axis=axis,
            value=value,
            seconds=found.seconds,
            traffic_bytes=found.traffic_bytes,
            theta=found.final_theta,
            saving=found.saving,
            accuracy=found.accuracy,
            accuracy_loss=found.accuracy_loss,
        )


@checked
def what_if(
    setting: Decentralized, along: Axis, values: Sequence[float] = (), model: AccuracyModel | None = None
) -> tuple[WhatIf, ...]:
    """Return a row for every value of an axis: bytes/s of every link, K, skew, or bytes of the model.

    Left out, values are usual ones. Short runs say what accuracy a theta leaves with as many partitions as they had;
    with others it is taken to be the same.

    Raises:
        InputError: a value is out of range, or partitions change where numbers or failures of each are stated.
    """
    checked_model(setting, model)
    chosen = numbers("values", values) or USUAL[along]
    return tuple(_row(along, value, changed(setting, along, value), model) for value in chosen)


def _row(axis: Axis, value: float, setting: Decentralized, model: AccuracyModel | None) -> WhatIf:
    """Return the row of a setting: where nothing changes by the closed form, which says the same at once."""
    if setting.adapts or setting.failures or setting.wan.changes:
        return WhatIf.of(axis, value, simulate(setting, model))
    theta, skew = setting.begin, setting.skew
    found = law(setting, model.sent_fraction(theta, skew) if model else 1.0)
    bsp = bsp_law(setting)
    return WhatIf(
        axis=axis,
        value=value,
        seconds=found.seconds,
        traffic_bytes=found.traffic_bytes,
        theta=theta,
        saving=bsp.traffic_bytes / found.traffic_bytes if found.traffic_bytes else None,
        accuracy=model.accuracy(theta, skew) if model else None,
        accuracy_loss=model.accuracy_loss(theta, skew) if model else None,
    )


def changed(setting: Decentralized, along: Axis, value: float) -> Decentralized:
    """Return the setting with another value of an axis. Raises InputError."""
    if along == "bandwidth":
        return setting.with_(wan=replace(setting.wan, bytes_per_s=float(value)))
    if along == "skew":
        return setting.with_(skew=float(value))
    if along == "model_bytes":
        if not 4 <= value <= 4e13:
            raise InputError("values", value, "bytes from 4 to 4e+13")
        return setting.with_(sizes=setting.sizes.scaled(value))
    for name in _by_partition(setting):
        raise InputError(name, "one for each partition", "one for all, or left out, where the partitions change")
    if value != int(value):
        raise InputError("values", value, "whole numbers of partitions")
    return setting.with_(wan=replace(setting.wan, partitions=int(value)))


def _by_partition(setting: Decentralized) -> Iterator[str]:
    """Yield what is stated of single partitions."""
    wan = setting.wan
    named: dict[str, Any] = {
        "step_s": setting.step_s,
        "wan.bytes_per_s": wan.bytes_per_s,
        "wan.latency_s": wan.latency_s,
    }
    named |= {"wan.uplink_bytes_per_s": wan.uplink_bytes_per_s, "failures": setting.failures or None}
    named |= {"wan.changes": tuple(c for c in wan.changes if (c.source, c.target) != (None, None)) or None}
    yield from (name for name, value in named.items() if isinstance(value, tuple))
