"""Catalog entries load, and every number has a source."""

import json
from dataclasses import replace
from pathlib import Path

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


COUNTED = {file.stem: json.loads(file.read_text()) for file in (Path(__file__).parent / "configs").glob("*.json")}


@pytest.mark.parametrize("name", sorted(COUNTED.keys() & set(names("models"))))
def test_parameters_without_prediction_modules_are_the_library_s(name):
    assert replace(model(name), mtp_layers=0).parameters == COUNTED[name]["parameters"]


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("nemotron-3-ultra", 550, 55),
        ("nemotron-3-super", 120, 12),
        ("nemotron-3.5-lightning", 31.6, 3.6),
        ("deepseek-v4-flash", 284, 13),
        ("nemotron3-8b", 8.5, 8.5),
        ("nemotron3-22b", 22, 22),
        ("gpt3-5b", 5, 5),
        ("gpt3-20b", 20, 20),
    ],
)
def test_parameters_meet_the_published_ones(name, billions, active):
    found = replace(model(name), mtp_layers=0)
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.035)
    assert found.active_parameters / 1e9 == pytest.approx(active, rel=0.065)
