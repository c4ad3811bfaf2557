"""What a measurement needs of the machine, as small protocols: tests put fakes in their place."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


def usable_cores() -> int:
    """Return how many cores this thread may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Readings:
    """What the device's sensors say; None where there is no such sensor (a CPU has none here)."""

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


class Stopwatch(Protocol):
    """Times what is launched on a device."""

    def seconds(self, launch: Callable[[], object]) -> float:
        """Return the seconds between the start of `launch()` and the end of all that it started."""
        ...

    def captured(self, launch: Callable[[], object]) -> Callable[[], object] | None:
        """Return what does again on the device all that `launch()` starts there, without issuing it; None where it
        cannot be recorded."""
        ...

    def release(self) -> None:
        """Give memory that no tensor uses back to the device."""
        ...


class Load(Protocol):
    """Who else works on the device."""

    def others(self) -> float:
        """Return the share of the device that others used since the call before, 0 to 1."""
        ...


class Sensors(Protocol):
    """Clocks, power and temperature of the device; only ever read."""

    def read(self) -> Readings:
        """Return the present readings."""
        ...


@dataclass(frozen=True)
class Instruments:
    """The instruments of one measurement; `sentinel()` times the same work again and again, in seconds.

    `now` is a wall clock in seconds (for budgets), `sleep` waits.
    """

    stopwatch: Stopwatch
    load: Load
    sensors: Sensors
    sentinel: Callable[[], float]
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
