"""ZBV: zero bubble on a V-shaped placement, at 1F1B's memory (Qi et al. 2024, arXiv 2405.15362, section 3)."""

from sim.schedules.base import Refusal, ScheduleKind, Shape, Work
from sim.schedules.ir import Action, Kind, Schedule
from sim.schedules.zbv_search import limit_refusal, search_zbv


class ZBV(ScheduleKind):
    """Rank r holds stages r and 2 p - 1 - r; no rank idles within its own span at equal times.

    Every rank keeps 2 p chunks. PyTorch's order ("torch") is that of 2 p - 1 or more microbatches, less those
    that are not there: with fewer its ranks wait. The authors' ("zero-bubble") is searched for given durations and a
    memory limit.
    """

    name = "zbv"
    searched = True
    variants = ("torch", "zero-bubble")

    def refusal(self, shape: Shape) -> Refusal:
        if refusal := super().refusal(shape):
            return refusal
        if shape.memory_limit and shape.variant != "zero-bubble":
            return "memory_limit", shape.memory_limit, "only with variant zero-bubble"
        return limit_refusal(shape)

    def build(self, shape: Shape, work: Work) -> Schedule:
        if shape.variant == "zero-bubble":
            orders = search_zbv(shape, work, shape.memory_limit or 2 * shape.ranks)
        else:
            orders = tuple(_torch_order(r, shape) for r in range(shape.ranks))
        return Schedule(self.name, shape.microbatches, self.rank_of(shape), orders, input_frees=shape.input_frees)


def _torch_order(rank: int, shape: Shape) -> tuple[Action, ...]:
    """Return a rank's order: that for 2 p - 1 or more microbatches, less those that are not there."""
    ranks, microbatches = shape.ranks, max(shape.microbatches, 2 * shape.ranks - 1)
    line = Line(rank, 2 * ranks - 1 - rank)
    after = ranks - rank
    line.add("F" * (2 * after - 1), 0)
    for _ in range(rank):
        line.add("F", 1)
        line.add("F", 0)
    for _ in range(after):
        line.add("FIW", 1)
    while line.done(Kind.F, 0) < microbatches:
        line.add("FIW", 0)
        line.add("FIW", 1)
    while line.done(Kind.F, 1) < microbatches:
        line.add("IW", 0)
        line.add("FIW", 1)
    for _ in range(rank):
        line.add("I", 0)
        line.add("I", 1)
    for _ in range(after):
        line.add("IW", 0)
    line.add("W" * (microbatches - line.done(Kind.W, 1)), 1)
    line.add("W" * (microbatches - line.done(Kind.W, 0)), 0)
    return tuple(a for a in line.actions if a.microbatch < shape.microbatches)


class Line:
    """The order of a rank that holds two stages, written action by action; each kind takes microbatches in turn."""

    def __init__(self, *stages: int) -> None:
        self.stages, self.actions = stages, list[Action]()
        self.counts = {(kind, chunk): 0 for kind in (Kind.F, Kind.I, Kind.W) for chunk in range(len(stages))}

    def done(self, kind: Kind, chunk: int) -> int:
        """Return how many of a kind stand on a chunk."""
        return self.counts[kind, chunk]

    def add(self, kinds: str, chunk: int) -> None:
        """Write actions of a chunk: "FIW" is a forward, an I and a W, each of the next microbatch of its kind.

        B is an I and a W at once.
        """
        for kind in map(Kind.__getitem__, kinds):
            parts = (Kind.I, Kind.W) if kind is Kind.B else (kind,)
            self.actions.append(Action(self.stages[chunk], kind, self.counts[parts[0], chunk]))
            for part in parts:
                self.counts[part, chunk] += 1
