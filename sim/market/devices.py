"""The names by which markets offer the devices of the catalog (`sim/catalog/aliases.json`)."""

from collections.abc import Mapping
from functools import cache

from sim.catalog import data


def catalog_device(name: str) -> str | None:
    """Return the device of the catalog that a market calls `name`, in lower case; None where none is known."""
    return _names().get(name)


def market_name(device: str) -> str | None:
    """Return what markets call a device of the catalog, the first name of several; None where none is known."""
    return next((name for name, known in _names().items() if known == device), None)


@cache
def _names() -> Mapping[str, str]:
    held: dict[str, str] = data("aliases.json")["devices"]["names"]
    return held
