"""Pipeline schedules as pure functions of their shape."""

from dataclasses import replace
from functools import lru_cache

from sim.schedules.base import ClosedKind, ScheduleKind, Shape, Times, Work
from sim.schedules.chimera import Chimera
from sim.schedules.dualpipe import DualPipe
from sim.schedules.dualpipev import DualPipeV
from sim.schedules.gpipe import GPipe
from sim.schedules.interleaved import Interleaved
from sim.schedules.interleaved_zb import InterleavedZB
from sim.schedules.ir import Action, Kind, Schedule
from sim.schedules.looped_bfs import LoopedBFS
from sim.schedules.one_f_one_b import OneFOneB
from sim.schedules.pipedream import PipeDream
from sim.schedules.two_bw import TwoBW
from sim.schedules.v_half import VHalf
from sim.schedules.v_min import VMin
from sim.schedules.versions import Use, most_staleness, most_versions, versions
from sim.schedules.zb_1p import ZB1P
from sim.schedules.zb_2p import ZB2P
from sim.schedules.zb_h1 import ZBH1
from sim.schedules.zb_h2 import ZBH2
from sim.schedules.zbv import ZBV

KINDS: tuple[ScheduleKind, ...] = (
    GPipe(), OneFOneB(), Interleaved(), LoopedBFS(), ZBH1(), ZBH2(), ZB1P(), ZB2P(), InterleavedZB(), ZBV(), VHalf(),
    VMin(), DualPipe(), DualPipeV(), Chimera(), PipeDream(), TwoBW(),
)  # fmt: skip
SCHEDULES: dict[str, ScheduleKind] = {kind.name: kind for kind in KINDS}
"""Every kind by name; a plan without pipeline (`none`) runs as 1F1B on one rank."""

CLOSED: dict[str, ClosedKind] = {kind.name: kind for kind in KINDS if isinstance(kind, ClosedKind)}
"""The kinds with closed forms."""


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
    kind = SCHEDULES[name]
    refusal = _refusal(kind, shape)
    if refusal:
        raise IllegalScheduleError(*refusal)
    shape = replace(shape, variant=shape.variant or next(iter(kind.variants), ""))
    equal = Work.uniform(shape.ranks * shape.chunks)
    return _build(name, shape, (work or equal) if kind.searched else equal)


def _refusal(kind: ScheduleKind, shape: Shape) -> tuple[str, object, str] | None:
    """Return what no kind allows, or what this one does not."""
    named = {"chunks": "virtual_stages", "group": "microbatch_group_size"}
    for field in ("ranks", "microbatches", "chunks", "group"):
        if getattr(shape, field) < 1:
            return named.get(field, field), getattr(shape, field), "1 or more"
    if shape.variant and shape.variant not in kind.variants:
        return "variant", shape.variant, f"{' or '.join(kind.variants) or 'none'} with {kind.name}"
    refusal = kind.refusal(shape)
    if not refusal and shape.memory_limit and not kind.searched:
        searched = ", ".join(other.name for other in SCHEDULES.values() if other.searched)
        refusal = "memory_limit", shape.memory_limit, f"only with {searched}"
    if not refusal and not 0 <= shape.input_frees <= 1:
        refusal = "input_frees", shape.input_frees, "a share, 0 to 1"
    if not refusal and shape.input_frees and not kind.splits:
        splitting = ", ".join(other.name for other in SCHEDULES.values() if other.splits)
        refusal = "input_frees", shape.input_frees, f"only with {splitting}"
    if not refusal and not kind.replicated and (shape.replicas or shape.vertical_sync):
        given = ("replicas", shape.replicas) if shape.replicas else ("vertical_sync", True)
        refusal = *given, "only with " + ", ".join(other.name for other in KINDS if other.replicated)
    return refusal


@lru_cache(maxsize=16)
def _build(name: str, shape: Shape, work: Work) -> Schedule:
    return SCHEDULES[name].build(shape, work)


__all__ = [
    "CLOSED",
    "SCHEDULES",
    "Action",
    "ClosedKind",
    "IllegalScheduleError",
    "Kind",
    "Schedule",
    "ScheduleKind",
    "Shape",
    "Times",
    "Use",
    "Work",
    "build",
    "most_staleness",
    "most_versions",
    "versions",
]
