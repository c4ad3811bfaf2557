"""One unit per axis or interval, chosen from the largest value, and the texts that readers see."""

from collections.abc import Iterable
from typing import NamedTuple

from sim.units import digits3


class Unit(NamedTuple):
    """A unit of an axis: SI value = shown number x `scale`."""

    scale: float
    name: str

    def text(self, value: float) -> str:
        """Return `value` (SI) in this unit with three significant digits."""
        return f"{digits3(value / self.scale)} {self.name}"

    def interval(self, low: float, high: float) -> str:
        """Return an 80 % interval (SI) as numbers of this unit: `3.90–4.51`."""
        return f"{digits3(low / self.scale)}–{digits3(high / self.scale)}"


_TIME = (Unit(1.0, "s"), Unit(1e-3, "ms"), Unit(1e-6, "µs"), Unit(1e-9, "ns"))
_BYTES = (Unit(1e12, "TB"), Unit(1e9, "GB"), Unit(1e6, "MB"), Unit(1e3, "kB"), Unit(1.0, "B"))


def _largest(value: float, units: tuple[Unit, ...]) -> Unit:
    return next((u for u in units if abs(value) >= u.scale * 0.9995), units[-1])


def time_unit(longest_s: float) -> Unit:
    """Return the unit of an axis that ends at `longest_s` seconds."""
    return _largest(longest_s, _TIME)


def byte_unit(largest_bytes: float) -> Unit:
    """Return the unit of an axis that ends at `largest_bytes` (1 GB = 1e9 B)."""
    return _largest(largest_bytes, _BYTES)


def seconds_interval(value: float, interval: tuple[float, float]) -> str:
    """Return a duration (s) with its 80 % interval in the same unit: `4.21 s (3.90–4.51)`."""
    unit = time_unit(value)
    return f"{unit.text(value)} ({unit.interval(*interval)})"


def days_interval(days: float, interval: tuple[float, float]) -> str:
    """Return a number of days with its 80 % interval, in hours below one day: `54.2 days (48.1–61.0)`."""
    unit = Unit(1.0, "days") if days >= 1 else Unit(1 / 24, "hours")
    return f"{unit.text(days)} ({unit.interval(*interval)})"


def bytes_interval(value: float, interval: tuple[float, float]) -> str:
    """Return a size (B) with its 80 % interval in the same unit: `71.2 GB (67.0–75.6)`."""
    unit = byte_unit(value)
    return f"{unit.text(value)} ({unit.interval(*interval)})"


def span(values: Iterable[float]) -> str:
    """Return the least and the greatest of some numbers, `1.35–1.71`, or one where both look the same."""
    held = list(values)
    return "–".join(dict.fromkeys(f"{end:.2f}" for end in (min(held), max(held))))


def signed(value: float, decimals: int) -> str:
    """Return a number with its sign, a true minus: `−3.10`, `+0.25`; none where it rounds to zero."""
    size = f"{abs(value):.{decimals}f}"
    return size if not float(size) else ("−" if value < 0 else "+") + size


def probability(share: float) -> str:
    """Return a share of finitely many draws in whole percent; they prove neither 0 nor 100: `< 1 %`, `> 99 %`."""
    return "<\u00a01\u00a0%" if share < 0.01 else ">\u00a099\u00a0%" if share > 0.99 else f"{100 * share:.0f}\u00a0%"


def change(share: float, decimals: int = 1) -> str:
    """Return a relative change in percent with its sign: `+3.1 %`, `−12.0 %`; none where it rounds to zero."""
    return f"{signed(100 * share, decimals)}\u00a0%"


def shorten(text: str, limit: int = 40) -> str:
    """Return `text` cut to `limit` characters, the last one an ellipsis where something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def tenths(share: float) -> str:
    """Return a share in percent with one decimal, where little is lost of a whole."""
    return f"{100 * share:.1f}\u00a0%"
