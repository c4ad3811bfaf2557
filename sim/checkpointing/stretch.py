"""Training from one failure to the next: stepped through on processes, or jumped over, equal to the tick.

Between two checkpoints everything repeats: nothing is in flight when a snapshot begins. So the processes run one
interval of each k, and of it only the steps beside which something is saved; all others are alike.
"""

from bisect import bisect_left
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, pairwise
from math import ceil
from typing import Protocol

import simpy

from sim.checkpointing.durations import Times
from sim.checkpointing.processes import MORE_STEPS, Checkpointer, Trainer
from sim.engine.clock import to_ticks
from sim.specs.fields import InputError, Told
from sim.units import seconds

MOST_BESIDE = 1_000_000


@dataclass(frozen=True)
class Reached:
    """Where training is after some ticks: steps done and when the last ended, steps that a failure leaves and when the
    snapshot of them began, checkpoints written, and since when how many steps lie between two: (tick, steps)."""

    steps: int
    ended: int
    saved: int
    saved_at: int
    checkpoints: int
    changes: tuple[tuple[int, int], ...]


class Stretch(Protocol):
    """Training that began at tick 0 from a state that is saved."""

    def at(self, ticks: int) -> Reached:
        """Return where training is just before `ticks`."""

    def end_of(self, step: int) -> int:
        """Return the tick at which a step (from 1) ends."""


@dataclass(frozen=True)
class Interval:
    """From the beginning of a snapshot to that of the next, k steps later, in ticks.

    `ends` are those of the first steps, which saving may hold up; any other takes `step`. `written`: when the snapshot
    can be read (-1: there is none).
    """

    k: int
    ends: tuple[int, ...]
    step: int
    length: int
    written: int

    def done(self, ticks: int) -> int:
        """Return the steps that have ended before `ticks`."""
        beyond = ticks - 1 - (self.ends[-1] if self.ends else 0)
        if beyond < 0:
            return bisect_left(self.ends, ticks)
        return min(self.k, len(self.ends) + beyond // self.step)

    def end_of(self, step: int) -> int:
        """Return when a step (from 1) ends."""
        if step <= len(self.ends):
            return self.ends[step - 1]
        return (self.ends[-1] if self.ends else 0) + (step - len(self.ends)) * self.step


def interval(times: Times, k: int) -> Interval:
    """Return one interval with a snapshot at its beginning, run on processes as far as something is saved.

    Raises:
        InputError: more than a million steps are run while something is saved.
    """
    busy = times.snapshot_s + times.written_s * (1 + times.contention)
    few = min(k, ceil(busy / times.iteration_s) + 2)
    if few > MOST_BESIDE:
        allowed = f"at most {MOST_BESIDE} steps of {seconds(times.iteration_s)}, which are run one by one"
        raise InputError("checkpointing.storage", Told(f"{seconds(busy)} in which a snapshot is saved"), allowed)
    held, more = _beginning(times, few), (k - few) * step_ticks(times)
    return replace(held, k=k, length=held.length + more)


@lru_cache(maxsize=4_096)
def _beginning(times: Times, few: int) -> Interval:
    """Return an interval of `few` steps, all of them run."""
    env = simpy.Environment()
    checkpointer = Checkpointer(env, times, few)
    trainer = Trainer(env, checkpointer)

    def run() -> Generator[simpy.Event, None, None]:
        yield checkpointer.begin(0)
        yield env.process(trainer.run(few))

    env.process(run())
    env.run()
    persists = [span for span in checkpointer.spans if span.kind == "persist"]
    begins = persists if times.kind == "none" else [span for span in checkpointer.spans if span.kind == "snapshot"]
    return Interval(few, tuple(trainer.ends), step_ticks(times), begins[1].start_ns, persists[0].end_ns)


@lru_cache(maxsize=4_096)
def step_ticks(times: Times) -> int:
    """Return the ticks of a step that nothing holds up."""
    env = simpy.Environment()
    trainer = Trainer(env, Checkpointer(env, times, 2))
    env.process(trainer.run(1))
    env.run()
    return trainer.ends[0]


class Jumped:
    """A stretch of which only the intervals that differ are run."""

    def __init__(self, times: Times, steps_between: int, adapt_budget: float | None = None) -> None:
        self.times, self.adapt_budget, step = times, adapt_budget, step_ticks(times)
        self.intervals = [
            Interval(steps_between, (), step, steps_between * step, -1),
            interval(times, steps_between),
        ]
        """The first, without a snapshot; those that adaptation lengthens, as far as anybody asked; of those that keep
        to the budget one, that all others repeat."""

    def _longer(self) -> Interval | None:
        """Return the interval that adaptation puts after the last one known: None if that keeps to the budget."""
        last = self.intervals[-1]
        if self.adapt_budget is None:
            return None
        if last.length <= to_ticks((1 + self.adapt_budget) * last.k * self.times.iteration_s):
            return None
        return interval(self.times, last.k + MORE_STEPS)

    def _walk(self, ticks: int | None, step: int | None) -> tuple[Interval, int, int, int]:
        """Return the interval in which a tick or a step lies, ticks and steps before it, and its number."""
        start = done = 0
        for number in count():
            held = self.intervals[number]
            if (ticks is not None and ticks <= start + held.length) or (step is not None and step <= done + held.k):
                return held, start, done, number
            if number == len(self.intervals) - 1:
                longer = self._longer()
                if longer is None:
                    break
                self.intervals.append(longer)
            start, done = start + held.length, done + held.k
        # what ends at the very tick or step of the next interval's beginning still belongs to this one
        more = max(0, (ticks - start - 1) // held.length if ticks is not None else ((step or 0) - done - 1) // held.k)
        return held, start + more * held.length, done + more * held.k, number + more

    def at(self, ticks: int) -> Reached:
        """Return where training is just before `ticks`."""
        held, start, done, number = self._walk(ticks, None)
        steps = done + held.done(ticks - start)
        written = number > 0 and held.written < ticks - start
        before = self.intervals[min(number, len(self.intervals)) - 1] if number else held
        saved, saved_at = (done, start) if written else (done - before.k, start - before.length)
        count = number - (not written) if number else 0
        if count == 0:
            saved = saved_at = 0
        ended = self.end_of(steps) if steps else 0
        return Reached(steps, ended, saved, saved_at, count, self._changes(ticks))

    def _changes(self, ticks: int) -> tuple[tuple[int, int], ...]:
        """Return those before `ticks`."""
        found, start = [(0, self.intervals[0].k)], 0
        for before, held in pairwise(self.intervals):
            start += before.length
            if held.k != before.k and start < ticks:
                found.append((start, held.k))
        return tuple(found)

    def end_of(self, step: int) -> int:
        """Return the tick at which a step (from 1) ends."""
        held, start, done, _ = self._walk(None, step)
        return start + held.end_of(step - done)


class Stepped:
    """A stretch whose every step is run on the processes."""

    def __init__(self, times: Times, steps_between: int, adapt_budget: float | None = None) -> None:
        self.env = simpy.Environment()
        self.checkpointer = Checkpointer(self.env, times, steps_between, adapt_budget)
        self.trainer = Trainer(self.env, self.checkpointer)
        self.env.process(self.trainer.run(10**12))

    def at(self, ticks: int) -> Reached:
        """Return where training is just before `ticks`."""
        if ticks > self.env.now:
            self.env.run(until=ticks)
        keeper, ends = self.checkpointer, self.trainer.ends
        steps = bisect_left(ends, ticks)
        spans = [span for span in keeper.spans if span.end_ns < ticks]
        written = [span for span in spans if span.kind == "persist"]
        saved = written[-1].step if written else 0
        begun = next((span.start_ns for span in spans if saved and span.step == saved), 0)
        changes = (keeper.changes[0], *(change for change in keeper.changes[1:] if change[0] < ticks))
        return Reached(steps, ends[steps - 1] if steps else 0, saved, begun, len(written), changes)

    def end_of(self, step: int) -> int:
        """Return the tick at which a step (from 1) ends."""
        while len(self.trainer.ends) < step:
            self.env.step()
        return self.trainer.ends[step - 1]
