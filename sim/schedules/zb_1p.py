"""ZB-1p: the searched zero-bubble order at 1F1B's memory (arXiv 2401.10241, sections 3.1 and 5)."""

from collections.abc import Callable
from typing import Any

from sim.schedules.base import ClosedKind, Expr, Refusal, Shape, Times, Work
from sim.schedules.greedy import search
from sim.schedules.ir import Schedule
from sim.schedules.zb_h1 import ZBH1, rank_bound


class ZB1P(ClosedKind):
    """Rank-span bubble between ZB-H1's and 0; every rank keeps at most p microbatches, or `memory_limit`.

    The closed forms assume the kind's own limit and PyTorch's memory law; the lower bound holds for any.
    """

    name = "zb-1p"
    variants = ("zero-bubble",)
    searched = True
    by_hand = ZBH1()
    """The kind whose length estimates this one's."""
    passes = 1
    """The kind's own limit, over p."""

    def refusal(self, shape: Shape) -> Refusal:
        if shape.memory_limit and not shape.memory_limit >= 1:  # a NaN is neither
            return "memory_limit", shape.memory_limit, "1 or more microbatches (0: the schedule's own)"
        return super().refusal(shape)

    def build(self, shape: Shape, work: Work) -> Schedule:
        return search(self.name, shape, work, shape.memory_limit or self.passes * shape.ranks)

    def makespan(self, times: Times) -> Expr:
        """An estimate; the search is the judge."""
        return self.by_hand.makespan(times)

    def period(self, times: Times) -> Expr:
        """An estimate too."""
        return self.by_hand.period(times)

    def least_period(self, times: Times) -> Expr:
        """All work of the rank that has most."""
        return self.by_hand.least_period(times)

    def least_step(self, times: Times, first: Expr, last: Expr) -> Expr:
        """Each rank's own update follows its own work."""
        return self.by_hand.least_step(times, first, last)

    def lower_bound(self, times: Times) -> Expr:
        """One rank's work; or the way to the last rank, its F and I, and the way back to the first rank's last W."""
        t = times
        way = (t.ranks - 1) * (t.through + 2 * t.send) + t.embedding_through + t.embedding_weight + t.weight
        return t.maximum(rank_bound(t), way + t.microbatches * (t.through + t.head_through))

    def in_flight(self, rank: Expr, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        """The limit; a short wait filled with W can leave a rank below it."""
        del rank
        return minimum(self.passes * shape.ranks, shape.microbatches)

    def of_first_chunk(self, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        return self.in_flight(0, shape, minimum)

    def of_last_chunk(self, shape: Any, minimum: Callable[..., Expr], maximum: Callable[..., Expr]) -> Expr:
        del maximum
        return self.in_flight(0, shape, minimum)
