"""SI constants and the one way of writing a number for a reader (three significant digits, SI prefixes)."""

from math import isfinite

GB = 1e9
MIB = 2**20
GIB = 2**30
HOUR_S = 3_600.0
DAY_S = 86_400.0
YEAR_S = 365.25 * DAY_S
THIN_SPACE = "\u2009"

_SECONDS = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_COUNT = ((1.0, ""), (1e6, "million"), (1e9, "billion"), (1e12, "trillion"))
_SI = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"), (1e18, "E"))


def digits3(value: float) -> str:
    """Return `value` with three significant digits and thin-space thousands, never in exponent form."""
    if not isfinite(value) or value == 0:
        return "0" if value == 0 else str(value)
    decimals = max(0, 2 - int(f"{value:.2e}".partition("e")[2]))  # of the rounded number: 9.999 is 10.0
    return f"{value:,.{min(decimals, 12)}f}".replace(",", THIN_SPACE)


def grouped(number: int) -> str:
    """Return a whole number with thin-space thousands: `10 368`."""
    return f"{number:,}".replace(",", THIN_SPACE)


def many(number: int, what: str, plural: str = "") -> str:
    """Return a number of things: `1 step`, `10 368 steps`, `2 axes`."""
    return f"{grouped(number)} {what if number == 1 else plural or f'{what}s'}"


def _scaled(value: float, steps: tuple[tuple[float, str], ...], unit: str) -> str:
    scale, prefix = steps[0]
    for candidate, name in steps:
        if abs(value) >= candidate * 0.9995:
            scale, prefix = candidate, name
    return f"{digits3(value / scale)} {prefix}{unit}".strip()


def seconds(value: float) -> str:
    """Return a duration in the largest unit up to seconds that keeps it >= 1: `4.21 s`, `13.0 µs`."""
    return _scaled(value, _SECONDS, "")


def lasting(seconds_: float) -> str:
    """Return how long something lasts, from an hour on in hours."""
    return seconds(seconds_) if seconds_ < HOUR_S else f"{digits3(seconds_ / HOUR_S)} h"


def si(value: float, unit: str) -> str:
    """Return a value with an SI prefix (1 GB = 1e9 B): `71.2 GB`, `989 TFLOP/s`."""
    return _scaled(value, _SI, unit)


def counted(value: float) -> str:
    """Return a large count as a reader says it: `15.0 trillion`, `2.30 million`, `184 811`."""
    return _scaled(value, _COUNT, "")


def gigabytes(value: float) -> str:
    """Return a size in bytes as GB, so that sizes of one table compare at a glance."""
    return f"{digits3(value / GB)} GB"


def percent(share: float) -> str:
    """Return a fraction as a percentage, two significant digits above 0.1 %: `9.1 %`, `34 %` (no break)."""
    value = 100 * share
    decimals = 0 if abs(value) >= 9.95 else 1
    return f"{value:.{decimals}f}\u00a0%"
