"""Orders that never flush, with the updates that they hold."""

from sim.schedules import SCHEDULES, Schedule, Shape, build
from sim.specs import Plan

DELAYED_STEPS = 4
"""Global batches of an order without flush whose passes are compared."""


def microbatch_order(plan: Plan, microbatches: int) -> Schedule:
    """Return the order of a plan without flush, with its own updates, for so many microbatches."""
    group = SCHEDULES[plan.schedule].group(plan.pp, plan.global_batch // plan.micro_batch)
    return build(plan.schedule, Shape(plan.pp, microbatches, group=group))
