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
        """Each phase: the longest way from its first pass to its last, exact for messages of one length.

        From each chunk it goes to the next where a rank, or the slowest link where messages take longer than passes,
        has done all m microbatches, or round all ranks with one of them, which is longer where m < p. At the first
        chunk's rank it stays for what that does more, at the last one's too, unless it goes round everywhere: then as
        many microbatches are left for one of both.
        """
        t = times
        total, more = 0, t.minimum(1, t.chunks - 1)
        for plain, first, last in (
            (t.forward, t.embedding_forward, t.head_forward),
            (t.backward, t.embedding_backward, t.head_backward),
        ):
            hop, further = plain + t.send, t.microbatches - 1
            link = t.maximum(plain, t.send + t.slowest)
            turn, loop = t.microbatches * link, t.ranks * hop
            ends = t.maximum(0, t.minimum(first, last) - link + plain)
            both = more * (further * ends - t.maximum(0, loop - turn))
            between = (t.chunks - 1) * t.maximum(turn, loop)
            turns = t.maximum((t.chunks - 1) * loop, between + both)
            slowest = t.maximum(plain + t.most(first, last), t.send + t.slowest)
            total = total + t.ranks * hop - t.send + first + last + further * slowest + turns
        return total

    def in_row(self, times: Times) -> Expr:
        """As GPipe's, but for those between the turns of chunks where a rank has to wait, with fewer than p."""
        t = times
        return super().in_row(t) - (t.chunks - 1) * t.minimum(1, t.maximum(0, t.ranks - t.microbatches))

    def lower_bound(self, times: Times) -> Expr:
        """Its paths, as those of any order: waits of one phase are no bound where messages of the other are shorter."""
        return ClosedKind.lower_bound(self, times)
