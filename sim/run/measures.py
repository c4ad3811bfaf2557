"""What a run takes, four numbers with their intervals."""

from typing import Any, Protocol, runtime_checkable

Interval = tuple[float, float]


@runtime_checkable
class Measures(Protocol):
    """What a run takes, wherever it runs; intervals are the central 80 %."""

    @property
    def days(self) -> float:
        """Until it ends."""

    @property
    def days_interval(self) -> Interval:
        """Of days."""

    @property
    def gpu_hours(self) -> float:
        """That are paid."""

    @property
    def gpu_hours_interval(self) -> Interval:
        """Of GPU-hours."""

    @property
    def cost_usd(self) -> float | None:
        """None where no price is known."""

    @property
    def cost_usd_interval(self) -> Interval | None:
        """Of the cost."""

    @property
    def energy_kwh(self) -> float:
        """Of the devices, times the site's PUE."""

    @property
    def energy_kwh_interval(self) -> Interval:
        """Of the energy."""


def with_intervals(**measures: tuple[float, Interval] | tuple[None, None]) -> dict[str, Any]:
    """Return fields that have an interval: each value by its name, and its interval."""
    return {
        field: part
        for name, pair in measures.items()
        for field, part in zip((name, f"{name}_interval"), pair, strict=True)
    }


def spread(values: tuple[float, float, float]) -> tuple[float, Interval]:
    """Return a value, and the interval that it and its ends span."""
    return values[0], (min(values), max(values))
