"""What a result comes from: hashes of the code and of data."""

import json
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

PREDICTING = ("catalog", "specs", "costs", "schedules", "engine", "plans", "tuner", "sweep")
"""Packages that a result may rest on; reports and commands change none."""


@lru_cache
def code_digest() -> str:
    """Return the hash of the version (in the facade), the code and the catalog behind every prediction."""
    found = sha256((files("sim") / "__init__.py").read_bytes())
    for name in PREDICTING:
        _add(found, files("sim") / name)
    return found.hexdigest()


def data_digest(data: Any) -> str:
    """Return the hash of plain data."""
    return sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()


def _add(found: "sha256", place: Traversable) -> None:  # type: ignore[valid-type]
    for each in sorted(place.iterdir(), key=lambda one: one.name):
        if each.is_dir() and each.name != "__pycache__":
            _add(found, each)
        elif each.name.endswith((".py", ".json")):
            found.update(each.name.encode() + each.read_bytes())  # type: ignore[attr-defined]
