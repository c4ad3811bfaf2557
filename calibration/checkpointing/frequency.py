"""How often to save: what the start of training shows, and what each interval says later (CheckFreq, FAST '21)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Annotated

from calibration.checkpointing.training import Run
from sim.checkpointing import Times
from sim.specs.fields import real, spec, whole

WARMING = 3
LEAST_FREE = 3
"""Steps without a checkpoint beside them that tell what a step takes now."""

STEP_UP = 2
ROOM = 0.8
"""Share of the budget below which fewer steps between saves are tried again (an assumption: 1 would swing)."""


@dataclass(frozen=True)
class Effort:
    """How long profiling trains: rounds of about `alone_s` seconds (two steps at least) before and after each save."""

    rounds: int = 5
    alone_s: float = 0.4


def profiled(run: Run, effort: Effort | None = None) -> Times:
    """Return what a step and the parts of saving take, by training on and saving; medians.

    Reading goes from finding the file to the trainer's tensors; pages that the system keeps of it are given up before.
    A step's time and its update are taken alone, copy and writing (t_c, and t_f less it) while training stands still.
    contention: what steps beside a save lose of it, after what the copy exposes, over the seconds of writing.
    Nothing of a snapshot hides where the engine copies in the call.
    """
    effort = effort or Effort()
    for _ in range(WARMING):  # takes the room for copies, and the system's for as many files as there ever are
        step_s = _timed(run)
        run.save()
        run.checkpointer.wait()
    few = max(2, round(effort.alone_s / step_s))
    first = len(run.checkpointer.spans)
    alone, updates, reloads = list[float](), list[float](), list[float]()
    for _ in range(effort.rounds):
        for _ in range(few):
            alone.append(_timed(run))
            updates.append(run.updated_s)
        run.save()
        run.checkpointer.wait()
        run.checkpointer.forget()
        begin = perf_counter()
        run.rewind(run.at)
        reloads.append(perf_counter() - begin)
    standing = run.checkpointer.spans[first:]
    step_s = median(alone)
    snapshot_s, persist_s = (median(s.seconds for s in standing if s.kind == kind) for kind in ("snapshot", "persist"))
    update_s = min(step_s, median(updates)) if run.checkpointer.engine.hides else step_s
    exposed_s = max(0.0, snapshot_s - (step_s - update_s))
    lost = [_lost_s(run, few) - exposed_s for _ in range(effort.rounds)]
    return Times(
        iteration_s=step_s,
        update_s=update_s,
        host_snapshot_s=snapshot_s,
        persist_s=persist_s,
        reload_s=median(reloads),
        state_bytes=float(run.checkpointer.saved_bytes),
        contention=max(0.0, median(lost)) / persist_s,
    )


def _timed(run: Run) -> float:
    begin = perf_counter()
    run.step()
    return perf_counter() - begin


def _lost_s(run: Run, few: int) -> float:
    """Return by how much the steps beside one save take longer than those before and after it."""
    around = [_timed(run) for _ in range(few)]
    begin, steps = perf_counter(), 0
    run.save()
    while run.checkpointer.persisting or not steps:
        run.step()
        steps += 1
    spent = perf_counter() - begin
    around += [_timed(run) for _ in range(few)]
    return spent - steps * median(around)


@spec
class Frequency:
    """Steps between two saves that follow what saving really costs.

    `steps_between`: k at first, by the rule, below which it never falls; `iteration_s`: t_i. An interval over the
    budget leaves two steps more for the next (the paper); when what it lost would be within `ROOM` of the budget with
    one step less, and the file be written in time, it goes back by one.
    """

    steps_between: Annotated[int, whole(1, 10**9)]
    iteration_s: Annotated[float, real(1e-9, 1e6, "s")]
    overhead_budget: Annotated[float, real(1e-4, 1.0)] = 0.035


@dataclass
class Adapted:
    """A `Frequency` at work; `steps_between` is k now, `iteration_s` what a step takes now."""

    given: Frequency
    steps_between: int = field(init=False)
    iteration_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.steps_between, self.iteration_s = self.given.steps_between, self.given.iteration_s

    def interval(self, seconds: float, written_s: float, free_s: Sequence[float] = ()) -> float:
        """Take notice of k steps that took so long with their save; return their overhead, a fraction.

        written_s: from the beginning of the snapshot until it could be read; free_s: steps that no save was beside.
        Where there are enough of these, t_i becomes their median: what slows every step is no cost of saving, and
        saving less would not help.
        """
        if len(free_s) >= LEAST_FREE:
            self.iteration_s = median(free_s)
        k, step_s = self.steps_between, self.iteration_s
        lost_s = seconds - k * step_s
        if lost_s > self.given.overhead_budget * k * step_s:
            self.steps_between += STEP_UP
        elif (
            k > self.given.steps_between
            and lost_s <= ROOM * self.given.overhead_budget * (k - 1) * step_s
            and written_s <= (k - 1) * step_s
        ):
            self.steps_between -= 1
        return lost_s / (k * step_s)


@dataclass(frozen=True)
class Interval:
    """k steps with the save that began them; at_s since the start."""

    at_s: float
    steps_between: int
    seconds: float
    overhead: float


def adapting(run: Run, frequency: Frequency, steps: int) -> Iterator[Interval]:
    """Train so many steps, saving as often as intervals allow; yield each interval when it has ended."""
    begin, last, adapted = perf_counter(), run.at + steps, Adapted(frequency)
    while run.at < last:
        k, since, free = adapted.steps_between, perf_counter(), list[float]()
        run.save()
        for _ in range(k):
            beside = run.checkpointer.persisting
            step_s = _timed(run)
            if not beside:
                free.append(step_s)
        run.checkpointer.wait()
        now = perf_counter()
        written_s = run.checkpointer.spans[-1].end_s - since
        yield Interval(now - begin, k, now - since, adapted.interval(now - since, written_s, free))
