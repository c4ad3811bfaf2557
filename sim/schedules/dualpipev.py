"""DualPipeV: DualPipe cut in half, on a V-shaped placement (DeepSeek-AI DualPipe, `dualpipev.py`; arXiv 2412.19437).

PyTorch's `ScheduleDualPipeV` is the same order.
"""

from collections import deque

from sim.schedules.base import Expr, Refusal, ScheduleKind, Shape, Work
from sim.schedules.ir import Action, Schedule
from sim.schedules.zbv import Line


class DualPipeV(ScheduleKind):
    """Rank r holds stages r and 2 p - 1 - r; in the steady state a forward runs as one with a backward.

    Bubble at most (p - 1)(F&B + B - 3 W); every rank keeps at most 2 p + 1 chunks.
    """

    name = "dualpipev"
    variants = ("torch", "deepseek")
    joins = True

    def refusal(self, shape: Shape) -> Refusal:
        if shape.microbatches < 2 * shape.ranks:
            return "microbatches", shape.microbatches, f"at least 2 x ranks = {2 * shape.ranks} with {self.name}"
        return super().refusal(shape)

    def most_pairs(self, ranks: Expr, microbatches: Expr) -> Expr:
        return 2 * (microbatches - ranks) - 1

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work
        p, m = shape.ranks, shape.microbatches
        halves = [half_order(r, p, m, (r, 2 * p - 1 - r)) for r in range(p)]
        actions, fused = zip(*halves, strict=True)
        return Schedule(self.name, m, self.rank_of(shape), actions, input_frees=shape.input_frees, fused=fused)


Half = tuple[tuple[Action, ...], tuple[int, ...]]
"""A rank's actions and the positions of those fused with the next."""


def half_order(rank: int, ranks: int, microbatches: int, stages: tuple[int, int]) -> Half:
    """Return the order of a rank between the open end (0) and the fold (`ranks` - 1).

    stages: the two on this rank, the one nearer to its microbatches' start first. The eight steps are those of
    DeepSeek's code.
    """
    line = _Pairs(*stages)
    before, after = rank + 1, ranks - 1 - rank
    line.add("F" * (2 * after), 0)
    for _ in range(before):
        line.add("F", 0)
        line.add("F", 1)
    for _ in range(after):
        line.back("I", 1)
        line.late_weight()
        line.add("F", 1)
    for turn in range(microbatches - 2 * ranks + before):
        if turn == 0 and after == 0:  # at the fold the first pair stays apart: a shorter bubble
            line.add("F", 0)
            line.add("B", 1)
        else:
            line.pair(0, 1)
        line.pair(1, 0)
    for _ in range(after):
        line.add("B", 1)
        line.pair(1, 0)
    for turn in range(2 * before):
        line.back("B" if turn < before else "I", 1 - turn % 2)
    for _ in range(after):
        line.late_weight()
        line.back("I", 0)
    for _ in range(before):
        line.late_weight()
    return tuple(line.actions), tuple(line.fused)


class _Pairs(Line):
    """A rank's order with fused pairs and with W that are put off."""

    def __init__(self, *stages: int) -> None:
        super().__init__(*stages)
        self.fused, self.late = list[int](), deque[int]()

    def back(self, kind: str, chunk: int) -> None:
        """Write a B, or an I whose W is put off."""
        self.add(kind, chunk)
        if kind == "I":
            self.late.append(chunk)

    def late_weight(self) -> None:
        """Write the W that waits longest, if one does."""
        if self.late:
            self.add("W", self.late.popleft())

    def pair(self, forward: int, backward: int) -> None:
        """Write a forward and a backward of the other chunk that run as one."""
        self.fused.append(len(self.actions))
        self.add("F", forward)
        self.add("B", backward)
