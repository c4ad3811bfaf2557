"""The critical path: the chain of operations, each held up by the one before it, that makes a run as long as it is."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sim.engine.graph import Ints
from sim.engine.path import dependence_order
from sim.engine.program import Cause, Run
from sim.schedules import Action, Kind


class Spent(StrEnum):
    """What time on the critical path goes to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT = "weight gradients"
    INNER = "tp, cp and ep collectives"
    DATA = "data-parallel collectives"
    MESSAGE = "pipeline messages"
    OFFLOAD = "host copies"
    OPTIMIZER = "optimizer"
    SLOWED = "slowed by what runs beside"
    OUTSIDE = "held from outside"


class Held(StrEnum):
    """Why an operation of the critical path did not start before."""

    START = "starts the run"
    RANK = "waits for its rank's previous action"
    DATA = "waits for data of the same rank"
    MESSAGE = "waits for the message"
    COLLECTIVE = "waits for a collective"
    COPY = "waits for a host copy"
    BARRIER = "held by the barrier"
    OUTSIDE = "held from outside"


KINDS = tuple(Kind)
OF_KIND: dict[int, Spent] = {
    Kind.F: Spent.FORWARD,
    Kind.I: Spent.BACKWARD,
    Kind.B: Spent.BACKWARD,
    Kind.W: Spent.WEIGHT,
    Kind.REDUCE_GRAD: Spent.DATA,
    Kind.OPTIMIZER: Spent.OPTIMIZER,
}
OF_CAUSE: dict[int, Spent] = {
    Cause.INNER: Spent.INNER,
    Cause.DATA: Spent.DATA,
    Cause.MESSAGE: Spent.MESSAGE,
    Cause.OFFLOAD: Spent.OFFLOAD,
}


class Segment(NamedTuple):
    """A stretch of the critical path: an operation, a message on its way, or a wait for something outside the program.

    operation: index in the run's program; of a message that is a lag, the operation that sends it. rank: where it
    happens (of a message: its sender); action: whose it is (of a message: the action that sends it). start, end in
    ticks, of which `slowed` are due to what runs beside; it ends before it starts where it takes back the part of a
    pass that a message does not wait for (ZeRO's last reductions). held: why it did not start before; after: the action
    that it waited for.
    """

    operation: int
    rank: int
    action: Action
    start: int
    end: int
    spent: Spent
    held: Held
    after: Action | None = None
    slowed: int = 0

    @property
    def ticks(self) -> int:
        """Its length."""
        return self.end - self.start

    @property
    def why(self) -> str:
        """Why it did not start before, in words: `waits for the message of 3F7`."""
        return f"{self.held} of {self.after}" if self.held is Held.MESSAGE else str(self.held)


@dataclass(frozen=True)
class CriticalPath:
    """Segments from the first start of a run to its last end, without a gap: their ticks sum to the makespan."""

    segments: tuple[Segment, ...]

    @property
    def ticks(self) -> int:
        """The makespan."""
        return sum(s.ticks for s in self.segments)

    def by_cause(self) -> dict[Spent, int]:
        """Return ticks by what they go to, the most first; they sum to the makespan."""
        found = dict.fromkeys(Spent, 0)
        for s in self.segments:
            found[s.spent] += s.ticks - s.slowed
            found[Spent.SLOWED] += s.slowed
        return {c: t for c, t in sorted(found.items(), key=lambda item: -item[1]) if t}

    def by_rank(self, ranks: int) -> list[int]:
        """Return the ticks spent on each of `ranks` ranks, messages on their sender's."""
        spent = [0] * ranks
        for s in self.segments:
            spent[s.rank] += s.ticks
        return spent

    def crossings(self) -> int:
        """Return how often the path goes from one rank to another."""
        return sum(a.rank != b.rank for a, b in pairwise(self.segments))


def critical_path(run: Run) -> CriticalPath:
    """Return the critical path of a run of either engine.

    It is walked back from the operation that ends last. What held an operation is what arrived the moment it started:
    of several the one before it in its lane, else the first of its edges. Where nothing did, a guest held it: that
    stretch reaches back to the latest of its sources.
    """
    return path_to(run, int(run.end.argmax()))


def path_to(run: Run, operation: int) -> CriticalPath:
    """Return the chain that makes `operation` end as late as it does, from the start of the run to its end."""
    return _Walk(run).path(operation)


def reasons(run: Run, operations: list[int]) -> list[str]:
    """Return why each of these operations did not start before, in words: `waits for the message of 3F7`."""
    walk = _Walk(run)
    held = ((i, walk.holder(i)) for i in operations)
    return [walk.segment(i, before, how).why for i, (before, _, how) in held]


class _Walk:
    """The way back through a run; plain lists, since it looks at single entries."""

    def __init__(self, run: Run) -> None:
        program, g = run.program, run.program.graph
        self.start, self.end = run.start.tolist(), run.end.tolist()
        self.duration, self.cause = program.duration.tolist(), program.cause.tolist()
        self.previous, self.first, self.source, self.lag = (
            a.tolist() for a in (g.previous, g.first, g.source, program.lag)
        )
        self.rank, self.stage, self.microbatch = (a.tolist() for a in (g.rank, g.stage, g.microbatch))
        self.kind = g.kind.tolist()
        self.begin = int(run.start.min())
        self._actions: dict[int, Action] = {}

    def path(self, at: int) -> CriticalPath:
        found: list[Segment] = []
        while at >= 0:
            before, lag, held = self.holder(at)
            found.append(self.segment(at, before, held))
            came = self.end[before] if before >= 0 else self.begin
            if came + lag < self.start[at]:
                found.append(self._stretch(at, came + lag, self.start[at], Spent.OUTSIDE, Held.OUTSIDE))
            if lag:  # a message without an operation of its own
                # Where it leaves before its pass is done, that is taken back from the pass.
                spent = Spent.MESSAGE if lag > 0 else self._spent(before)
                found.append(self._stretch(before, came, came + lag, spent, Held.DATA))
            at = before
        return CriticalPath(tuple(s for s in reversed(found) if s.ticks))

    def holder(self, at: int) -> tuple[int, int, Held]:
        """Return what operation `at` waited for last (-1: nothing), the lag behind it, and how it held."""
        start, last, lag = self.start[at], self.previous[at], 0
        came = self.end[last] if last >= 0 else -1
        for e in range(self.first[at], self.first[at + 1]):
            arrives = self.end[self.source[e]] + self.lag[e]
            if arrives > came:
                last, lag, came = self.source[e], self.lag[e], arrives
        if last < 0:
            return -1, 0, Held.START if start == self.begin else Held.OUTSIDE
        return last, lag, self._relation(at, last, lag) if came == start else Held.OUTSIDE

    def _relation(self, at: int, last: int, lag: int) -> Held:
        away = self.rank[last] != self.rank[at]
        if lag or self._is_message(last):
            return Held.MESSAGE
        if self.kind[at] == Kind.OPTIMIZER and away:
            return Held.BARRIER
        if self._spent(last) is Spent.OFFLOAD:
            return Held.COPY
        if self._spent(last) in (Spent.INNER, Spent.DATA):
            return Held.COLLECTIVE
        return Held.RANK if last == self.previous[at] else Held.MESSAGE if away else Held.DATA

    def _spent(self, i: int) -> Spent:
        named = OF_CAUSE.get(self.cause[i]) if self.cause else None
        return named or OF_KIND[self.kind[i]]

    def _action(self, i: int) -> Action:
        """Return the action of operation i; of a message the one that sends it."""
        known = self._actions.get(i)  # asked for twice on a path: of what waits, and of what it has waited for
        if known is None:
            of = self.source[self.first[i]] if self._is_message(i) else i
            known = self._actions[i] = Action(self.stage[of], KINDS[self.kind[of]], self.microbatch[of])
        return known

    def _is_message(self, i: int) -> bool:
        return bool(self.cause) and self.cause[i] == Cause.MESSAGE

    def segment(self, i: int, before: int, held: Held) -> Segment:
        """Return operation i as a segment that was held by `before` (-1: by nothing)."""
        start, end, after = self.start[i], self.end[i], self._action(before) if before >= 0 else None
        slowed = max(0, end - start - self.duration[i])
        return Segment(i, self.rank[i], self._action(i), start, end, self._spent(i), held, after, slowed)

    def _stretch(self, i: int, start: int, end: int, spent: Spent, held: Held) -> Segment:
        return Segment(i, self.rank[i], self._action(i), start, end, spent, held)


def slack(run: Run) -> Ints:
    """Return by how many ticks each operation could end later, if nothing else took longer, and the run be as long.

    Exact where nothing is shared; under contention every operation is taken to last as long as it did.
    """
    g = run.program.graph
    latest = np.full(len(g), int(run.end.max()))
    took, previous = run.end - run.start, g.previous
    for i in dependence_order(g)[::-1].tolist():
        start = latest[i] - took[i]
        if previous[i] >= 0:
            latest[previous[i]] = min(latest[previous[i]], start)
        edges = slice(int(g.first[i]), int(g.first[i + 1]))
        np.minimum.at(latest, g.source[edges], start - run.program.lag[edges])
    return latest - run.end
