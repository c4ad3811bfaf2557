"""Interleaved zero bubble: interleaved 1F1B with the backward split (PyTorch's `ScheduleInterleavedZeroBubble`).

The ZB1P order of arXiv 2401.10241 on v chunks a rank.
"""

from sim.schedules.base import Refusal, ScheduleKind, Shape, Work, torch_group
from sim.schedules.ir import Action, Kind, Schedule


class InterleavedZB(ScheduleKind):
    """Makespan bubble (p - 1) F of one chunk at equal times; W follows r turns behind I on rank r.

    Chunks take microbatches in PyTorch's groups; a rank starts with (p - r - 1) + (v - 1) N forwards.
    """

    name = "interleaved-zb"
    variants = ("torch",)

    def refusal(self, shape: Shape) -> Refusal:
        p, m = shape.ranks, shape.microbatches
        if shape.chunks < 2:
            return "virtual_stages", shape.chunks, f"2 or more with {self.name}"
        rounds = max(1, m // p)
        if m % rounds:
            return "microbatches", m, f"a multiple of its {rounds} rounds (microbatches // ranks)"
        return None

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work
        orders = tuple(self._order(rank, shape) for rank in range(shape.ranks))
        return Schedule(self.name, shape.microbatches, self.rank_of(shape), orders, input_frees=shape.input_frees)

    def _order(self, rank: int, shape: Shape) -> tuple[Action, ...]:
        p, m, v = shape.ranks, shape.microbatches, shape.chunks
        group = torch_group(p, m)
        turns = [(c, k) for start in range(0, m, group) for c in range(v) for k in range(start, start + group)]
        warm_up = min(p - rank - 1 + (v - 1) * group, m * v)
        forward = [Action(c * p + rank, Kind.F, k) for c, k in turns]
        back = [((v - 1 - c) * p + rank, k) for c, k in turns]
        actions = forward[:warm_up]
        for turn, (stage, k) in enumerate(back):
            actions += forward[warm_up + turn : warm_up + turn + 1]
            actions.append(Action(stage, Kind.I, k))
            if turn >= rank:
                late, of = back[turn - rank]
                actions.append(Action(late, Kind.W, of))
        return (*actions, *(Action(s, Kind.W, k) for s, k in back[max(0, m * v - rank) :]))
