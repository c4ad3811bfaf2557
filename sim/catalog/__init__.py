"""Data only: devices, models, precisions, scaling laws and fitted profiles as JSON, a source beside every number."""

from importlib.resources import files
from importlib.resources.abc import Traversable


def folder(kind: str) -> Traversable:
    """Return the folder of one kind of entry: `devices`, `models`, `precisions`, `scaling` or `profiles`."""
    return files(__name__) / kind


def names(kind: str) -> list[str]:
    """Return the sorted names of the entries of one kind."""
    return sorted(entry.name.removesuffix(".json") for entry in folder(kind).iterdir() if entry.name[0] not in "._")
