"""First in, first out: jobs start in order of arrival and keep their devices to the end (arXiv 2008.09213, 4.2)."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from sim.cluster.policies.base import Policy
from sim.cluster.policies.packing import gains_together
from sim.cluster.programs import pairs_runnable, runnable
from sim.cluster.state import Floats, Ints, State

GAIN = 1.5
"""Of the throughputs of two jobs together over those alone, above which the second joins the first."""


class Fifo(Policy):
    """The job at the head of the queue takes a type at random of those with room; where it has none, all wait.

    With `gavel_parity` types are listed by name and the published queue is kept as it is: it draws a type and then
    gives the one last listed, whose devices may by that be promised many times over; whoever does not run on that type
    loses the turn; and where a job has ended the head of the queue takes its type, if it can.
    """

    name = "fifo"
    aware = False
    strict = True

    def __init__(self, seed: int = 0, gavel_parity: bool = False) -> None:
        super().__init__(seed, gavel_parity)
        self._draw = random.Random(seed)
        self._held: dict[int, int] = {}
        """Column of the type that a job, by its id, runs on."""

    def allocate(self, state: State) -> Floats:
        """Return X (n + k, m): 1 where a job runs, for all others 0."""
        row = {int(job): at for at, job in enumerate(state.ids)}
        room = state.devices.copy()
        if self.gavel_parity:
            self._published(state, row, room)
        else:
            self._held = {job: column for job, column in self._held.items() if job in row}
            for job, column in self._held.items():
                room[column] -= state.scale[row[job]]
            waiting = [job for job in row if job not in self._held]
            started, _ = started_in_order(state, [row[job] for job in waiting], room, self._drawn)
            self._held |= {int(state.ids[at]): column for at, column in started.items()}
        shares = np.zeros((state.jobs + len(state.pairs.jobs), len(state.types)))
        for job, column in self._held.items():
            shares[row[job], column] = 1.0
        return shares

    def _drawn(self, _row: int, columns: Ints) -> int:
        return int(columns[self._draw.randrange(len(columns))])

    def _published(self, state: State, row: dict[int, int], room: Ints) -> None:
        held, scale = self._held, state.scale
        queue = sorted(set(row) - set(held))
        for job in sorted(held):
            column = held[job]
            if job in row:
                room[column] -= scale[row[job]]
                continue
            if queue:
                head = queue[0]
                if scale[row[head]] <= room[column] and state.steps_per_s[row[head], column] > 0:
                    held[queue.pop(0)] = column
                    room[column] -= scale[row[head]]
            del held[job]
        listed = [column for column in by_name(state) if room[column] > 0]
        while queue and listed:
            head = queue.pop(0)
            fits = [at for at, column in enumerate(listed) if room[column] >= scale[row[head]]]
            if not fits:
                break
            drawn, last = fits[self._draw.randrange(len(fits))], listed[-1]
            if state.steps_per_s[row[head], last] == 0:
                continue
            held[head] = last
            room[last] -= scale[row[head]]
            if room[last] == 0:
                listed.pop(drawn)


class FifoPerf(Policy):
    """The job at the head of the queue takes the type of those with room that is fastest for it; moves if one is free.

    With `gavel_parity` a job loses its turn where no type that it runs on has room, but another has.
    """

    name = "fifo_perf"
    strict = True

    def allocate(self, state: State) -> Floats:
        """Return X (n + k, m): 1 where a job or a pair runs, for all others 0."""
        columns = by_name(state) if self.gavel_parity else list(range(len(state.types)))

        def fastest(row: int, fits: Ints) -> int:
            return max((c for c in columns if c in fits), key=lambda column: float(state.steps_per_s[row, column]))

        queue, room = list(range(state.jobs)), state.devices.copy()
        held, waiting = started_in_order(state, queue, room, fastest, self.gavel_parity)
        shares = np.zeros((state.jobs + len(state.pairs.jobs), len(state.types)))
        for row, column in (self._joined(state, held, waiting, room) if self.packs else held).items():
            shares[row, column] = 1.0
        return shares

    def _joined(self, state: State, held: dict[int, int], waiting: list[int], room: Ints) -> dict[int, int]:
        """Return the rows with those that wait beside whom they gain most with, in order until one has no partner."""
        pairs = {(int(a), int(b)): at for at, (a, b) in enumerate(np.sort(state.pairs.jobs, axis=1))}
        fits, gains = pairs_runnable(state, self.gavel_parity), gains_together(state)
        queue = waiting[1:] if self.gavel_parity and (room > 0).any() else waiting
        rows = dict(held)
        for job in queue:
            best: float = GAIN
            partner: tuple[int, int] | None = None
            for other, column in rows.items():
                at = pairs.get((min(job, other), max(job, other)))
                if other < state.jobs and at is not None and fits[at, column] and gains[at, column] > best:
                    best, partner = float(gains[at, column]), (other, at)
            if partner is None:
                break
            rows[state.jobs + partner[1]] = rows.pop(partner[0])
        return rows


class FifoPacked(FifoPerf):
    """The same, and jobs that wait may join one that runs."""

    name = "fifo_packed"
    packs = True


Choose = Callable[[int, Ints], int]
"""Of a row of the state and the columns of types with room for it, the one that it takes."""


def started_in_order(
    state: State, queue: Sequence[int], room: Ints, choose: Choose, everywhere: bool = False
) -> tuple[dict[int, int], list[int]]:
    """Return the type of every row that starts, and the rows that wait; takes devices (m,) from `room`.

    Jobs that no type runs are passed over; `everywhere` also those that do not run where there is room.
    """
    runs = np.ones((state.jobs, len(room)), dtype=bool) if everywhere else runnable(state)
    started: dict[int, int] = {}
    queue = [row for row in queue if runs[row].any()]
    for at, row in enumerate(queue):
        fits = np.flatnonzero(runs[row] & (room >= state.scale[row]))
        if not len(fits):
            return started, queue[at:]
        column = choose(row, fits)
        if state.steps_per_s[row, column] > 0:
            started[row] = column
            room[column] -= state.scale[row]
    return started, []


def by_name(state: State) -> list[int]:
    """Return the columns of the types in order of their names."""
    return sorted(range(len(state.types)), key=lambda column: state.types[column])
