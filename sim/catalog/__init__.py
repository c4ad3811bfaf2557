"""Data only: devices, models, precisions, scaling laws and fitted profiles as JSON, a source beside every number."""

import json
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any


def folder(kind: str) -> Traversable:
    """Return the folder of one kind of entry, such as `devices`."""
    return files(__name__) / kind


def data(path: str) -> Any:
    """Return what a file of the catalog, such as `devices/l4.json`, states."""
    return json.loads((files(__name__) / path).read_text("utf-8"))


def kinds() -> list[str]:
    """Return the sorted kinds of entry that the catalog holds."""
    return sorted(entry.name for entry in files(__name__).iterdir() if entry.is_dir() and entry.name[0] not in "._")


def names(kind: str) -> list[str]:
    """Return the sorted names of the entries of one kind."""
    return list(_names(kind))


@cache  # a step asks for them several times, and they are part of the package
def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(e.name.removesuffix(".json") for e in folder(kind).iterdir() if e.name[0] not in "._"))
