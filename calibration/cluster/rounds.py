"""Jobs in rounds on slots, as somebody else assigns them: what moves is saved there and restored here.

Round n lasts from `n * round_s` to `(n + 1) * round_s` whoever ends in it, as simulated rounds do: a slot whose job has
ended stays idle until then. Jobs that stay where they are run on; of the others those that leave are saved, all at
once, then those that come are restored, and what that takes is lost to their slots alone.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter, sleep

from calibration.cluster.worker import Done, Order, Slot, SlotError
from sim.specs.fields import InputError

Assign = Callable[[int, Mapping[str, int]], Mapping[str, str]]
"""Number of the round, steps left by job -> job by slot."""

MOST_ROUNDS = 10_000


@dataclass(frozen=True)
class Round:
    """What ran where from `begin_s` to `end_s` (0: the start of all); moving_s: before those that came began."""

    begin_s: float
    end_s: float
    moving_s: float
    jobs: Mapping[str, str]
    """By slot."""
    steps: Mapping[str, int]
    """Done, by job."""


@dataclass(frozen=True)
class Move:
    """A job that was saved and, in round `to_round`, restored on a slot (its old one again, if others ran there)."""

    job: str
    to: str
    to_round: int
    save_s: float
    load_s: float


@dataclass(frozen=True)
class Ran:
    """What happened; `completion_s` by job."""

    rounds: tuple[Round, ...]
    moves: tuple[Move, ...]
    completion_s: Mapping[str, float]


def run_rounds(
    slots: Mapping[str, Slot],
    steps: Mapping[str, int],
    assign: Assign,
    round_s: float,
    clock: Callable[[], float] = perf_counter,
    wait: Callable[[float], object] = sleep,
) -> Ran:
    """Run every job until it has done its steps; `wait` lets so many seconds of the clock pass.

    Raises:
        InputError: an assignment names an unknown slot, a job that has ended, one job twice, or nothing at all.
        SlotError: a worker failed, or a job did not come back with the steps it left with.
    """
    runner = _Runner(slots, dict(steps), clock)
    while runner.left:
        if len(runner.rounds) == MOST_ROUNDS:
            raise InputError("round_s", round_s, f"rounds in which jobs end, of which there have been {MOST_ROUNDS}")
        wanted = dict(assign(len(runner.rounds), dict(runner.left)))
        _check(wanted, slots, runner.left)
        runner.round(wanted, (len(runner.rounds) + 1) * round_s)
        if runner.left:
            wait(max(0.0, len(runner.rounds) * round_s - runner.now_s))
    return Ran(tuple(runner.rounds), tuple(runner.moves), runner.completion_s)


def _check(wanted: Mapping[str, str], slots: Mapping[str, Slot], left: Mapping[str, int]) -> None:
    if not wanted:
        raise InputError("assignment", {}, f"a slot for one of {', '.join(left)}")
    for slot, job in wanted.items():
        if slot not in slots:
            raise InputError("assignment", slot, "one of " + ", ".join(slots))
        if job not in left:
            raise InputError(f"assignment.{slot}", job, "one of " + ", ".join(left))
    if len(set(wanted.values())) < len(wanted):
        raise InputError("assignment", list(wanted.values()), "each job once")


class _Runner:
    """The jobs and where they are."""

    def __init__(self, slots: Mapping[str, Slot], left: dict[str, int], clock: Callable[[], float]) -> None:
        self.slots, self.left, self.clock = slots, left, clock
        self.begin = clock()
        self.held: dict[str, str] = {}
        self.done = dict.fromkeys(left, 0)
        self.saved_s: dict[str, float] = {}
        self.rounds: list[Round] = []
        self.moves: list[Move] = []
        self.completion_s: dict[str, float] = {}

    @property
    def now_s(self) -> float:
        """Seconds since the start of all."""
        return self.clock() - self.begin

    def round(self, wanted: dict[str, str], until_s: float) -> None:
        """Make an assignment true, and run it."""
        begin_s = self.now_s
        stays = {slot: job for slot, job in wanted.items() if self.held.get(slot) == job}
        self._run(stays, until_s)
        self._leave(wanted)
        self._come(wanted)
        started_s = self.now_s
        self._run({slot: job for slot, job in wanted.items() if slot not in stays}, until_s)
        ran = self._answers(wanted)
        for slot, job in wanted.items():
            self.done[job] += ran[slot].steps
            self.left[job] -= ran[slot].steps
            if not self.left[job]:
                self.completion_s[job] = (begin_s if slot in stays else started_s) + ran[slot].seconds
                del self.left[job]
        self.rounds.append(
            Round(
                begin_s=begin_s,
                end_s=self.now_s,
                moving_s=started_s - begin_s,
                jobs=wanted,
                steps={job: ran[slot].steps for slot, job in wanted.items()},
            )
        )

    def _run(self, jobs: Mapping[str, str], until_s: float) -> None:
        left_s = max(0.0, until_s - self.now_s)
        self._ask({slot: Order("run", job, left_s, self.left[job]) for slot, job in jobs.items()})

    def _leave(self, wanted: Mapping[str, str]) -> None:
        leaving = {slot: job for slot, job in self.held.items() if wanted.get(slot) != job}
        orders = {slot: Order("save" if job in self.left else "drop", job) for slot, job in leaving.items()}
        for slot, done in self._all(orders).items():
            if leaving[slot] in self.left:
                self.saved_s[leaving[slot]] = done.seconds
            del self.held[slot]

    def _come(self, wanted: Mapping[str, str]) -> None:
        coming = {slot: job for slot, job in wanted.items() if slot not in self.held}
        for slot, done in self._all({slot: Order("place", job) for slot, job in coming.items()}).items():
            job = self.held[slot] = coming[slot]
            if done.steps != self.done[job]:
                raise SlotError(f"{job} came to {slot} with {done.steps} steps, and had done {self.done[job]}")
            if job in self.saved_s:
                self.moves.append(Move(job, slot, len(self.rounds), self.saved_s.pop(job), done.seconds))

    def _all(self, orders: Mapping[str, Order]) -> dict[str, Done]:
        """Carry out orders of several slots at once."""
        self._ask(orders)
        return self._answers(orders)

    def _ask(self, orders: Mapping[str, Order]) -> None:
        for slot, order in orders.items():
            self.slots[slot].ask(order)

    def _answers(self, slots: Iterable[str]) -> dict[str, Done]:
        return {slot: self.slots[slot].answer() for slot in slots}
