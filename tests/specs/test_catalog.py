"""Catalog entries load, and every number has a source."""

import json

import pytest

from sim.catalog import folder, names
from sim.specs import InputError
from sim.specs.catalog import device, model, scaling_law


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


@pytest.mark.parametrize("name", names("scaling"))
def test_scaling_law(name):
    found = scaling_law(name)
    assert found.name == name
    assert all("arXiv" in number.source for number in (found.e, found.a, found.b, found.alpha, found.beta))


def test_unknown_scaling_law_names_the_known():
    with pytest.raises(InputError, match="one of besiroglu-2024, hoffmann-2022"):
        scaling_law("kaplan")
