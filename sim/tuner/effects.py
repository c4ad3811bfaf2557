"""What a step takes, holds or costs if one thing of its hardware or of its bytes were better or worse."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from sim.engine.memory import MemoryTimeline
from sim.engine.step import Step
from sim.specs.arguments import checked
from sim.tuner.elasticity import CHANGE, Elasticity, elasticities
from sim.tuner.objectives import Setting

Target = Literal["step_time", "memory", "cost"]
"""What changes: the step time, the share of its device's memory that the fullest rank needs, USD per 1e9 tokens."""

MEMORY_SIZE, PRICE = "memory_size", "price"

_timed = lru_cache(maxsize=2)(elasticities)
"""Of the plan that is shown and of the one that it is compared with: what takes longest when they are drawn again."""


@dataclass(frozen=True)
class Effect:
    """What one parameter, better and worse by a share, does to a target.

    elasticity: d log(target) / d log(parameter); better, worse: relative changes of the target; fits: whether the plan
    then fits, in the same order.
    """

    name: str
    title: str
    elasticity: float
    better: float
    worse: float
    fits: tuple[str, str]


@checked
def effects(
    step: Step, change: float = CHANGE, target: Target = "step_time", known: Sequence[Elasticity] | None = None
) -> tuple[Effect, ...]:
    """Return what each parameter does to a target, the largest first: those of `elasticities`, price and memory size;
    for memory the kinds of bytes, as if each took less or more of them throughout the step.

    change: by how much each is better and worse; 0.1: a rate times and over 1.1. Memory size is left out of clusters of
    several devices, whose sizes differ. known: the step's elasticities, with the same `change`, where they have been
    computed.

    Raises:
        InputError: a change that is none, or a cost without a price.
    """
    if target == "memory":
        found = _held(step, change)
    else:
        timed, now = known or _timed(step, change), step.step_time_s
        found = [
            Effect(e.name, e.title, e.elasticity, e.better_s / now - 1, e.worse_s / now - 1, (step.fits, step.fits))
            for e in timed
        ]
    if target == "cost" and Setting(step.model, step.cluster, step.plan.global_batch).usd_per_s:  # refuses no price
        found.append(Effect(PRICE, "price", 1.0, 1 / (1 + change) - 1, change, (step.fits, step.fits)))
    return tuple(sorted(found + _sized(step, change, target), key=lambda e: -abs(e.elasticity)))


def _held(step: Step, change: float) -> list[Effect]:
    """Return what each kind of bytes does to the memory that the fullest rank's device must have."""
    by, now = step.profile.memory.reserved_over_allocated, step.device_memory_bytes
    found = []
    for kind, held in step.fullest.composition().items():
        if held:
            every = [[_scaled(m, kind, f) for m in step.memory] for f in (1 / (1 + change), 1 + change)]
            ways = [replace(step, memory=tuple(ranks)) for ranks in every]
            found.append(_effect(step, kind, f"bytes of {kind}", by * held / now, ways))
    return found


def _scaled(held: MemoryTimeline, kind: str, factor: float) -> MemoryTimeline:
    if kind == "activations":
        return replace(held, activations=held.activations * factor)
    if kind == "temporaries":
        return replace(held, temporaries=held.temporaries * factor)
    return replace(held, fixed={**held.fixed, kind: held.fixed.get(kind, 0.0) * factor})


def _sized(step: Step, change: float, target: Target) -> list[Effect]:
    """Return what the size of the device's memory does: to time and price nothing, but the plan may then fit or not."""
    if step.cluster.groups:
        return []
    sizes = [step.cluster.memory_bytes * f for f in (1 + change, 1 / (1 + change))]
    ways = [replace(step, cluster=replace(step.cluster, memory_bytes=size)) for size in sizes]
    found = _effect(step, MEMORY_SIZE, "memory size", -1.0, ways)
    return [found if target == "memory" else replace(found, elasticity=0.0, better=0.0, worse=0.0)]


def _effect(step: Step, name: str, title: str, elasticity: float, ways: Sequence[Step]) -> Effect:
    shares = [s.device_memory_bytes / s.cluster.memory_bytes for s in (step, *ways)]
    better, worse = (share / shares[0] - 1 for share in shares[1:])
    return Effect(name, title, elasticity, better, worse, (ways[0].fits, ways[1].fits))
