"""A second opinion on an order: its longest path, by data dependencies alone and without the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from sim.schedules import Action, Kind, Schedule
from sim.schedules.ir import COMPUTE

Number = int | Fraction


class WaitsForeverError(Exception):
    """No rank can go on."""


@dataclass(frozen=True)
class Run:
    """Start and end of every action; fused actions share both."""

    start: Mapping[Action, Number]
    end: Mapping[Action, Number]
    order: Schedule

    @property
    def makespan(self) -> Number:
        return max(self.end.values()) - min(self.start.values())

    def spans(self) -> list[Number]:
        return [max(self.end[a] for a in rank) - min(self.start[a] for a in rank) for rank in self.order.actions]


def run(order: Schedule, times: Mapping[Kind, Number], message: Number = 0) -> Run:
    """Return when everything runs; a fused pair takes as long as its two actions one after the other."""
    order = replace(order, actions=tuple(tuple(a for a in rank if a.kind in COMPUTE) for rank in order.actions))
    every = {action for rank in order.actions for action in rank}
    start: dict[Action, Number] = {}
    end: dict[Action, Number] = {}
    next_of, free = [0] * order.ranks, [0] * order.ranks

    def needs(action: Action) -> list[tuple[Action, Number]]:
        s, kind, k = action
        ends_at, starts_at = s % order.depth == order.depth - 1, s % order.depth == 0
        if kind is Kind.F:
            return [] if starts_at else [(Action(s - 1, Kind.F, k), message * remote(s - 1, s))]
        if kind is Kind.W:
            return [(Action(s, Kind.I, k), 0)]
        own = [(Action(s, Kind.F, k), 0)]
        if ends_at:
            return own
        above = next(a for a in (Action(s + 1, Kind.B, k), Action(s + 1, Kind.I, k)) if a in every)
        return [*own, (above, message * remote(s, s + 1))]

    def remote(a: int, b: int) -> bool:
        return order.rank_of[a] != order.rank_of[b]

    waiting = set(range(order.ranks))
    while waiting:
        before = sum(next_of)
        for r in sorted(waiting):
            actions = order.actions[r]
            while next_of[r] < len(actions):
                at = next_of[r]
                both = actions[at : at + 1 + (at in order.fused[r])]
                wanted = [need for action in both for need in needs(action)]
                if any(a not in end for a, _ in wanted):
                    break
                begin = max([free[r], *(end[a] + late for a, late in wanted)])
                free[r] = begin + sum(times[a.kind] for a in both)
                start |= dict.fromkeys(both, begin)
                end |= dict.fromkeys(both, free[r])
                next_of[r] += len(both)
            if next_of[r] == len(actions):
                waiting.discard(r)
        if sum(next_of) == before and waiting:
            raise WaitsForeverError(next_of)
    return Run(start, end, order)
