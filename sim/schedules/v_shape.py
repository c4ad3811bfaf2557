"""Orders made of one block repeated every six slots, on a V of chunks (Qi et al. 2024, arXiv 2405.15362).

Rank r of p holds stages r and 2 p - 1 - r: forwards go down the ranks and up again, and so do gradients. Time is cut
into slots of one action each. A block gives the slots of one microbatch's two F and two I on every rank; how many
slots it keeps activations alive, over the six of the period, is the memory that the whole schedule needs. W take
free slots. Then the actions at both ends of the schedule, where blocks are missing, move forward into free slots as
far as data and the memory of the steady state let them, first with W in their slots and then regardless of them.
"""

from abc import abstractmethod
from bisect import insort
from collections import deque
from itertools import chain

from sim.schedules.base import ScheduleKind, Shape, Work
from sim.schedules.ir import Action, Kind, Schedule

Block = tuple[int, int, int, int]

PERIOD = 6
"""Slots of a block on a rank: F, I and W of two chunks."""
F_DOWN, F_UP, I_DOWN, I_UP, WEIGHT, FREE = range(6)
Grid = list[int]
"""What one rank does in each slot: one of the six above."""


class VShape(ScheduleKind):
    """A kind whose steady state repeats its block."""

    @abstractmethod
    def block(self, rank: int, p: int) -> Block:
        """Return the slots of the first microbatch's F down, F up, I down and I up on a rank of p."""

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work
        p, m = shape.ranks, shape.microbatches
        grids = [_with_weights(_repeated(self.block(rank, p), m)) for rank in range(p)]
        grids = _packed_bare(_Pulling(grids, m, bare=False).grids)
        grids = _packed_bare([_with_weights(grid) for grid in _Pulling(grids, m, bare=True).grids])
        orders = tuple(_actions(rank, _with_weights(grid), p) for rank, grid in enumerate(grids))
        return Schedule(self.name, m, self.rank_of(shape), orders, input_frees=shape.input_frees)


def _repeated(block: Block, m: int) -> Grid:
    grid = [FREE] * (max(block) + PERIOD * (m - 1) + 1)
    for row, slot in enumerate(block):
        grid[slot : slot + PERIOD * m : PERIOD] = [row] * m
    return grid


def _with_weights(grid: Grid) -> Grid:
    """Put one W for each I in the next free slot."""
    pending, filled = 0, grid.copy()
    for slot, row in enumerate(grid):
        if row in (I_DOWN, I_UP):
            pending += 1
        elif row == FREE and pending:
            filled[slot] = WEIGHT
            pending -= 1
    return filled + [WEIGHT] * pending


def _without_weights(grid: Grid) -> Grid:
    bare = [FREE if row == WEIGHT else row for row in grid]
    while bare[-1] == FREE:
        bare.pop()
    return bare


def _actions(rank: int, grid: Grid, p: int) -> tuple[Action, ...]:
    """Return a rank's actions; a W takes the oldest pending microbatch of the upper stage, if any, or of the lower."""
    lower, upper = rank, 2 * p - 1 - rank
    rows = {F_DOWN: (lower, Kind.F), F_UP: (upper, Kind.F), I_DOWN: (upper, Kind.I), I_UP: (lower, Kind.I)}
    count = dict.fromkeys(rows, 0)
    pending: dict[int, deque[int]] = {upper: deque(), lower: deque()}
    actions = []
    for row in grid:
        if row in rows:
            stage, kind = rows[row]
            actions.append(Action(stage, kind, count[row]))
            if kind is Kind.I:
                pending[stage].append(count[row])
            count[row] += 1
        elif row == WEIGHT:
            stage = upper if pending[upper] else lower
            actions.append(Action(stage, Kind.W, pending[stage].popleft()))
    return tuple(actions)


class _Slots:
    """Slots of what has been put so far, each row's microbatches in turn."""

    def __init__(self, p: int) -> None:
        self.p = p
        self.of: list[list[list[int]]] = [[[] for _ in range(FREE)] for _ in range(p)]
        self.inputs: list[list[int]] = [[] for _ in range(p)]
        """Per rank, the slots of all I, sorted."""

    def earliest(self, rank: int, row: int) -> int:
        """Return the first slot in which the next action of `row` has what it needs."""
        mine = self.of[rank][row]
        k = len(mine)
        after = mine[-1] if k else -1
        if row == WEIGHT:
            return max(after, self.inputs[rank][k]) + 1
        feeder = rank - 1 if row in (F_DOWN, I_DOWN) else rank + 1
        if 0 <= feeder < self.p:
            return max(after, self.of[feeder][row][k]) + 1
        return (max(after, self.of[rank][row - 1][k]) if row else after) + 1

    def put(self, rank: int, row: int, slot: int) -> None:
        """Note the next action of `row`."""
        self.of[rank][row].append(slot)
        if row in (I_DOWN, I_UP):
            insort(self.inputs[rank], slot)


def _in_turn(grids: list[Grid]) -> list[tuple[int, int, int]]:
    """Return (slot, rank, row) of all actions in order of time."""
    return sorted((s, rank, row) for rank, grid in enumerate(grids) for s, row in enumerate(grid) if row != FREE)


def _packed_bare(grids: list[Grid]) -> list[Grid]:
    """Return the same orders with every action in the first slot that its rank and its data allow, without W."""
    slots, packed = _Slots(len(grids)), [Grid() for _ in grids]
    for _, rank, row in _in_turn(grids):
        slot = max(len(packed[rank]), slots.earliest(rank, row))
        slots.put(rank, row, slot)
        packed[rank] += [FREE] * (slot - len(packed[rank])) + [row]
    return list(map(_without_weights, packed))


class _Pulling:
    """Moves actions forward in `grids`, on creation, at no more than the memory that the busiest rank has already.

    The steady state stays: from the first I that comes back to rank 0 to the last microbatch's first F. What comes
    after it moves, and what comes before unless `bare`: without W in the grids, taken to fill the free slots.
    """

    def __init__(self, grids: list[Grid], m: int, bare: bool) -> None:
        self.grids, self.bare = grids, bare
        self.slots = _Slots(len(grids))
        self.alive: list[list[tuple[int, int]]] = [[(0, 0)] for _ in grids]
        """Per rank, before each slot: chunk activations alive, W pending; as far as known."""
        for rank, grid in enumerate(grids):
            self._before(rank, len(grid))
        self.limit = max(alive for alive, _ in chain(*self.alive))
        self._pull(m)

    def _pull(self, m: int) -> None:
        warm_up, steady = True, False
        for slot, rank, row in _in_turn(self.grids):
            if warm_up and row == I_UP and rank == 0:
                warm_up, steady = False, True
            stays = steady or (warm_up and self.bare)
            steady = steady and not (row == F_DOWN and len(self.slots.of[rank][row]) == m - 1)
            self.slots.put(rank, row, slot if stays else self._first_fit(rank, row, slot))

    def _first_fit(self, rank: int, row: int, slot: int) -> int:
        """Move an action from `slot` to the first that is free, late enough and within memory; return it."""
        grid = self.grids[rank]
        for earlier in range(self.slots.earliest(rank, row), slot):
            if grid[earlier] == FREE:
                grid[earlier], grid[slot] = row, FREE
                if self._fits(rank, earlier, slot):
                    del self.alive[rank][earlier + 1 :]
                    return earlier
                grid[earlier], grid[slot] = FREE, row
        return slot

    def _fits(self, rank: int, start: int, stop: int) -> bool:
        """Return whether memory suffices from `start` to `stop`; from there on a move changes nothing for the worse."""
        state, grid = self._before(rank, start), self.grids[rank]
        for slot in range(start, stop):
            state = self._step(state, grid[slot])
            if state[0] > self.limit:
                return False
        return True

    def _before(self, rank: int, slot: int) -> tuple[int, int]:
        known, grid = self.alive[rank], self.grids[rank]
        for at in range(len(known) - 1, slot):
            known.append(self._step(known[-1], grid[at]))
        return known[slot]

    def _step(self, state: tuple[int, int], row: int) -> tuple[int, int]:
        alive, pending = state
        if row in (F_DOWN, F_UP):
            return alive + 1, pending
        if row in (I_DOWN, I_UP):
            return alive, pending + 1
        if pending and (self.bare or row == WEIGHT):
            return alive - 1, pending - 1
        return state
