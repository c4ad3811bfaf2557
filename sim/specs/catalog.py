"""Lookup of catalog entries as specs."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache

from sim.catalog import folder, names
from sim.specs.device import Device
from sim.specs.fields import InputError, read
from sim.specs.model import Model
from sim.specs.scaling import ScalingLaw


def _entry(kind: str, name: str) -> object:
    known = names(kind)
    if name not in known:
        raise InputError(kind.removesuffix("s"), name, "one of " + ", ".join(known))
    return json.loads((folder(kind) / f"{name}.json").read_text("utf-8"))


@lru_cache
def device(name: str) -> Device:
    """Return the catalog device `name`; raises InputError with the known names."""
    return read(Device, _entry("devices", name), f"devices/{name}")


@lru_cache
def model(name: str) -> Model:
    """Return the catalog model `name`; raises InputError with the known names."""
    raw = _entry("models", name)
    assert isinstance(raw, dict)
    return read(Model, {k: v for k, v in raw.items() if k != "source"}, f"models/{name}")


@lru_cache
def scaling_law(name: str) -> ScalingLaw:
    """Return the catalog scaling law `name`; raises InputError with the known names."""
    return read(ScalingLaw, _entry("scaling", name), f"scaling/{name}")


class Models(Mapping[str, Model]):
    """The models of the catalog by name: `sim.models["gpt3-175b"]`."""

    def __getitem__(self, name: str) -> Model:
        return model(name)

    def __contains__(self, name: object) -> bool:
        return name in names("models")

    def __iter__(self) -> Iterator[str]:
        return iter(names("models"))

    def __len__(self) -> int:
        return len(names("models"))


models = Models()
