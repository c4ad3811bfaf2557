"""Pipeline schedules as pure functions of their shape."""

from functools import lru_cache

from sim.schedules.base import ScheduleKind, Shape, Times
from sim.schedules.gpipe import GPipe
from sim.schedules.interleaved import Interleaved
from sim.schedules.ir import Action, Kind, Schedule
from sim.schedules.one_f_one_b import OneFOneB

SCHEDULES: dict[str, ScheduleKind] = {kind.name: kind for kind in (GPipe(), OneFOneB(), Interleaved())}
"""Every kind by name; a plan without pipeline (`none`) runs as 1F1B on one rank."""


class IllegalScheduleError(ValueError):
    """A shape that a schedule cannot have: the field, its value, what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field}: got {value}; allowed: {allowed}")


@lru_cache(maxsize=16)
def build(name: str, shape: Shape) -> Schedule:
    """Return the schedule `name` of a shape.

    Raises:
        IllegalScheduleError: no such schedule, or the shape is illegal for it.
    """
    if name not in SCHEDULES:
        raise IllegalScheduleError("schedule", name, "one of " + ", ".join(SCHEDULES))
    refusal = SCHEDULES[name].refusal(shape)
    if refusal:
        raise IllegalScheduleError(*refusal)
    return SCHEDULES[name].build(shape)


__all__ = [
    "SCHEDULES",
    "Action",
    "IllegalScheduleError",
    "Kind",
    "Schedule",
    "ScheduleKind",
    "Shape",
    "Times",
    "build",
]
