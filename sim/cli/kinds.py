"""The files that users write, and how one is told from another."""

from collections.abc import Mapping
from typing import Any

from sim.costs.learned import Learned
from sim.costs.profile import Profile
from sim.decentralized import Decentralized
from sim.specs import Device, Job, LayerTable
from sim.specs.fields import init_names
from sim.specs.schema import sections
from sim.sweep.grid import Grid

KINDS: dict[str, type] = {
    "job": Job, **sections(), "device": Device, "profile": Profile, "learned": Learned, "table": LayerTable,
    "grid": Grid, "decentralized": Decentralized,
}  # fmt: skip
"""A section may also stand in a file of its own."""


def recognised(raw: Mapping[str, Any]) -> str:
    """Return the kind of file by its keys: the one that knows most of them, a job where none does."""
    if "model_type" in raw and "model" not in raw:
        return "config"
    return max(KINDS, key=lambda kind: len(raw.keys() & set(init_names(KINDS[kind]))))
