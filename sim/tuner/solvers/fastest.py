"""The fastest step of a kind of plan on a cluster, with flush and without: what 2BW is compared with."""

from collections.abc import Iterator
from typing import Any

from sim.engine.step import Step, simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.plan import Recompute

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
RECOMPUTES: tuple[Recompute, ...] = ("none", "full")


def fastest(model: Model, cluster: Cluster, batch: int, **settings: Any) -> Step | None:
    """Return the fastest step that fits over microbatches and recomputation; None where nothing fits.

    2BW takes at least as many microbatches as stages for an update.
    """
    steps = _steps(model, cluster, batch, settings)
    return min((s for s in steps if s.device_memory_bytes <= cluster.memory_bytes), key=_seconds, default=None)


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
