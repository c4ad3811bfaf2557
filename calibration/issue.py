"""How long kernels take to issue: Python, dispatcher and autograd, from models and operations of next to no size."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import numpy as np

from calibration.kernels.overhead import MORE, small
from sim.costs.fitted import six_digits
from sim.costs.profile import KERNELS_A_LAYER, POINTWISE_A_LAYER, Profile
from sim.costs.run_level import RunLevel, RunLevelSet
from sim.costs.stage import backward_seconds, forward_seconds
from sim.engine.placed import stage_costs
from sim.specs import Cluster, Plan

FEWEST = 2
"""Heights that a line needs."""


def with_issue(profile: Profile, rows: Sequence[Mapping[str, Any]]) -> Profile:
    """Return `profile` with what a session's `launch` samples say of issuing a layer, ends and an operation."""
    return _of_operations(_of_layers(profile, rows), rows)


def _of_operations(profile: Profile, rows: Sequence[Mapping[str, Any]]) -> Profile:
    """Return `profile` with `pointwise_issue_s`, `product_issue_s` and `convolution_issue_s`, if it has the samples.

    Those of point-wise operations are the shortest of chains (`passes`); what one more layer takes where modules follow
    each other (`hot`; on a device beside its host `pass`), less its point-wise operations, is spread evenly over the
    others. On a host processor a kernel of next to no size is taken off each. A convolution is issued three times:
    forward and for both gradients.
    """
    convolutions = _by(rows, "convolutions", "modules").values()
    if convolutions:
        profile = replace(profile, convolution_issue_s=six_digits(min(convolutions) / 3))
    host = profile.dtype == "float32"
    models = _by(rows, "hot" if host else "pass", "layers")
    chains = _by(rows, "passes", "kernels").values()
    if len(models) < FEWEST or not chains:
        return profile
    kernel_s, pointwise_s = profile.read["elementwise", "any"].parameters["t0"] if host else 0.0, min(chains)
    others_s = (_line(models)[0] - POINTWISE_A_LAYER * pointwise_s) / (KERNELS_A_LAYER - POINTWISE_A_LAYER)
    pointwise, others = (six_digits(max(0.0, seconds - kernel_s)) for seconds in (pointwise_s, others_s))
    return replace(profile, pointwise_issue_s=pointwise, product_issue_s=others)


def _of_layers(profile: Profile, rows: Sequence[Mapping[str, Any]]) -> Profile:
    """Return `profile` with `issue_s` and `ends_issue_s` from `pass` samples, if there are any, and of `MORE` too.

    The samples are forward and backward of models of n layers, all of it issue on a device that runs beside its host: a
    straight line in n, least relative squares. On a host processor the gaps between modules (`launch`/`gaps`) are taken
    off; issue and kernels take turns, and the launch floors of the kernels hold a part of it: what the profile says of
    such a layer and such ends is taken off too.
    """
    gaps = _by(rows, "gaps", "layers")
    passes = {n: t - gaps.get(n, 0.0) for n, t in _by(rows, "pass", "layers").items() if n in gaps or not gaps}
    if len(passes) < FEWEST:
        return profile
    each, ends = _line(passes)
    if profile.dtype == "float32":
        kernels = _kernels_s(profile)
        each, ends = each - kernels[0], ends - kernels[1]
    more = {kind: _by(rows, kind, "layers") for kind in MORE}
    longer: dict[str, Any] = {
        f"{kind}_issue_s": six_digits(max(0.0, _line(held)[0] - each))
        for kind, held in more.items()
        if len(held) >= FEWEST
    }
    layer_s, ends_s = (six_digits(max(0.0, seconds)) for seconds in (each, ends))
    return replace(profile, issue_s=layer_s, ends_issue_s=ends_s, issue_of="", **longer)


def _line(models: Mapping[float, float]) -> tuple[float, float]:
    """Return the seconds of a layer and of what is there without layers, by least relative squares."""
    layers, seconds = np.array(list(models)), np.array(list(models.values()))
    each, ends = np.polyfit(layers, seconds, 1, w=1 / seconds).tolist()
    return each, ends


def _by(rows: Sequence[Mapping[str, Any]], direction: str, name: str) -> dict[float, float]:
    """Return the seconds of fitted samples by a number of their shapes; of several hosts the geometric mean."""
    held: dict[float, list[float]] = {}
    for row in rows:
        if (row["op"], row["direction"], row["use"]) == ("launch", direction, "fit"):
            held.setdefault(float(row["shape"][name]), []).append(float(row["t_s"]))
    return {number: geometric_mean(seconds) for number, seconds in held.items()}


def _kernels_s(profile: Profile) -> tuple[float, float]:
    """Return what the profile's kernels take in such a layer, and in such ends, on a host processor."""
    model, alone = small(1), Cluster.of("cpu", nodes=1, gpus_per_node=1)
    placed = Plan(global_batch=1, cross_entropy="autograd").on(model, alone)
    costs = stage_costs(model, alone, placed, profile, RunLevelSet.bare(RunLevel()))

    def both(prefix: str) -> float:
        return float(np.sum(forward_seconds(costs, prefix) + backward_seconds(costs, prefix)))

    return both(""), both("embedding_") + both("head_")
