"""The schedule that an order from a CSV file is, by name."""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from sim.plans.orders import same_order
from sim.schedules import SCHEDULES, IllegalScheduleError, Kind, Schedule, Shape, build
from sim.specs import InputError


def named(order: Schedule, place: str) -> dict[str, Any]:
    """Return schedule, virtual_stages and microbatch_group_size of the plan whose order this is.

    Raises:
        InputError: none of the schedules that depend on their shape alone; orders that are searched for a model's own
            durations have no name without them.
    """
    for name, shape in _candidates(order):
        try:
            built = build(name, shape)
        except IllegalScheduleError:
            continue
        if same_order(built, order):
            group = {"microbatch_group_size": shape.group} if SCHEDULES[name].grouped else {}
            return {"schedule": name, "virtual_stages": shape.chunks, **group}
    names = ", ".join(name for name, kind in SCHEDULES.items() if _fixed(name) and kind.copies == 1)
    raise InputError(place, "another order", f"the order of one of {names}")


def _fixed(name: str) -> bool:
    kind = SCHEDULES[name]
    return not (kind.searched or kind.asynchronous or kind.copies > 1)


def _candidates(order: Schedule) -> Iterator[tuple[str, Shape]]:
    chunks = order.stages // order.ranks
    for name in SCHEDULES:
        if _fixed(name):
            for group in _groups(order, chunks) if SCHEDULES[name].grouped else (0,):
                yield name, Shape(order.ranks, order.microbatches, chunks, group)


def _groups(order: Schedule, chunks: int) -> tuple[int, ...]:
    """Groups that the order may have: the first turn's length; beyond the microbatches, what the warm-up tells of it.

    The last rank warms up for (chunks - 1) groups (Megatron-LM's interleaving), if there are as many forwards.
    """
    first, last = order.actions[0], order.actions[-1]
    turn = len(list(takewhile(lambda a: a.stage == first[0].stage, first)))
    ahead = len(list(takewhile(lambda a: a.kind is Kind.F, last))) - 1
    return turn, max(1, -(-ahead // max(1, chunks - 1)))
