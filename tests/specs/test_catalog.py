"""Catalog entries load, and every number has a source."""

import json

import pytest

from sim.catalog import folder, names
from sim.specs.catalog import device, model


@pytest.mark.parametrize("name", names("devices"))
def test_device(name):
    found = device(name)
    assert found.name == name
    raw = json.loads((folder("devices") / f"{name}.json").read_text())
    numbers = {k: v for k, v in raw.items() if isinstance(v, dict)}
    assert len(numbers) >= 9
    assert all(len(v["source"]) > 10 for v in numbers.values())


@pytest.mark.parametrize("name", names("models"))
def test_model(name):
    assert model(name).name == name
    assert len(json.loads((folder("models") / f"{name}.json").read_text())["source"]) > 10
