"""Pipeline schedules as pure functions of their shape."""

from functools import lru_cache

from sim.schedules.base import ScheduleKind, Shape, Times, Work
from sim.schedules.gpipe import GPipe
from sim.schedules.interleaved import Interleaved
from sim.schedules.ir import Action, Kind, Schedule
from sim.schedules.one_f_one_b import OneFOneB
from sim.schedules.pipedream import PipeDream
from sim.schedules.two_bw import TwoBW
from sim.schedules.versions import Use, most_versions, versions
from sim.schedules.zb_1p import ZB1P
from sim.schedules.zb_2p import ZB2P
from sim.schedules.zb_h1 import ZBH1
from sim.schedules.zb_h2 import ZBH2

SCHEDULES: dict[str, ScheduleKind] = {
    kind.name: kind
    for kind in (GPipe(), OneFOneB(), Interleaved(), ZBH1(), ZBH2(), ZB1P(), ZB2P(), PipeDream(), TwoBW())
}
"""Every kind by name; a plan without pipeline (`none`) runs as 1F1B on one rank."""


class IllegalScheduleError(ValueError):
    """A shape that a schedule cannot have: the field, its value, what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field}: got {value}; allowed: {allowed}")


def build(name: str, shape: Shape, work: Work | None = None) -> Schedule:
    """Return the schedule `name` of a shape, cached by value.

    work: the durations that a searched order is made for (default: all 1, messages 0); other kinds ignore it.

    Raises:
        IllegalScheduleError: no such schedule, or the shape is illegal for it.
    """
    if name not in SCHEDULES:
        raise IllegalScheduleError("schedule", name, "one of " + ", ".join(SCHEDULES))
    equal = Work.uniform(shape.ranks * shape.chunks)
    return _build(name, shape, (work or equal) if SCHEDULES[name].searched else equal)


@lru_cache(maxsize=16)
def _build(name: str, shape: Shape, work: Work) -> Schedule:
    kind = SCHEDULES[name]
    refusal = kind.refusal(shape)
    if not refusal and shape.memory_limit and not kind.searched:
        searched = ", ".join(other.name for other in SCHEDULES.values() if other.searched)
        refusal = "memory_limit", shape.memory_limit, f"only with {searched}"
    if not refusal and not 0 <= shape.input_frees <= 1:
        refusal = "input_frees", shape.input_frees, "a share, 0 to 1"
    if not refusal and name != "pipedream" and (shape.replicas or shape.vertical_sync):
        given = ("replicas", shape.replicas) if shape.replicas else ("vertical_sync", True)
        refusal = *given, "only with pipedream"
    if refusal:
        raise IllegalScheduleError(*refusal)
    return kind.build(shape, work)


__all__ = [
    "SCHEDULES",
    "Action",
    "IllegalScheduleError",
    "Kind",
    "Schedule",
    "ScheduleKind",
    "Shape",
    "Times",
    "Use",
    "Work",
    "build",
    "most_versions",
    "versions",
]
