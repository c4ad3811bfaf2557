"""ZB-H1: 1F1B with the backward split, at 1F1B's memory (Qi et al. 2024, arXiv 2401.10241, section 2.1)."""

from collections.abc import Callable
from typing import Any

from sim.schedules.base import ClosedKind, Expr, Shape, Times, Work
from sim.schedules.ir import Action, Kind, Schedule


class ZBH1(ClosedKind):
    """Rank-span bubble (p - 1)(F + I - W); every rank keeps p microbatches from F to W.

    Rank r starts with p - r forwards; W follows r microbatches behind I (fewer where the forwards run out before).
    """

    name = "zb-h1"
    variants = ("zero-bubble",)
    steps = 1
    """Forwards more on a rank than on the next one before the first backward."""

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work
        ranks = range(shape.ranks)
        orders = tuple(self._order(r, shape) for r in ranks)
        return Schedule(self.name, shape.microbatches, tuple(ranks), orders, input_frees=shape.input_frees)

    def _order(self, rank: int, shape: Shape) -> tuple[Action, ...]:
        m = shape.microbatches
        warm_up = min(self._forwards(shape.ranks - rank), m)
        delay = min(self.steps * rank, m - warm_up)
        actions = [Action(rank, Kind.F, k) for k in range(warm_up)]
        for k in range(m):
            actions.append(Action(rank, Kind.I, k))
            if k >= delay:
                actions.append(Action(rank, Kind.W, k - delay))
            if warm_up + k < m:
                actions.append(Action(rank, Kind.F, warm_up + k))
        return (*actions, *(Action(rank, Kind.W, k) for k in range(max(0, m - delay), m)))

    def makespan(self, times: Times) -> Expr:
        """The longest of three paths; exact for equal chunks without messages and W no longer than F and I.

        Through the last rank, whose last I waits for all W but those of the microbatches kept; all work of the first
        or the last rank; round trips of the steady state, which long messages can make slower than a rank's work.
        """
        return times.maximum(rank_bound(times), *self._paths(times))

    def period(self, times: Times) -> Expr:
        """The makespan without the ramp of the ranks: each starts its next step as soon as it is done.

        The weights are updated at once and checked afterwards (arXiv 2401.10241, section 4).
        """
        return times.maximum(self.least_period(times), *self._paths(times))

    def least_period(self, times: Times) -> Expr:
        """All work of the rank that has most."""
        t = times
        return t.microbatches * (t.chunk + t.most(t.embedding, t.head))

    def least_step(self, times: Times, first: Expr, last: Expr) -> Expr:
        """Each rank's own update follows its own work."""
        t = times
        ends = ((t.embedding + t.alone * t.head, first), (t.head + t.alone * t.embedding, last))
        return t.maximum(self.least_period(t), *(t.microbatches * (t.chunk + end) + update for end, update in ends))

    def _paths(self, times: Times) -> list[Expr]:
        """Return the lengths of the longest paths, but for the ramp to the last rank and its work."""
        t, p, m = times, times.ranks, times.microbatches
        later = t.maximum(0, m - self._forwards(p))
        last = (m + p - 1) * t.through + m * t.head_through + later * (t.weight + t.head_weight)
        way = last + t.embedding + t.weight + 2 * (p - 1) * t.send
        paths = [way, self._first_rank(t)]
        for n, through, weight in ((t.minimum(2, p), 0, 0), (p, t.embedding_through, t.embedding_weight)):
            trips = (m - 1) * (self._loop(t, n) - t.weight + through) + later * (t.weight + weight)
            paths.append(self._loop(t, p) + t.embedding + trips / self._forwards(n))
        # Two ranks that the slowest link joins, neither of them the last; and that link's messages of one way.
        n, head, several = t.minimum(2, p), t.maximum(0, t.head_through), 1 - t.alone
        trips = (m - 1) * (self._loop(t, n) - t.weight - head + 2 * several * t.slowest) + later * t.weight
        slowest = t.maximum(trips / self._forwards(n), several * (m - 1) * (t.send + t.slowest))
        return [*paths, self._loop(t, p) + t.embedding + slowest]

    def lower_bound(self, times: Times) -> Expr:
        """The longest of: one rank's work; the way through the last rank; rounds over the last k ranks.

        On rank p - k a forward waits for the I, and later the W, `_forwards(k)` microbatches before it.
        """
        t, p, further = times, times.ranks, times.microbatches - 1
        whole = self._loop(t, p) + t.embedding_through + t.embedding_weight
        later = t.maximum(0, t.microbatches - self._forwards(p))
        paths = [rank_bound(t), self._first_rank(t)]
        paths.append(whole + further * (t.through + t.head_through) + later * (t.weight + t.head_weight))
        for n, through, weight in (
            (t.minimum(2, p), t.minimum(0, t.embedding_through) - 2 * t.longer, t.minimum(0, t.embedding_weight)),
            (p, t.embedding_through, t.embedding_weight),
        ):
            every = self._forwards(n)
            rounds = (further - further % every) / every
            # The first rounds of a rank that starts its W late have none.
            weights = t.maximum(0, rounds - (self.steps * (p - n) + every - 1) / every) * (t.weight + weight)
            last = further % every * (t.through + t.head_through)
            paths.append(whole + rounds * (self._loop(t, n) - t.weight + through) + weights + last)
        return t.maximum(*paths)

    def _first_rank(self, t: Times) -> Expr:
        """Return the first rank's work and its wait for the first I, beside the forwards it does before."""
        ahead = self.steps * (t.ranks - 1) * (t.forward + t.embedding_forward)
        wait = (t.ranks - 1) * (t.through + 2 * t.send) + t.head_through - ahead
        return t.maximum(0, wait) + t.microbatches * (t.chunk + t.embedding)

    def _forwards(self, ranks: Expr) -> Expr:
        """Return how many forwards the first of the last `ranks` ranks does before its first I.

        Of all ranks: how many microbatches every rank keeps.
        """
        return self.steps * (ranks - 1) + 1

    @staticmethod
    def _loop(t: Times, ranks: Expr) -> Expr:
        """Return one microbatch's way over the last `ranks` ranks, back and through W, without the embedding."""
        return ranks * t.through + t.head_through + t.weight + 2 * (ranks - 1) * t.send

    def in_flight(self, rank: Expr, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        del rank
        return minimum(self._forwards(shape.ranks), shape.microbatches)

    def of_first_chunk(self, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        return self.in_flight(0, shape, minimum)

    def of_last_chunk(self, shape: Any, minimum: Callable[..., Expr], maximum: Callable[..., Expr]) -> Expr:
        del maximum
        return self.in_flight(0, shape, minimum)


def rank_bound(t: Times) -> Expr:
    """Return the longest time that the first or the last rank needs for all its work, once that can begin.

    A rank alone has both ends, whose extras may be negative (`Times.most`).
    """
    m = t.microbatches
    first = m * (t.chunk + t.embedding + t.alone * t.head)
    to_last = (t.ranks - 1) * (t.forward + t.send) + t.embedding_forward
    return t.maximum(first, to_last + m * (t.chunk + t.head) + t.alone * (m * t.embedding - t.embedding_forward))
