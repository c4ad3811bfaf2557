"""PipeDream-2BW: 1F1B that never flushes, one update per `group` microbatches (arXiv 2006.09503, section 3.1)."""

from sim.schedules.base import ScheduleKind, Shape, Work
from sim.schedules.ir import Action, Kind, Schedule


class TwoBW(ScheduleKind):
    """No bubble in steady state; two versions of the weights on every rank, and gradients one update old.

    The microbatches of a group all take, on all ranks, the newest version that the first rank has when the group
    begins: microbatch k (from 1) takes version max(floor((k - 1) / group) - 1, 0).
    """

    name = "2bw"
    delayed = True
    grouped = True

    def refusal(self, shape: Shape) -> tuple[str, object, str] | None:
        if refusal := super().refusal(shape):
            return refusal
        if shape.ranks < 2:
            return "ranks", shape.ranks, "2 or more: without a pipeline there is no older version to keep"
        if shape.group < shape.ranks:
            allowed = f"at least the ranks, {shape.ranks}: with fewer two versions do not do"
            return "microbatch_group_size", shape.group, allowed
        if shape.microbatches % shape.group:
            return "microbatches", shape.microbatches, f"a multiple of the group, {shape.group}"
        return None

    def group(self, asked: int, microbatches: int) -> int:
        """One update a step."""
        del asked
        return microbatches

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work
        ranks = range(shape.ranks)
        delay = min(1, shape.microbatches // shape.group - 1)
        return Schedule(
            self.name,
            shape.microbatches,
            tuple(ranks),
            tuple(_order(r, shape) for r in ranks),
            weight_versions=(delay + 1,) * shape.ranks,
            staleness=(delay,) * shape.ranks,
            vertical_sync=True,
        )


def _order(rank: int, shape: Shape) -> tuple[Action, ...]:
    m, ahead = shape.microbatches, shape.ranks - 1 - rank
    actions = [Action(rank, Kind.F, k) for k in range(ahead)]
    for k in range(m):
        actions += [Action(rank, Kind.F, k + ahead)] if k + ahead < m else []
        actions.append(Action(rank, Kind.B, k))
        if (k + 1) % shape.group == 0:
            actions.append(Action(rank, Kind.OPTIMIZER, k))
    return tuple(actions)
