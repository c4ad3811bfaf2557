"""Orders found by a greedy search under a memory limit (arXiv 2401.10241, section 3.1).

The search fills each rank's timeline microbatch by microbatch. Three yes-or-no choices are left open by the paper's
rules; all eight answers are tried and the order with the shortest longest rank span is taken.
"""

from dataclasses import dataclass
from itertools import product

from sim.schedules.base import Shape, Work
from sim.schedules.ir import Action, Kind, Schedule


def search(name: str, shape: Shape, work: Work, limit: float) -> Schedule:
    """Return the best order found; no rank ever keeps more than `limit` microbatches' activations."""
    tries = (_Filling(shape, work, limit, Choices(*answers)) for answers in product((True, False), repeat=3))
    best = min(tries, key=_Filling.longest_span)
    ranks = tuple(range(shape.ranks))
    return Schedule(name, shape.microbatches, ranks, best.orders(), input_frees=shape.input_frees)


@dataclass(frozen=True)
class Choices:
    """What the paper's rules leave open.

    idle_before_first_input: warm-up stops before a forward that would delay the first I, not after it.
    forward_may_wait: a forward is put off where it would delay the next rank's I.
    weight_may_overrun: a wait shorter than W is filled with W although no rank's idle time would become the longest.
    """

    idle_before_first_input: bool
    forward_may_wait: bool
    weight_may_overrun: bool


class _Filling:
    """The timelines of all ranks, filled on creation."""

    def __init__(self, shape: Shape, work: Work, limit: float, choices: Choices) -> None:
        self.p, self.m, self.choices = shape.ranks, shape.microbatches, choices
        self.limit, self.input_frees = limit + 1e-9, shape.input_frees  # rounding of shares is no excess
        self.message = work.message
        self.duration = {Kind.F: work.forward, Kind.I: work.input, Kind.W: work.weight}
        self.ends: dict[Kind, list[list[int]]] = {kind: [[] for _ in range(self.p)] for kind in self.duration}
        self.order: list[list[Kind]] = [[] for _ in range(self.p)]
        self.free, self.idle, self.most_idle = [0] * self.p, [0] * self.p, 0
        self._fill()

    def _fill(self) -> None:
        """Put every action."""
        self._warm_up()
        for _ in range(1, self.m):
            for rank in range(self._first_taker(), self.p):
                for _ in range(self._weights_before_forward(rank)):
                    self._put(rank, Kind.W)
                self._fill_wait(rank, Kind.F)
                self._put(rank, Kind.F)
            for rank in reversed(range(self.p)):
                self._fill_wait(rank, Kind.I)
                if rank == 0 and self._done(Kind.F, 0) == self.m:
                    self._put_all_weights(0)  # nobody waits for the I of rank 0
                self._put(rank, Kind.I)
        for rank in range(self.p):
            self._put_all_weights(rank)

    def longest_span(self) -> int:
        """Return the longest time from a rank's first start to its last end."""
        first = (self.ends[Kind.F][r][0] - self.duration[Kind.F][r] for r in range(self.p))
        return max(free - start for free, start in zip(self.free, first, strict=True))

    def orders(self) -> tuple[tuple[Action, ...], ...]:
        """Return each rank's actions; those of one kind take the microbatches in turn."""
        counts = [dict.fromkeys(self.duration, 0) for _ in range(self.p)]
        actions: list[list[Action]] = [[] for _ in range(self.p)]
        for rank, kinds in enumerate(self.order):
            for kind in kinds:
                actions[rank].append(Action(rank, kind, counts[rank][kind]))
                counts[rank][kind] += 1
        return tuple(map(tuple, actions))

    def _warm_up(self) -> None:
        """Put the forwards before the first I, as many as fit the limit and the wait, and the first I of all."""
        for rank in range(self.p):
            self._put(rank, Kind.F)
        more = self._forwards_in_the_first_wait()
        for rank in range(1, self.p):  # fewer than on the rank before, which feeds this one, if not all
            before = more[rank - 1]
            more[rank] = min(more[rank], before if before in (0, self.m - 1) else before - 1)
        for rank in range(self.p):
            for _ in range(more[rank]):
                self._put(rank, Kind.F)
        for rank in reversed(range(self.p)):
            self._put(rank, Kind.I)

    def _forwards_in_the_first_wait(self) -> list[int]:
        more, arrives = [0] * self.p, self.free[-1]
        for rank in reversed(range(self.p)):
            forward, now = self.duration[Kind.F][rank], self.free[rank]
            while 1 + more[rank] < self.m and 2 + more[rank] <= self.limit:
                if now >= arrives or (self.choices.idle_before_first_input and now + forward > arrives):
                    break
                now += forward
                more[rank] += 1
            arrives = max(now, arrives) + self.duration[Kind.I][rank] + self.message[rank]
        return more

    def _first_taker(self) -> int:
        """Return from which rank on a forward is put now: before one that takes none, none is needed."""
        rank = self.p
        while rank > 0 and self._done(Kind.F, rank - 1) < self.m and not self._better_waits(rank - 1):
            rank -= 1
        return rank

    def _better_waits(self, rank: int) -> bool:
        """Return whether a forward here would delay the next rank's I by more than is free of charge."""
        after = rank + 1
        ahead = after < self.p and self._done(Kind.F, rank) >= self._done(Kind.F, after) + 2
        if not ahead or not self.choices.forward_may_wait:
            return False
        wait = self.free[after] + self.duration[Kind.F][after] + self.duration[Kind.I][after] + self.message[after]
        wait -= self.free[rank]
        needed = self.duration[Kind.F][rank] + self._weights_before_forward(rank) * self.duration[Kind.W][rank]
        return wait <= 0 or (needed > wait and wait <= self.most_idle - self.idle[rank])

    def _weights_before_forward(self, rank: int) -> int:
        """Return how many W must free memory before the next forward."""
        f, i, w = (self._done(kind, rank) for kind in self.duration)
        needed = 0
        while needed < i - w and self._kept(f + 1, i, w + needed) > self.limit:
            needed += 1
        return needed

    def _kept(self, f: int, i: int, w: int) -> float:
        return f - self.input_frees * i - (1 - self.input_frees) * w

    def _fill_wait(self, rank: int, kind: Kind) -> None:
        """Put W while the next F or I is on its way, and one that overruns it unless waiting costs nothing."""
        arrives, weight = self._arrival(rank, kind), self.duration[Kind.W][rank]
        while self._has_weight(rank) and self.free[rank] + weight <= arrives:
            self._put(rank, Kind.W)
        wait = arrives - self.free[rank]
        costly = wait > self.most_idle - self.idle[rank]
        if self._has_weight(rank) and wait > 0 and (costly or self.choices.weight_may_overrun):
            self._put(rank, Kind.W)

    def _has_weight(self, rank: int) -> bool:
        return self._done(Kind.W, rank) < self._done(Kind.I, rank)

    def _put_all_weights(self, rank: int) -> None:
        while self._has_weight(rank):
            self._put(rank, Kind.W)

    def _done(self, kind: Kind, rank: int) -> int:
        return len(self.ends[kind][rank])

    def _arrival(self, rank: int, kind: Kind) -> int:
        """Return when the next action of `kind` has what it needs from another rank (0: nothing)."""
        k = self._done(kind, rank)
        if kind is Kind.F and rank > 0:
            return self.ends[kind][rank - 1][k] + self.message[rank]
        if kind is Kind.I and rank < self.p - 1:
            return self.ends[kind][rank + 1][k] + self.message[rank + 1]
        return 0

    def _put(self, rank: int, kind: Kind) -> None:
        start = max(self.free[rank], self._arrival(rank, kind))
        if self.order[rank]:
            self.idle[rank] += start - self.free[rank]
            self.most_idle = max(self.most_idle, self.idle[rank])
        self.free[rank] = start + self.duration[kind][rank]
        self.ends[kind][rank].append(self.free[rank])
        self.order[rank].append(kind)
