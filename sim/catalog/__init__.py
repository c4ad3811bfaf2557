"""Data only: devices, models, precisions, scaling laws and fitted profiles as JSON, a source beside every number."""

import json
import re
from collections.abc import Mapping
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


def newer_profile(device: str) -> str | None:
    """Return the profile of a device with libraries of a later year, named DEVICE-YEAR; None: it has none."""
    return next((name for name in _names("profiles") if name.removeprefix(f"{device}-").isdigit()), None)


def profiled_device(profile: str) -> str:
    """Return the device that a profile of the catalog is of; any other name as it is."""
    device = profile.rpartition("-")[0]
    return device if newer_profile(device) == profile else profile


def meant(kind: str, name: str) -> str:
    """Return the entry of one kind that `name` is but for case and punctuation, `name` itself where there is none."""
    return name if name in _names(kind) else _spellings(kind).get(spelled(name), name)


def spelled(name: str) -> str:
    """Return a name in small letters without punctuation but between digits: GPT3-5B is not GPT-35B."""
    return re.sub(r"(?<!\d)-|-(?!\d)", "", re.sub(r"[^a-z0-9]+", "-", name.lower()))


@cache
def _spellings(kind: str) -> Mapping[str, str]:
    return {spelled(name): name for name in _names(kind)}
