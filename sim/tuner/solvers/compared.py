"""The fastest step of a kind of plan on a cluster, with flush and without: what 2BW is compared with."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from sim.engine.step import Step, simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.plan import Recompute
from sim.tuner.solvers.rates import two_bw_memory_bytes, two_bw_seconds

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
RECOMPUTES: tuple[Recompute, ...] = ("none", "full")


class TwoBWStep(NamedTuple):
    """Seconds per batch without flush, and the step with flush whose passes it has."""

    seconds: float
    step: Step


def fastest(model: Model, cluster: Cluster, batch: int, **settings: Any) -> Step | None:
    """Return the fastest step that fits over microbatches and recomputation; None where nothing fits."""
    steps = _steps(model, cluster, batch, settings)
    return min((s for s in steps if s.device_memory_bytes <= cluster.memory_bytes), key=_seconds, default=None)


def fastest_two_bw(model: Model, cluster: Cluster, batch: int, depth: int, **settings: Any) -> TwoBWStep | None:
    """Return the fastest 2BW pipeline of `depth` that fits with two versions of the weights, or None.

    It takes at least as many microbatches as stages for an update; what is left of the devices are replicas.
    """
    steps = _steps(model, cluster, batch, settings | {"pp": depth, "schedule": "1f1b"})
    fit = (
        TwoBWStep(two_bw_seconds(s), s)
        for s in steps
        if s.timeline.schedule.microbatches >= depth and two_bw_memory_bytes(s) <= cluster.memory_bytes
    )
    return min(fit, key=lambda found: found.seconds, default=None)


def _steps(model: Model, cluster: Cluster, batch: int, settings: dict[str, Any]) -> Iterator[Step]:
    for micro_batch in MICRO_BATCHES:
        for recompute in RECOMPUTES:
            try:
                plan = Plan(global_batch=batch, micro_batch=micro_batch, recompute=recompute, **settings)
                yield simulate(model, cluster, plan)
            except InputError:
                continue  # this microbatch does not divide the batch, or this mesh breaks a rule


def _seconds(step: Step) -> float:
    return step.step_time_s
