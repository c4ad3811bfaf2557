"""Looped breadth-first pipeline: every chunk takes all microbatches in turn (Lamy-Poirier 2022, arXiv 2211.05953)."""

from sim.schedules.base import ClosedKind, Expr, Shape, Times, Work
from sim.schedules.gpipe import GPipe
from sim.schedules.ir import Action, Kind, Schedule


class LoopedBFS(GPipe):
    """GPipe on v chunks a rank: 1/v of its bubble; keeps every microbatch of every chunk.

    The backwards take chunks and microbatches in reversed order, as PyTorch's do.
    """

    name = "looped-bfs"
    variants = ("torch",)

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work

        def order(rank: int) -> tuple[Action, ...]:
            own = range(rank, shape.ranks * shape.chunks, shape.ranks)
            forward = [Action(s, Kind.F, k) for s in own for k in range(shape.microbatches)]
            return (*forward, *(Action(s, Kind.B, k) for s, _, k in reversed(forward)))

        return Schedule(self.name, shape.microbatches, self.rank_of(shape), tuple(map(order, range(shape.ranks))))

    def makespan(self, times: Times) -> Expr:
        """Each phase: the busiest rank's work, a ramp of p - 1 chunks, and its waits for a round trip where m < p."""
        t = times
        total = 0
        for plain, first, last in (
            (t.forward, t.embedding_forward, t.head_forward),
            (t.backward, t.embedding_backward, t.head_backward),
        ):
            hop = plain + t.send
            wait = t.maximum(0, t.ranks * hop - t.microbatches * plain)
            busiest = t.microbatches * (t.chunks * plain + t.maximum(first, last))
            total = total + busiest + (t.ranks - 1) * hop + t.minimum(first, last) + (t.chunks - 1) * wait
        return total

    def lower_bound(self, times: Times) -> Expr:
        """Its paths, as those of any order: waits of one phase are no bound where messages of the other are shorter."""
        return ClosedKind.lower_bound(self, times)
