"""Why no plan is left, and the smallest change of each kind that would make one fit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sim.costs.profile import load_profile
from sim.engine.step import device_memory, memory_sigma, simulate
from sim.specs import InputError, Offload, Plan
from sim.specs.job import Target
from sim.specs.rules import divisors, takes_tempo
from sim.tuner.rows import scored
from sim.tuner.score import Scores
from sim.tuner.space import Space, build_space
from sim.units import gigabytes, grouped, many

MAX_TRIED = 24
"""Sizes of the cluster, and of the batch, that are tried for a way out."""


def no_plan(space: Space) -> InputError:
    """Return the error of a space without a legal plan: what excludes how many, and what would leave one."""
    return InputError("tune.knobs", dict(space.knobs), f"values with a legal plan; {_left_out(space)}{_ways(space)}")


def nothing_fits(space: Space, scores: Scores, hosts: bool = False) -> InputError:
    """Return the error of a space where no plan fits: the smallest one, what excludes how many, what would help.

    hosts: whether target any may have states on hosts; it tries optimizer and activations there by itself.
    """
    peak = np.where(space.allowed, scores.peak_memory_bytes, np.inf)
    at = np.unravel_index(int(peak.argmin()), peak.shape)
    plan = space.plan(*(int(i) for i in at))
    missing, most = max(_lacking(space, float(peak[at])))
    smallest = f"{gigabytes(peak[at])} allocated, up to {gigabytes(most)} of a device with reserve and context,"
    on_hosts = _hosts(space, plan) if hosts else ""
    allowed = (
        f"a model that fits: the smallest plan still needs {smallest} with tp {plan.tp}, pp {plan.pp}, "
        f"zero {plan.zero}, recompute {plan.recompute}{_ways(space, missing, on_hosts)}; {_left_out(space)}"
    )
    return InputError("cluster.memory_bytes", gigabytes(space.cluster.memory_bytes), allowed)


def _left_out(space: Space) -> str:
    """Return how many configurations each constraint excludes, the most first."""
    reasons = {**space.excluded, "does not fit the memory": int(space.allowed.sum())}
    counts = [f"{reason}: {grouped(n)}" for reason, n in sorted(reasons.items(), key=lambda item: -item[1]) if n]
    return f"of {many(space.asked, 'configuration')} are excluded: {', '.join(counts)}"


def _lacking(space: Space, peak_bytes: float) -> Iterator[tuple[float, float]]:
    """Yield the bytes that every kind of device lacks for the plan of this peak, and those that it takes, both by the
    upper end of its interval."""
    for member in space.cluster.members:
        profile = load_profile(member.profile)
        _, worst = profile.interval80(1.0, memory_sigma(profile))
        most = device_memory(peak_bytes, profile) * worst
        yield most - member.memory_bytes, most


def _ways(space: Space, missing_bytes: float = 0.0, on_hosts: str = "") -> str:
    ways = [f"{gigabytes(missing_bytes)} more memory a device"] if missing_bytes > 0 else []
    ways += [text for text in (_target(space) or on_hosts, _nodes(space), _batch(space)) if text]
    ways += _knobs(space)
    none = "no single change of target, nodes, batch or knobs makes one fit"
    return f"; a plan fits with {', or '.join(ways)}" if ways else f"; {none}"


def _target(space: Space) -> str:
    return "tune.target any" if space.target != "any" and _fits(space, target="any") else ""


def _hosts(space: Space, plan: Plan) -> str:
    """Return what puts so much of a plan's state on hosts that it fits: target any, or a knob of that."""
    if plan.virtual_stages > 1:  # of more chunks than one no search offloads
        return ""
    gradients, words = (1.0, "tune.knobs.offload_gradients 1") if space.target == "any" else (0.0, "tune.target any")
    there = Offload(optimizer=1.0, activations=1.0, gradients=gradients)
    try:
        return words if simulate(space.model, space.cluster, replace(plan, offload=there)).fits == "yes" else ""
    except InputError:  # a device without a host link, or a plan that leaves nothing there
        return ""


def _nodes(space: Space) -> str:
    """Return the next larger number of nodes on which a plan fits."""
    if space.cluster.groups:
        return ""
    nodes = space.cluster.nodes
    more = [*range(1, MAX_TRIED // 2 + 1), *(nodes * k for k in (1, 2, 3, 5, 7, 11, 15, 23, 31, 63, 127, 255))]
    for extra in sorted(set(more)):
        if _fits(space, cluster=replace(space.cluster, nodes=nodes + extra)):
            return f"{extra} more node{'s' if extra > 1 else ''}"
    return ""


def _batch(space: Space) -> str:
    """Return the nearest divisor or multiple of the global batch with which a plan fits."""
    batch = space.global_batch
    smaller, larger = divisors(batch)[:-1][::-1], [batch * k for k in range(2, MAX_TRIED // 2)]
    return next(
        (f"global_batch {other}" for other in [*smaller[: MAX_TRIED // 2], *larger] if _fits(space, batch=other)), ""
    )


def _knobs(space: Space) -> Iterator[str]:
    """Yield the knobs of which one value more than the given ones would do, Tempo's layers among them."""
    for name in space.knobs:
        others = {k: v for k, v in space.knobs.items() if k != name}
        free = _solved(space, knobs=others)
        if free:
            held, at = free
            value = getattr(held.plan(*at), name)
            yield f"tune.knobs.{name} {str(value).lower()}"
    if takes_tempo(space.model) and _fits(space, knobs={**space.knobs, "tempo": [True]}):
        yield "tune.knobs.tempo true"


def _fits(space: Space, **changes: Any) -> bool:
    return _solved(space, **changes) is not None


def _solved(
    space: Space,
    cluster: Any = None,
    batch: int | None = None,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    target: Target | None = None,
) -> tuple[Space, tuple[int, int, int, int]] | None:
    """Return the space after a change and its smallest plan that fits, or None."""
    other = build_space(
        space.model,
        cluster or space.cluster,
        batch or space.global_batch,
        space.knobs if knobs is None else knobs,
        space.kept,
        target or space.target,
    )
    if not other.allowed.any():
        return None
    scores = scored(other)
    fitting = np.where(other.allowed & scores.fits, scores.peak_memory_bytes, np.inf)
    if not np.isfinite(fitting.min()):
        return None
    row, again, zero, sp = (int(i) for i in np.unravel_index(int(fitting.argmin()), fitting.shape))
    return other, (row, again, zero, sp)
