"""ZBV orders found by a greedy search under a memory limit (Qi et al., arXiv 2401.10241 (ZB-V) and 2405.15362 (V-ZB)).

Each rank holds two chunks of a V, so its F and I come from either neighbour. The search fills the timelines of all
ranks round by round: an I on each rank, then an F on each rank that has one; W goes into waits, or where memory is
short. A wait is filled unless it is free of charge: short enough not to make the rank the idlest. As later waits tell
which rank that is, the timelines are filled again, with the idle times of the filling before, as long as that gains.
Two yes-or-no choices stay open and all answers are tried.

All stages are taken to last their mean, as in the authors' code: by their own durations the rules can ask for an
action whose input nobody has made, and where they do not, the orders are no better.
"""

from collections import deque
from itertools import product
from typing import NamedTuple

from sim.schedules.base import Shape, Work
from sim.schedules.ir import Action, Kind


def search_zbv(shape: Shape, work: Work, limit: float) -> tuple[tuple[Action, ...], ...]:
    """Return every rank's actions in the best order found.

    No rank ever keeps more than `limit` chunk activations (a microbatch makes two).

    limit: what `limit_refusal` admits, 2 p for the authors' own.
    """
    lasts, best = _means(shape.ranks, work), None
    room = max(limit, 2 * shape.ranks)  # less is only admitted where it holds all microbatches
    for answers in product((True, False), repeat=2):
        tried = _settled(shape, lasts, room, answers)
        if best is None or tried.most_idle < best.most_idle:
            best = tried
        if not best.most_idle:
            break
    assert best
    return best.orders()


def limit_refusal(shape: Shape) -> tuple[str, object, str] | None:
    """Return (field, value, allowed) of a `memory_limit` in chunk activations that the search cannot keep, or None.

    Before its first I the last rank has one microbatch more on either chunk than the rank before, and so on down to
    the first rank's one: p microbatches, or all.
    """
    smallest = 2 * min(shape.ranks, shape.microbatches)
    if shape.memory_limit and not shape.memory_limit >= smallest:  # a NaN is neither
        return "memory_limit", shape.memory_limit, f"{smallest} or more chunk activations (0: the schedule's own)"
    return None


class _Lasts(NamedTuple):
    """Durations of an action of each kind, as `Kind` numbers them, and of a message."""

    forward: int
    input: int
    weight: int
    message: int


def _means(p: int, work: Work) -> _Lasts:
    """Return means over all stages and over all boundaries between ranks, times 2 p (p - 1): whole numbers."""
    boundaries = max(1, p - 1)
    forward, input_, weight = (sum(lasts) * boundaries for lasts in (work.forward, work.input, work.weight))
    return _Lasts(forward, input_, weight, p * (sum(work.message[1:p]) + sum(work.message[p + 1 :])))


def _settled(shape: Shape, lasts: _Lasts, limit: float, answers: tuple[bool, ...]) -> "_Filling":
    filling = _Filling(shape, lasts, limit, answers, [0] * shape.ranks)
    while filling.most_idle:
        again = _Filling(shape, lasts, limit, answers, [filling.most_idle - idle for idle in filling.idle])
        if again.most_idle >= filling.most_idle:
            break
        filling = again
    return filling


class _Filling:
    """The timelines of all ranks, filled on creation.

    may_overrun: whether a wait that is shorter than W and not free of charge is filled with W before an I of the
    upper stage, and before an F; before an I of the lower stage it always is. slack: idle time that each rank may
    have before it is the idlest.
    """

    def __init__(
        self, shape: Shape, lasts: _Lasts, limit: float, may_overrun: tuple[bool, ...], slack: list[int]
    ) -> None:
        self.p, self.m, self.lasts, self.slack = shape.ranks, shape.microbatches, lasts, slack
        self.before_upper_input, self.before_forward = may_overrun
        self.limit = limit + 1e-9  # rounding of shares is no excess
        self.keeps = (1.0, -shape.input_frees, shape.input_frees - 1)  # F, I, W
        self.kept = [0.0] * self.p
        self.ends: tuple[list[list[int]], ...] = tuple([[] for _ in range(2 * self.p)] for _ in (Kind.F, Kind.I))
        self.order: list[list[tuple[int, Kind]]] = [[] for _ in range(self.p)]
        self.weights: list[deque[int]] = [deque() for _ in range(self.p)]
        """Per rank, the stages of the W that are to be done."""
        self.free, self.idle, self.most_idle = [0] * self.p, [0] * self.p, 0
        self._fill()

    def _fill(self) -> None:
        """Put every action."""
        self._warm_up()
        for _ in range(2 * self.m):
            for rank, stage in self._inputs():
                self._wait_and_put(rank, Kind.I, stage, stage == rank or self.before_upper_input)
            for rank in range(self.p):
                stage = self._forward(rank)
                if stage >= 0:
                    while self.kept[rank] + 1 > self.limit:
                        self._put_weight(rank)
                    self._wait_and_put(rank, Kind.F, stage, self.before_forward)
        for rank, waiting in enumerate(self.weights):
            while waiting:
                self._put_weight(rank)

    def orders(self) -> tuple[tuple[Action, ...], ...]:
        """Return each rank's actions; those of one kind and stage take the microbatches in turn."""
        turns = {(s, kind): iter(range(self.m)) for s in range(2 * self.p) for kind in (Kind.F, Kind.I, Kind.W)}
        return tuple(tuple(Action(*what, next(turns[what])) for what in rank) for rank in self.order)

    def _warm_up(self) -> None:
        """Put the forwards before the first I; on each rank one more of the upper stage than on the rank before."""
        for rank in range(self.p):
            self._put_forward(rank, rank)
        for rank in reversed(range(self.p)):
            while rank < self.p - 1 and self._another_fits(rank):
                for before in range(rank + 1):
                    self._put_forward(before, before)
            self._put_forward(rank, self._upper(rank))
        upper = False
        for rank in range(1, self.p):
            while self._lags(rank):
                for after in reversed(range(rank, self.p)):
                    stage = self._upper(after) if upper else after
                    if self._done(Kind.F, stage) < self.m:
                        self._put_forward(after, stage)
                upper = not upper

    def _another_fits(self, rank: int) -> bool:
        """Return whether one more F of the lower stage ends before the first F of the upper stage may start.

        It leaves room for that one and for the two by which every rank is to be ahead of the one before.
        """
        ends_in_time = self.free[rank] + self.lasts.forward <= self._arrival(Kind.F, self._upper(rank))
        return ends_in_time and self.kept[rank] + 2 * (rank + 1) <= self.limit and self._done(Kind.F, rank) < self.m

    def _lags(self, rank: int) -> bool:
        """Return whether a rank has fewer F than the one before, or no more of the upper stage."""
        lower, upper = self._done(Kind.F, rank), self._done(Kind.F, self._upper(rank))
        lower_before, upper_before = self._done(Kind.F, rank - 1), self._done(Kind.F, self._upper(rank - 1))
        return lower + upper < lower_before + upper_before or upper <= upper_before < self.m

    def _inputs(self) -> list[tuple[int, int]]:
        """Return (rank, stage) of a round's I: of lower stages from the last rank up, then of upper stages down."""
        done = list(map(len, self.ends[Kind.I]))
        lower, upper = [], []
        for rank in range(self.p):
            k, over = done[rank], done[self._upper(rank)]
            if k < over and (rank == self.p - 1 or over == self.m or k < done[rank + 1]):
                lower.append((rank, rank))
            else:
                upper.append((rank, self._upper(rank)))
        return lower[::-1] + upper

    def _forward(self, rank: int) -> int:
        """Return the stage of a rank's next F: the upper one if its input is there; -1 if there is none."""
        upper = self._upper(rank)
        k, over = self._done(Kind.F, rank), self._done(Kind.F, upper)
        if over == self.m:
            return -1
        if over < k and (rank == self.p - 1 or over < self._done(Kind.F, upper - 1)):
            return upper
        fed = over == k or (k < self.m and (rank == 0 or k < self._done(Kind.F, rank - 1)))
        return rank if fed else -1

    def _wait_and_put(self, rank: int, kind: Kind, stage: int, may_overrun: bool) -> None:
        """Put the next F or I of a stage, before it W while it is on its way, and one more where waiting costs."""
        waiting, arrives = self.weights[rank], self._arrival(kind, stage)
        while waiting and self.free[rank] + self.lasts.weight <= arrives:
            self._put_weight(rank)
        free_of_charge = max(self.most_idle, self.slack[rank]) - self.idle[rank]
        if may_overrun and waiting and arrives - self.free[rank] > free_of_charge:
            self._put_weight(rank)
        self._put(rank, kind, stage, arrives)

    def _upper(self, rank: int) -> int:
        return 2 * self.p - 1 - rank

    def _done(self, kind: Kind, stage: int) -> int:
        return len(self.ends[kind][stage])

    def _arrival(self, kind: Kind, stage: int) -> int:
        """Return when the next F or I of a stage has what it needs from another rank (0: nothing)."""
        feeder = stage - 1 if kind is Kind.F else stage + 1
        if max(stage, feeder) == self.p or not 0 <= feeder < 2 * self.p:
            return 0
        ends = self.ends[kind]
        return ends[feeder][len(ends[stage])] + self.lasts.message

    def _put_forward(self, rank: int, stage: int) -> None:
        self._put(rank, Kind.F, stage, self._arrival(Kind.F, stage))

    def _put_weight(self, rank: int) -> None:
        self._append(rank, Kind.W, self.weights[rank].popleft())

    def _put(self, rank: int, kind: Kind, stage: int, arrives: int) -> None:
        wait = arrives - self.free[rank]
        if wait > 0:
            self.free[rank] = arrives
            if self.order[rank]:
                self.idle[rank] += wait
                self.most_idle = max(self.most_idle, self.idle[rank])
        self._append(rank, kind, stage)
        self.ends[kind][stage].append(self.free[rank])
        if kind is Kind.I:
            self.weights[rank].append(stage)

    def _append(self, rank: int, kind: Kind, stage: int) -> None:
        self.free[rank] += self.lasts[kind]
        self.kept[rank] += self.keeps[kind]
        self.order[rank].append((stage, kind))
