"""The version of its weights that every pass uses, by walking an order (arXiv 1806.03377 section 3.3, 2006.09503)."""

from collections.abc import Mapping
from typing import NamedTuple

from sim.schedules.ir import Action, Kind, Schedule


class Use(NamedTuple):
    """Versions of one rank's weights, counted in updates, that one microbatch meets.

    forward, backward: used by its passes; updates_to: what the update with its gradient makes; newest: what the rank
    had newest when the backward ran.
    """

    forward: int
    backward: int
    updates_to: int
    newest: int

    @property
    def staleness(self) -> int:
        """By how many updates the weights behind the gradient are older than the ones it is applied to."""
        return self.updates_to - 1 - self.backward


def versions(schedule: Schedule, stashing: bool = True) -> dict[tuple[int, int], Use]:
    """Return the versions that each (rank, microbatch) meets.

    stashing: the backward takes its forward's version; without it, whatever the rank has newest by then (what
    PipeDream's section 3.3 warns of). Gradients that no update follows count for the update that would be next.
    """
    seen: dict[tuple[int, int], Use] = {}
    synchronised = _first_rank_versions(schedule) if schedule.vertical_sync else None
    for rank, actions in enumerate(schedule.actions):
        forward: dict[int, int] = {}
        done = 0
        for action in actions:
            k = action.microbatch
            if action.kind is Kind.F:
                forward[k] = done if synchronised is None else synchronised[k]
            elif action.kind in (Kind.B, Kind.I):
                seen[rank, k] = Use(forward[k], forward[k] if stashing else done, done + 1, done)
            elif action.kind is Kind.OPTIMIZER:
                done += 1
    return seen


def most_staleness(schedule: Schedule) -> list[int]:
    """Return, per rank, by how many updates a gradient's weights are older at most than those it is applied to."""
    uses = versions(schedule)
    return [max((u.staleness for (r, _), u in uses.items() if r == rank), default=0) for rank in range(schedule.ranks)]


def most_versions(schedule: Schedule) -> list[int]:
    """Return, per rank, the most versions alive at once: those that a pass still needs, and the newest."""
    uses = versions(schedule)
    return [_most(rank, actions, uses) for rank, actions in enumerate(schedule.actions)]


def _most(rank: int, actions: tuple[Action, ...], uses: Mapping[tuple[int, int], Use]) -> int:
    last_use: dict[int, int] = {}
    for i, action in enumerate(actions):
        if action.kind is not Kind.OPTIMIZER and (rank, action.microbatch) in uses:
            last_use[uses[rank, action.microbatch].forward] = i
    done, most = 0, 1
    for i, action in enumerate(actions):
        done += action.kind is Kind.OPTIMIZER
        most = max(most, 1 + sum(last > i for version, last in last_use.items() if version < done))
    return most


def _first_rank_versions(schedule: Schedule) -> dict[int, int]:
    """Return each microbatch's version: what the first stage had newest when its group of microbatches entered.

    A group is what one update of the first stage takes; each rank of the first stage goes by its own updates.
    """
    found: dict[int, int] = {}
    first = [rank for rank in schedule.actions if rank and rank[0].stage == 0]
    for actions in first:
        group = _groups(actions)
        entered: dict[int, int] = {}
        done = 0
        for action in actions:
            if action.kind is Kind.F:
                found[action.microbatch] = entered.setdefault(group[action.microbatch], done)
            done += action.kind is Kind.OPTIMIZER
    return found


def _groups(actions: tuple[Action, ...]) -> dict[int, int]:
    """Return the number of the update that takes each microbatch's gradient."""
    group: dict[int, int] = {}
    update = 0
    for action in actions:
        if action.kind is Kind.B:
            group[action.microbatch] = update
        update += action.kind is Kind.OPTIMIZER
    return group
