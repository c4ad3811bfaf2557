"""Orders that never flush, with the updates that they hold."""

from sim.schedules import Schedule, Shape, build
from sim.specs import Plan

GROUP = "2bw"
"""The order that updates once for all microbatches of a global batch; PipeDream updates after each."""
DELAYED_STEPS = 4
"""Global batches of an order without flush whose passes are compared."""


def microbatch_order(plan: Plan, microbatches: int) -> Schedule:
    """Return the order of a plan without flush, with its own updates, for so many microbatches."""
    group = plan.global_batch // plan.micro_batch if plan.schedule == GROUP else 0
    return build(plan.schedule, Shape(plan.pp, microbatches, group=group))
