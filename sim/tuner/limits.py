"""What the target leaves of a space, and what knobs with bounds may be."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.plans.limit import Asked
from sim.plans.targets import LIMITS
from sim.specs import Cluster, InputError, Model
from sim.specs.job import Target
from sim.specs.knobs import Bounds, Values
from sim.specs.rules import divisors


def on_target(target: Target, asked: Asked, allowed: NDArray[np.bool_], excluded: dict[str, int]) -> NDArray[np.bool_]:
    """Return which of the `allowed` configurations `target` can run; the others are added to `excluded` by reason.

    `asked` holds arrays that broadcast to `allowed`; what breaks several limits counts for the first.
    """
    for limit in LIMITS[target]:
        broken = allowed & limit.broken(asked)
        if broken.any():
            excluded[limit.reason] = int(broken.sum())
            allowed = allowed & ~broken
    return allowed


def resolved(
    knobs: Mapping[str, Values], model: Model, cluster: Cluster, global_batch: int
) -> dict[str, Sequence[Any]]:
    """Return the values of every knob: bounds become all values inside that can be legal at all.

    Raises:
        InputError: no value within the bounds of a knob can be legal.
    """
    return {
        name: _inside(name, given, model, cluster, global_batch) if isinstance(given, Bounds) else given
        for name, given in knobs.items()
    }


def _inside(name: str, bounds: Bounds, model: Model, cluster: Cluster, global_batch: int) -> list[int]:
    of = {"ep": model.experts or 1, "virtual_stages": model.layers, "micro_batch": global_batch}
    possible = list(range(4)) if name == "zero" else divisors(of.get(name, cluster.gpus))
    inside = [value for value in possible if bounds.holds(value)]
    if not inside:
        ends = {k: v for k, v in (("min", bounds.min), ("max", bounds.max)) if v is not None}
        raise InputError(f"tune.knobs.{name}", ends, f"bounds around one of {', '.join(map(str, possible))}")
    return inside
