"""How long a layer's kernels take to issue: Python, dispatcher and autograd, from layers of next to no size."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibration.kernels.overhead import small
from sim.costs.profile import Profile
from sim.costs.run_level import RunLevel, RunLevelSet
from sim.costs.stage import backward_seconds, forward_seconds
from sim.engine.placed import stage_costs
from sim.specs import Cluster, Plan


def with_issue(profile: Profile, rows: Sequence[Mapping[str, Any]]) -> Profile:
    """Return `profile` with `issue_s` from the session's `launch`/`layer` samples; as it is without any.

    The samples are the time of one layer forward and backward, which is all issue on a device that runs beside its
    host. On a host processor issue and kernels take turns, and the launch floors of the kernels hold a part of it:
    what the profile says of such a layer is taken off.
    """
    of_layer = [row for row in rows if (row["op"], row["direction"]) == ("launch", "layer")]
    if not of_layer:
        return profile
    measured = float(np.median([row["t_s"] for row in of_layer]))
    kernels = _kernels_s(profile) if profile.dtype == "float32" else 0.0
    return replace(profile, issue_s=float(f"{max(0.0, measured - kernels):.6g}"))


def _kernels_s(profile: Profile) -> float:
    """Return what the profile's kernels take in one such layer on a host processor."""
    model, alone = small(1), Cluster.of("cpu", nodes=1, gpus_per_node=1)
    placed = Plan(global_batch=1).on(model, alone)
    costs = stage_costs(model, alone, placed, profile, RunLevelSet.bare(RunLevel()))
    return float(np.sum(forward_seconds(costs) + backward_seconds(costs)))
