"""Where a process stands among the others: its coordinate along every axis of a plan, and the groups it speaks in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product

import torch.distributed as dist

from sim.specs import Plan

ENDS = "ends"
"""The group of the two ranks that hold a tied table: first and last stage."""


@dataclass(frozen=True)
class Place:
    """Coordinates, sizes and groups by axis (tp, dp, pp; groups of one rank are left out)."""

    rank: int = 0
    at: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(("tp", "dp", "pp"), 0))
    size: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(("tp", "dp", "pp"), 1))
    groups: Mapping[str, dist.ProcessGroup] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, rank: int) -> "Place":
        """Return the place of a process; every process of the plan calls this at the same time."""
        size = {"tp": plan.tp, "dp": plan.dp or 1, "pp": plan.pp}
        axes = [axis for axis in plan.rank_order.split("-") if axis in size]
        groups: dict[str, dist.ProcessGroup] = {}
        for axis in axes:
            for ranks in lines(size, axes, axis):
                if len(ranks) > 1 and (made := _group(axis, ranks, rank)):
                    groups[axis] = made
        if plan.pp > 1 and plan.rank_of[0] != plan.rank_of[-1]:
            for ranks in lines(size, axes, "pp"):
                if made := _group(ENDS, (ranks[plan.rank_of[0]], ranks[plan.rank_of[-1]]), rank):
                    groups[ENDS] = made
        return cls(rank, coordinates(size, axes, rank), size, groups)

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """Return the group along an axis, or None where it has one rank."""
        return self.groups.get(axis)


def coordinates(size: Mapping[str, int], axes: list[str], rank: int) -> dict[str, int]:
    """Return a rank's coordinates; the first axis is the innermost."""
    found = {}
    for axis in axes:
        rank, found[axis] = divmod(rank, size[axis])
    return found


def lines(size: Mapping[str, int], axes: list[str], along: str) -> Iterator[tuple[int, ...]]:
    """Yield the ranks of every group along an axis, in the order of the coordinate."""
    stride, inner = {}, 1
    for axis in axes:
        stride[axis], inner = inner, inner * size[axis]
    others = [axis for axis in axes if axis != along]
    for where in product(*(range(size[axis]) for axis in others)):
        base = sum(n * stride[axis] for n, axis in zip(where, others, strict=True))
        yield tuple(base + n * stride[along] for n in range(size[along]))


@cache
def _group(axis: str, ranks: tuple[int, ...], rank: int) -> dist.ProcessGroup | None:
    """Return the one group of an axis over `ranks`: torch caches by ranks what operations do on which group."""
    made = dist.new_group(list(ranks))
    return made if rank in ranks else None
