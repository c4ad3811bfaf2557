"""Chimera: two pipelines in opposite directions, half of the microbatches each (Li and Hoefler 2021, arXiv 2107.06925).

The order is that of its Figure 3 with two pipelines; more than p microbatches are units of p, one after the other
("direct concatenation", section 3.5), whose bubbles fill each other.
"""

from sim.schedules.base import Refusal, ScheduleKind, Shape, Work
from sim.schedules.ir import Action, Kind, Schedule


class Chimera(ScheduleKind):
    """Two copies of the model: rank r holds stage r of one and stage p - 1 - r of the other.

    Makespan bubble (p - 2) / (2 m + p - 2) of the total where B = F and p divides m; p / 2 + 1 to p microbatches
    on a rank.
    """

    name = "chimera"

    def refusal(self, shape: Shape) -> Refusal:
        for field in ("ranks", "microbatches"):
            if getattr(shape, field) % 2:
                return field, getattr(shape, field), f"an even number with {self.name}"
        return super().refusal(shape)

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work
        orders = tuple(_order(rank, shape.ranks, shape.microbatches) for rank in range(shape.ranks))
        return Schedule(self.name, shape.microbatches, self.rank_of(shape), orders, pipelines=self.copies)


def _order(rank: int, p: int, m: int) -> tuple[Action, ...]:
    """Return the actions of a rank by the slot that each takes if all last one slot.

    Microbatch k of a pipeline enters at slot 2 k, 2 p slots a unit of p / 2, and waits nowhere. The two pipelines
    pass a rank in slots of unlike parity, and no unit's forwards meet the backwards of the one before.
    """
    slots = []
    for stage, first in ((rank, 0), (p - 1 - rank, p)):
        for k in range(m // 2):
            enters = k // (p // 2) * 2 * p + k % (p // 2) * 2
            slots.append((enters + stage, Action(first + stage, Kind.F, k)))
            slots.append((enters + 2 * p - 1 - stage, Action(first + stage, Kind.B, k)))
    return tuple(action for _, action in sorted(slots))
