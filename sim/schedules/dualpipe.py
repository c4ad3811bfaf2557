"""DualPipe: microbatches enter at both ends of the pipeline (DeepSeek-V3, arXiv 2412.19437, section 3.2.1)."""

from sim.schedules.base import Expr, Refusal, ScheduleKind, Shape, Work
from sim.schedules.dualpipev import Half, half_order
from sim.schedules.ir import Schedule


class DualPipe(ScheduleKind):
    """Two copies of the model: rank r holds stage r of one and stage p - 1 - r of the other.

    Half of the microbatches take either way. Ranks r and p - 1 - r run the same order on opposite copies: that of
    DualPipeV on p / 2 ranks. Bubble at most (p / 2 - 1)(F&B + B - 3 W); at most p + 1 microbatches on a rank.
    """

    name = "dualpipe"
    variants = ("deepseek",)
    joins = True

    def refusal(self, shape: Shape) -> Refusal:
        p, m = shape.ranks, shape.microbatches
        if p % 2:
            return "ranks", p, f"an even number with {self.name}"
        if m % 2 or m < 2 * p:
            return "microbatches", m, f"an even number, at least 2 x ranks = {2 * p} with {self.name}"
        return super().refusal(shape)

    def most_pairs(self, ranks: Expr, microbatches: Expr) -> Expr:
        return microbatches - ranks - 1

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work
        p, m = shape.ranks, shape.microbatches

        def order(rank: int) -> Half:
            first, second = rank, p + (p - 1 - rank)  # of the second copy, whose stages follow
            near = (first, second) if rank < p // 2 else (second, first)
            return half_order(min(rank, p - 1 - rank), p // 2, m // 2, near)

        actions, fused = zip(*map(order, range(p)), strict=True)
        rank_of = self.rank_of(shape)
        return Schedule(
            self.name, m, rank_of, actions, input_frees=shape.input_frees, fused=fused, pipelines=self.copies
        )
