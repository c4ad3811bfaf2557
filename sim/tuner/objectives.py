"""What can be better about a plan, as numbers of its step time and of its peak memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sim.costs.profile import load_profile
from sim.engine.step import device_memory
from sim.specs import Cluster, InputError, Model
from sim.units import HOUR_S

Measured = Literal["step_time", "cost", "tokens_per_usd", "memory_headroom"]
"""The objectives that a plan has on a given cluster; gpus_for_deadline is a search over clusters."""


@dataclass(frozen=True)
class Setting:
    """What all plans of one search share."""

    model: Model
    cluster: Cluster
    global_batch: int

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one global batch."""
        return self.global_batch * self.model.tokens_per_sample

    @property
    def usd_per_s(self) -> float:
        """Price of all devices; raises InputError where it is not known or nothing."""
        price = self.cluster.usd_per_hour
        if not price:
            raise InputError("cluster.usd_per_gpu_hour", price, f"a price above 0 for {self.cluster.device}")
        return price / HOUR_S


@dataclass(frozen=True)
class Measure:
    """One objective: its words and unit, whether more is better, and its value.

    value: (setting, step time in seconds, allocated peak in bytes) -> number or array in `unit`; it falls or rises
    with the step time alone, or with the peak alone.
    """

    words: str
    unit: str
    more: bool
    value: Callable[[Setting, Any, Any], Any]

    def loss(self, setting: Setting, step_time_s: Any, peak_bytes: Any) -> Any:
        """Return the value with its sign such that less is better."""
        found = self.value(setting, step_time_s, peak_bytes)
        return -found if self.more else found


def _headroom(setting: Setting, step_time_s: Any, peak_bytes: Any) -> Any:
    """Return the free bytes of the device of a cluster that a peak fills most; peaks are those of the fullest rank."""
    del step_time_s
    members = setting.cluster.members
    tight = min(members, key=lambda m: m.memory_bytes)
    return tight.memory_bytes - device_memory(peak_bytes, load_profile(tight.profile))


MEASURES: Mapping[Measured, Measure] = {
    "step_time": Measure("step time", "s", False, lambda s, time, peak: time),
    "cost": Measure(
        "cost of 1e9 tokens", "USD", False, lambda s, time, peak: time * s.usd_per_s / s.tokens_per_step * 1e9
    ),
    "tokens_per_usd": Measure("tokens", "1/USD", True, lambda s, time, peak: s.tokens_per_step / (time * s.usd_per_s)),
    "memory_headroom": Measure("free memory", "B", True, _headroom),
}
