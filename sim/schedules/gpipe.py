"""GPipe: all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""

from collections.abc import Callable
from typing import Any

from sim.schedules.base import ClosedKind, Expr, Shape, Times, Work
from sim.schedules.ir import Action, Kind, Schedule


class GPipe(ClosedKind):
    """Bubble (p - 1)(F + B); keeps every microbatch."""

    name = "gpipe"
    variants = ("torch",)

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work

        def order(rank: int) -> tuple[Action, ...]:
            every = range(shape.microbatches)
            return (*(Action(rank, Kind.F, k) for k in every), *(Action(rank, Kind.B, k) for k in every))

        ranks = range(shape.ranks)
        return Schedule(self.name, shape.microbatches, tuple(ranks), tuple(order(r) for r in ranks))

    def makespan(self, times: Times) -> Expr:
        t, top, slowest = times, times.maximum, times.send + times.slowest
        once = 2 * (t.ranks - 1) * t.send
        for plain, first, last in (
            (t.forward, t.embedding_forward, t.head_forward),
            (t.backward, t.embedding_backward, t.head_backward),
        ):
            fill = t.ranks * plain + first + last
            once = once + fill + (t.microbatches - 1) * top(plain + t.most(first, last), fill / t.ranks, slowest)
        return once

    def in_row(self, times: Times) -> Expr:
        return times.microbatches * times.chunks - 1

    def lower_bound(self, times: Times) -> Expr:
        """The closed form is exact."""
        return self.makespan(times)

    def in_flight(self, rank: Expr, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        del rank, minimum
        return shape.microbatches * shape.chunks

    def of_first_chunk(self, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        del minimum
        return shape.microbatches

    def of_last_chunk(self, shape: Any, minimum: Callable[..., Expr], maximum: Callable[..., Expr]) -> Expr:
        del minimum, maximum
        return shape.microbatches
