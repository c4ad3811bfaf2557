"""Lookup of catalog entries as specs."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache

from sim.catalog import folder, names
from sim.specs.device import Device
from sim.specs.fields import InputError, read
from sim.specs.model import Model


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
    return read(Model, _stated(name), f"models/{name}")


def _stated(name: str) -> dict[str, object]:
    raw = _entry("models", name)
    assert isinstance(raw, dict)
    return {k: v for k, v in raw.items() if k != "source"}


@lru_cache
def alias(name: str) -> Model:
    """Return the catalog model that a published table means by `name`, changed as a remark in the name says.

    "DeepSeekV3 (w/o MTP)" is deepseek-v3 without its prediction module; a name of the catalog stands for itself.
    `sim/catalog/aliases.json` holds names and remarks, each with its source.

    Raises:
        InputError: no such name.
    """
    table = json.loads(folder("aliases.json").read_text("utf-8"))
    known = table["models"]["names"]
    found = known.get(name) or known.get(name.partition(" (")[0]) or name
    changes = [term["model"] for term in table["terms"] if term.get("has", "\0") in name and "model" in term]
    raw = _stated(found)
    for change in changes:
        raw |= change
    return read(Model, raw, f"models/{found}")


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
