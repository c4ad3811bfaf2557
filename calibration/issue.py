"""How long kernels take to issue: Python, dispatcher and autograd, from models of next to no size."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibration.kernels.overhead import small
from sim.costs.fitted import six_digits
from sim.costs.profile import Profile
from sim.costs.run_level import RunLevel, RunLevelSet
from sim.costs.stage import backward_seconds, forward_seconds
from sim.engine.placed import stage_costs
from sim.specs import Cluster, Plan

FEWEST = 2
"""Heights that a line needs."""


def with_issue(profile: Profile, rows: Sequence[Mapping[str, Any]]) -> Profile:
    """Return `profile` with `issue_s` and `ends_issue_s` from the session's `launch`/`pass` samples, if it has any.

    The samples are forward and backward of models of n layers, all of it issue on a device that runs beside its host: a
    straight line in n, least relative squares. On a host processor the gaps between modules (`launch`/`gaps`) are taken
    off; issue and kernels take turns, and the launch floors of the kernels hold a part of it: what the profile says of
    such a layer and such ends is taken off too.
    """
    gaps = _by_layers(rows, "gaps")
    passes = {n: t - gaps.get(n, 0.0) for n, t in _by_layers(rows, "pass").items() if n in gaps or not gaps}
    if len(passes) < FEWEST:
        return profile
    layers, seconds = np.array(list(passes)), np.array(list(passes.values()))
    each, ends = np.polyfit(layers, seconds, 1, w=1 / seconds).tolist()
    if profile.dtype == "float32":
        kernels = _kernels_s(profile)
        each, ends = each - kernels[0], ends - kernels[1]
    return replace(profile, issue_s=six_digits(max(0.0, each)), ends_issue_s=six_digits(max(0.0, ends)))


def _by_layers(rows: Sequence[Mapping[str, Any]], direction: str) -> dict[float, float]:
    """Return the seconds of fitted samples by their layers."""
    held = [row for row in rows if (row["op"], row["direction"], row["use"]) == ("launch", direction, "fit")]
    return {float(row["shape"]["layers"]): float(row["t_s"]) for row in held}


def _kernels_s(profile: Profile) -> tuple[float, float]:
    """Return what the profile's kernels take in such a layer, and in such ends, on a host processor."""
    model, alone = small(1), Cluster.of("cpu", nodes=1, gpus_per_node=1)
    placed = Plan(global_batch=1, cross_entropy="autograd").on(model, alone)
    costs = stage_costs(model, alone, placed, profile, RunLevelSet.bare(RunLevel()))

    def both(prefix: str) -> float:
        return float(np.sum(forward_seconds(costs, prefix) + backward_seconds(costs, prefix)))

    return both(""), both("embedding_") + both("head_")
