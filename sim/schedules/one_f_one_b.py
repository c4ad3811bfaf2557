"""1F1B, also PipeDream-Flush: a backward as soon as its forward is done (arXiv 1806.03377, 2006.09503)."""

from collections.abc import Callable
from typing import Any

from sim.schedules.base import ClosedKind, Expr, Shape, Times, Work
from sim.schedules.ir import Action, Kind, Schedule


class OneFOneB(ClosedKind):
    """Bubble (p - 1)(F + B) as GPipe, but at most p - r microbatches alive on rank r."""

    name = "1f1b"
    variants = ("zero-bubble", "torch", "megatron")

    def refusal(self, shape: Shape) -> tuple[str, object, str] | None:
        if shape.variant == "torch" and shape.microbatches < shape.ranks:
            return "microbatches", shape.microbatches, f"at least the ranks, {shape.ranks}, with variant torch"
        return super().refusal(shape)

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work
        ranks = range(shape.ranks)
        return Schedule(self.name, shape.microbatches, tuple(ranks), tuple(self._order(r, shape) for r in ranks))

    def _order(self, rank: int, shape: Shape) -> tuple[Action, ...]:
        m = shape.microbatches
        warm_up = min(shape.ranks - 1 - rank, m)
        actions = [Action(rank, Kind.F, k) for k in range(warm_up)]
        for k in range(m - warm_up):
            actions += [Action(rank, Kind.F, warm_up + k), Action(rank, Kind.B, k)]
        return (*actions, *(Action(rank, Kind.B, k) for k in range(m - warm_up, m)))

    def makespan(self, times: Times) -> Expr:
        """Fill and drain, then one period per further microbatch.

        The period is the slowest of the cycles in the order's dependence graph: a rank by itself, or a
        round trip that p - r microbatches share on the ranks r .. p - 1 (here r = 0 and r = p - 2), or that two
        microbatches share on the two ranks that the slowest link joins.
        """
        t = times
        pair = t.chunk + t.alone * (t.embedding + t.head) + (1 - t.alone) * (t.head / 2 + t.send)
        whole = self._loop(t, t.ranks) + t.embedding
        joined = (1 - t.alone) * (t.chunk + t.minimum(0, t.head / 2) + t.send + t.slowest)
        period = t.maximum(t.chunk + t.most(t.embedding, t.head), whole / t.ranks, pair, joined)
        return whole + (t.microbatches - 1) * period

    def lower_bound(self, times: Times) -> Expr:
        """Paths that go round the last k ranks as often as k microbatches fit, then through the last rank.

        A forward on rank p - k waits for the backward k microbatches before it, so each round costs a whole loop.
        """
        t, further = times, times.microbatches - 1
        whole = self._loop(t, t.ranks) + t.embedding
        paths = [super().lower_bound(t)]
        # A loop over the last two ranks may be one over all of them, with an embedding that may cost less than nothing.
        loops = (t.minimum(2, t.ranks), t.minimum(0, t.embedding) - 2 * t.longer), (t.ranks, t.embedding)
        for ranks, extra in loops:
            rounds = (further - further % ranks) / ranks
            paths.append(whole + rounds * (self._loop(t, ranks) + extra) + further % ranks * (t.chunk + t.head))
        return t.maximum(*paths)

    @staticmethod
    def _loop(t: Times, ranks: Expr) -> Expr:
        """Return one microbatch's way over the last `ranks` ranks and back, without the embedding."""
        return ranks * t.chunk + t.head + 2 * (ranks - 1) * t.send

    def in_flight(self, rank: Expr, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        return minimum(shape.ranks - rank, shape.microbatches)

    def of_first_chunk(self, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        return minimum(shape.ranks, shape.microbatches)
