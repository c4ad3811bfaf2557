"""Two timelines compared: which actions moved, and which parts of the critical path make the difference."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from sim.engine.critical import Spent, critical_path
from sim.engine.graph import NOTHING, Ints
from sim.engine.timeline import Timeline
from sim.schedules import Action

K = TypeVar("K")
Key = tuple[Spent, int, Action | None]


class Change(NamedTuple):
    """Ticks on the critical path that a cause takes on a rank, for one action where both timelines have the same.

    before, after: in each timeline; their differences over all changes sum to that of the makespans.
    """

    cause: Spent
    rank: int
    action: Action | None
    before: int
    after: int

    @property
    def ticks(self) -> int:
        """How much more of the makespan it takes."""
        return self.after - self.before


@dataclass(frozen=True, eq=False)
class Comparison:
    """What changes from timeline `before` to `after`.

    changes: largest first. place[i]: where action i of `after` is in `before`; moved[i], longer[i]: by how many ticks
    it starts later and lasts longer. These are empty where the two do not have the same actions on the same ranks.
    """

    before: Timeline
    after: Timeline
    changes: tuple[Change, ...]
    place: Ints
    moved: Ints
    longer: Ints

    @property
    def ticks(self) -> int:
        """By how much the makespan grows."""
        return self.after.makespan - self.before.makespan

    @property
    def same_actions(self) -> bool:
        """Whether actions were compared one by one."""
        return len(self.place) > 0

    def by_cause(self) -> dict[Spent, int]:
        """Return the changes by cause, largest first; they sum to `ticks`."""
        found: Counter[Spent] = Counter()
        for c in self.changes:
            found[c.cause] += c.ticks
        return _ordered(found)

    def by_rank(self) -> dict[int, int]:
        """Return the changes by the rank on which the critical path runs, largest first; they sum to `ticks`."""
        found: Counter[int] = Counter()
        for c in self.changes:
            found[c.rank] += c.ticks
        return _ordered(found)


def compare(after: Timeline, before: Timeline) -> Comparison:
    """Return what changes from `before` to `after`; the engines and the schedules may differ."""
    place = _place(after, before)
    same = len(place) > 0
    spent = [_spent(t, same) for t in (before, after)]
    keys = dict.fromkeys([*spent[0], *spent[1]])
    changes = [Change(*key, *(s.get(key, 0) for s in spent)) for key in keys]
    changes = [c for c in sorted(changes, key=lambda c: -abs(c.ticks)) if c.ticks]
    moved = (after.start - after.zero) - (before.start - before.zero)[place] if same else NOTHING
    longer = (after.end - after.start) - (before.end - before.start)[place] if same else NOTHING
    return Comparison(before, after, tuple(changes), place, moved, longer)


def _place(after: Timeline, before: Timeline) -> Ints:
    """Return where the actions of `after` are in `before`, or nothing unless both have the same, each once."""
    index = {key: i for i, key in enumerate(_keys(before))}
    keys = _keys(after)
    if len(index) != len(before.start) or len(keys) != len(index) or set(keys) != index.keys():
        return NOTHING
    return np.array([index[key] for key in keys], dtype=np.int64)


def _keys(timeline: Timeline) -> list[tuple[int, ...]]:
    g = timeline.graph
    return list(zip(*(a.tolist() for a in (g.rank, g.stage, g.kind, g.microbatch)), strict=True))


def _spent(timeline: Timeline, actions: bool) -> Mapping[Key, int]:
    """Return ticks on the critical path by cause, rank and (if `actions`) action."""
    found: Counter[Key] = Counter()
    for s in critical_path(timeline.run).segments:
        action = s.action if actions else None
        found[s.spent, s.rank, action] += s.ticks - s.slowed
        found[Spent.SLOWED, s.rank, action] += s.slowed
    return found


def _ordered(found: Mapping[K, int]) -> dict[K, int]:
    return {k: v for k, v in sorted(found.items(), key=lambda item: -abs(item[1])) if v}
