"""Interleaved 1F1B: v chunks a rank, 1/v of the bubble (Narayanan et al. 2021, arXiv 2104.04473, section 2.2)."""

from collections.abc import Callable
from typing import Any

from sim.schedules.base import ClosedKind, Expr, Refusal, Shape, Times, Work
from sim.schedules.ir import Action, Kind, Schedule


class Interleaved(ClosedKind):
    """Rank r holds chunks r, r + p, ...; each takes `group` microbatches in turn (Megatron-LM's grouping).

    PyTorch's is the same order with a grouping of its own (`torch_group`). A group shorter than p can deadlock: such
    shapes are legal where they do not (Megatron-LM itself refuses them all).
    """

    name = "interleaved"
    variants = ("megatron", "torch", "zero-bubble")
    grouped = True

    def refusal(self, shape: Shape) -> Refusal:
        p, m, group = shape.ranks, shape.microbatches, shape.group
        if shape.chunks < 2 or p < 2:
            return "virtual_stages", shape.chunks, "2 or more, with pp 2 or more, for interleaved"
        if group >= p and not 0 < m % group < p:
            return None
        if not _deadlocks(self.build(shape, Work.uniform(p * shape.chunks))):
            return None
        if group < p:
            return "microbatch_group_size", group, f"at least pp = {p}: a smaller group deadlocks here"
        return "microbatches", m, f"a multiple of {group}, or {p} or more beyond one: a short last group deadlocks here"

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work
        orders = tuple(self._order(rank, shape) for rank in range(shape.ranks))
        return Schedule(self.name, shape.microbatches, self.rank_of(shape), orders)

    def _order(self, rank: int, shape: Shape) -> tuple[Action, ...]:
        p, m, v = shape.ranks, shape.microbatches, shape.chunks
        turns = [
            (chunk, k)
            for start in range(0, m, shape.group)
            for chunk in range(v)
            for k in range(start, min(start + shape.group, m))
        ]
        forward = [Action(chunk * p + rank, Kind.F, k) for chunk, k in turns]
        backward = [Action((v - 1 - chunk) * p + rank, Kind.B, k) for chunk, k in turns]
        warm_up = min(2 * (p - 1 - rank) + (v - 1) * shape.group, m * v)
        actions = forward[:warm_up]
        for f, b in zip(forward[warm_up:], backward, strict=False):
            actions += [f, b]
        return (*actions, *backward[m * v - warm_up :])

    def makespan(self, times: Times) -> Expr:
        """The longer of two ways, through all work of the last or of the first rank.

        To the last one it goes while the pipeline fills, and back while it drains: a ramp of p - 1 chunks, and what the
        first chunk does more for the microbatches that it takes in turn. Of the
        first rank's work, 2 (p - 1) forwards while the pipeline fills, or backwards while it drains, are left out where
        the way to the last chunk and back is longer.

        Messages are hidden in the steady state, which has p chunks of slack, up to `_steady` and `_linked`; each of the
        p v - 1 boundaries is paid for once in the warm-up and once in the drain; those that cost less than nothing
        (`Times.send`) only while the pipeline fills.
        """
        t, ramp = times, times.ranks - 1
        turn, further = t.minimum(t.maximum(t.ranks, t.group), t.microbatches), t.microbatches - 1
        work, later = t.microbatches * t.chunks * self._steady(t), t.ranks * (t.chunks - 1) * t.maximum(0, t.send)
        spared = t.minimum(1, t.ranks - 2) * t.maximum(0, -t.head)  # ranks between have no head
        last = t.head + further * (t.head + spared) + t.embedding + (turn - 1) * t.maximum(0, t.embedding)
        first, several = t.microbatches * t.embedding, t.minimum(1, t.microbatches - turn)
        for plain, other, own in (
            (t.forward, t.backward, t.embedding_forward), (t.backward, t.forward, t.embedding_backward),
        ):  # fmt: skip
            beyond = t.maximum(turn * (t.head - own), t.head - ramp * own)
            first = first + several * t.maximum(0, ramp * (other - plain + 2 * t.send) + beyond)
        return t.maximum(work + 2 * later + t.maximum(ramp * (t.chunk + 2 * t.send) + last, first), self._linked(t))

    @staticmethod
    def _steady(t: Times) -> Expr:
        """Return how long a forward and a backward of a chunk take in the steady state.

        Of three of them a round trip between neighbours takes all; a turn is as long as the way round all ranks; and
        the first rank runs as many as are `alive` while a microbatch goes through all chunks and back.
        """
        turn, hops = t.maximum(t.ranks, t.group), t.ranks * t.chunks - 1
        alive = 2 * (t.chunks - 1) * turn + 2 * t.ranks - 1
        way = ((hops + 1) * t.chunk + 2 * hops * t.send) / alive
        loops = (t.ranks * (plain + t.send) / turn for plain in (t.forward, t.backward))
        return t.maximum(t.chunk, (1 - t.alone) * t.maximum((t.chunk + t.send + t.slowest) * 2 / 3, way, *loops))

    @staticmethod
    def _linked(t: Times) -> Expr:
        """Return how long the slowest link takes for all messages of one way, and a microbatch to it and from it: with
        two ranks those back from the last chunk to the next first are among them."""
        back = t.maximum(0, 3 - t.ranks) * (t.chunks - 1)
        sent = t.microbatches * (t.chunks + back) * (t.send + t.slowest)
        return (1 - t.alone) * (sent + t.ranks * t.chunk + t.embedding + t.head)

    def in_row(self, times: Times) -> Expr:
        return times.minimum(times.ranks * (times.chunks - 1), times.microbatches * times.chunks - 1)

    def in_flight(self, rank: Expr, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        warm_up = 2 * (shape.ranks - 1 - rank) + (shape.chunks - 1) * shape.group + 1
        return minimum(warm_up, shape.microbatches * shape.chunks)

    def of_first_chunk(self, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        return minimum(minimum(shape.microbatches, 2 * shape.group), self.in_flight(0, shape, minimum))


def _deadlocks(order: Schedule) -> bool:
    """Return whether some rank of an order of F and B waits for ever."""
    last, done, waiting = order.stages - 1, set[Action](), dict[Action, int]()
    at, ready = [0] * order.ranks, list(range(order.ranks))
    while ready:
        rank = ready.pop()
        while at[rank] < len(order.actions[rank]):
            action = s, kind, k = order.actions[rank][at[rank]]
            forward = kind is Kind.F
            first = s == (0 if forward else last)
            before = Action(s, Kind.F, k) if first else Action(s - 1 if forward else s + 1, kind, k)
            if before not in done and not (first and forward):
                waiting[before] = rank
                break
            done.add(action)
            at[rank] += 1
            if action in waiting:
                ready.append(waiting.pop(action))
    return bool(waiting)
