"""Many steps on one clock, beside what outlives a step: data that arrives, snapshots, writing to storage, failures."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import simpy

from sim.engine.graph import Ints
from sim.engine.lockstep import Known, Lockstep
from sim.engine.program import Program, Run, Sharing, Stream
from sim.schedules import Kind, Schedule

REMEMBERED = 32
"""Disturbed steps that are run anew before all are forgotten: where they differ they do not come again."""

Waiting = Generator[simpy.Event, Any, Any]


class Feeder(Protocol):
    """Who hands over training data."""

    def take(self) -> simpy.Event:
        """Return an event that happens when the samples of one microbatch are there."""


class Saver(Protocol):
    """Who keeps training state."""

    @property
    def persisting(self) -> bool:
        """Whether a snapshot is being written to storage."""

    @property
    def last_saved(self) -> int | None:
        """The last step whose state can be read back."""

    def before_update(self) -> simpy.Event:
        """Return an event that happens when no snapshot is being taken."""

    def after_step(self, step: int) -> simpy.Event:
        """Return an event that happens when training may go on after a step."""

    def on_persist(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` when writing begins (True) and ends (False)."""


@dataclass(frozen=True, eq=False)
class Repeated:
    """A step that is run again and again, as it is when nothing disturbs it.

    `ticks`: from one step to the next, with what no operation shows (waiting for the slowest device).
    """

    schedule: Schedule
    run: Run
    ticks: int

    @property
    def program(self) -> Program:
        """The operations."""
        return self.run.program

    @cached_property
    def entries(self) -> Ints:
        """The operation that takes the data of each microbatch, in the order of their starts."""
        graph = self.program.graph
        first = (graph.kind == Kind.F) & (graph.stage % self.schedule.depth == 0)
        first &= graph.microbatch >= 0  # gathers of weights beside the first forwards take none
        ids = np.flatnonzero(first)
        _, at = np.unique(np.stack([graph.stage[ids], graph.microbatch[ids]]), axis=1, return_index=True)
        found = ids[at]
        return np.asarray(found[np.argsort(self.run.start[found], kind="stable")])

    @cached_property
    def asked(self) -> list[int]:
        """When the data of each microbatch is needed, ticks from the step's begin."""
        return [int(t) for t in self.run.start[self.entries]]

    @cached_property
    def updates(self) -> list[int]:
        """The operations that change weights."""
        return [int(i) for i in np.flatnonzero(self.program.graph.kind == Kind.OPTIMIZER)]

    @cached_property
    def first_update(self) -> int:
        """When the first of them starts, ticks from the step's begin."""
        return int(self.run.start[self.updates].min())

    @cached_property
    def _first(self) -> Ints:
        first = np.full(self.schedule.ranks, np.iinfo(np.int64).max)
        np.minimum.at(first, self.program.graph.rank, self.run.start)
        return first

    def until_next(self, run: Run) -> int:
        """Return the ticks from a step's begin to the next one's: no rank begins before it has ended."""

        def free(ends: Ints) -> int:
            last = np.zeros(self.schedule.ranks, dtype=np.int64)
            np.maximum.at(last, self.program.graph.rank, ends)
            return int((last - self._first).max())

        return self.ticks + free(run.end) - free(self.run.end)


@dataclass(frozen=True, eq=False)
class StepSpan:
    """One step: ticks of its begin and of the next one's.

    `data_ticks`: by how much it was late because of data. `run`: when its operations ran, where something disturbed
    them (None: as always). `lost`: a failure took its result away.
    """

    number: int
    begin: int
    end: int
    data_ticks: int = 0
    run: Run | None = None
    lost: bool = False


@dataclass(frozen=True)
class Failure:
    """Why training is interrupted: for how many ticks, and who keeps state afterwards."""

    ticks: int
    saver: Saver | None = None


@dataclass(eq=False)
class Training:
    """Steps of `step`, one after the other until the clock says `until`, which may happen within the last one.

    A step that nothing disturbs is not run again: only its end and the times at which it takes data are waited for.
    Once data is late, and while a snapshot is taken or written, its operations run one by one, held and slowed by that;
    what has come out under the same disturbances at the same ticks is not run again either.
    `sharing` says how much: of writing to storage as `Stream.HOST`, of copying to the host (`copies`) as `Stream.D2H`.
    With `always` every step runs so, which gives the same. `progress` is called with the tick of every step's begin.

    Interrupting the process of `run` with a `Failure` loses all steps since the last one that was saved.
    """

    env: simpy.Environment
    step: Repeated
    sharing: Sharing
    until: int
    feeder: Feeder | None = None
    saver: Saver | None = None
    copies: bool = False
    always: bool = False
    progress: Callable[[int], object] = lambda tick: None
    spans: list[StepSpan] = field(default_factory=list)
    pauses: list[tuple[int, int]] = field(default_factory=list)
    """Begin and end of what failures take until training goes on."""
    done: int = 0
    """Steps whose result is there."""

    def __post_init__(self) -> None:
        self.begin, self.kept, self._data = 0, 0, 0
        self._slows = any(by is Stream.HOST and x > 0 for (_, by), x in self.sharing.slowdown.items())
        self._lock: Lockstep | None = None
        self._known, self._anew = Known(), 0
        self._active: list[Callable[[], None]] = []
        self._feeding: simpy.Process | None = None
        self._listen()

    def run(self) -> Waiting:
        """Yield until the time is over: a process of `env`."""
        while self.begin < self.until:
            self.progress(self.begin)
            try:
                run = yield from self._one()
                end = self.begin + (self.step.until_next(run) if run else self.step.ticks)
                yield self.env.timeout(max(0, end - int(self.env.now)))
                self.done += 1
                self.spans.append(StepSpan(self.done, self.begin, end, self._data, run))
                self.begin, known = end, int(self.env.now)
                if self.saver:
                    yield self.saver.after_step(self.done)
                    self.begin += int(self.env.now) - known
            except simpy.Interrupt as stop:
                failure: Any = stop.cause
                while failure:
                    failure = yield from self._failed(failure)

    @property
    def _writing(self) -> bool:
        return self.saver is not None and self.saver.persisting

    def _one(self) -> Generator[simpy.Event, Any, Run | None]:
        """Run one step; return when its operations ran, if something disturbed them."""
        begin, asked, snapshot = self.begin, self.step.asked, self.saver.before_update() if self.saver else None
        taking = snapshot is not None and not snapshot.triggered
        disturbed = self.always or (taking and self.copies) or (self._slows and (taking or self._writing))
        there, self._data = 0, 0
        while self.feeder and there < len(asked) and (not disturbed or begin + asked[there] <= self.env.now):
            at = max(int(self.env.now), begin + asked[there])
            yield self.feeder.take()
            self._data += max(0, int(self.env.now) - at)
            if self._data:
                disturbed = True
                break
            if not disturbed:
                yield self.env.timeout(max(0, begin + asked[there] - int(self.env.now)))
            there += 1
        if taking and not disturbed:  # nothing slows down, but the update may have to wait
            assert snapshot is not None
            yield self.env.timeout(max(0, begin + self.step.first_update - int(self.env.now)))
            disturbed = not snapshot.triggered
        if not disturbed:
            return None
        lock = self._lock = Lockstep(self.env, self.step.program, self.sharing, begin, self._known)
        entries = self.step.entries.tolist()[there:] if self.feeder else []
        held = [(there + n, i, lock.hold(i)) for n, i in enumerate(entries)]
        taking = snapshot is not None and not snapshot.triggered
        updates = [lock.hold(i) for i in self.step.updates] if taking else []
        lock.launch()
        if taking:
            assert snapshot is not None
            copying = self._keep_active(Stream.D2H) if self.copies else []
            snapshot.callbacks.append(partial(_let_go, (*copying, *updates)))
        if self._slows and self._writing:
            self._persists(True)
        self._feeding = self.env.process(self._feed(lock, held, self._data > 0)) if held else None
        yield lock.done
        self._lock, self._active, self._anew = None, [], self._anew + (lock.world is not None)
        if self._anew > REMEMBERED:
            self._known, self._anew = Known(), 0
        return lock.result()

    def _feed(self, lock: Lockstep, held: list[tuple[int, int, Callable[[], None]]], arrived: bool) -> Waiting:
        """Let go what is held as its data arrives; arrived: that of the first one is there."""
        assert self.feeder
        try:
            for at, operation, let_go in held:
                if not arrived:
                    asked = max(int(self.env.now), self.begin + self.step.asked[at] + self._data)
                    yield self.feeder.take()
                    self._data += max(0, int(self.env.now) - asked)
                arrived = False
                let_go()
                yield lock.started(operation)
        except simpy.Interrupt:
            return

    def _listen(self) -> None:
        saver = self.saver
        if saver and self._slows:
            saver.on_persist(lambda begun: self._persists(begun) if saver is self.saver else None)

    def _persists(self, begun: bool) -> None:
        if not self._lock or self._lock.done.triggered:
            return
        if begun:
            self._active = self._keep_active(Stream.HOST)
            return
        _let_go(self._active)
        self._active = []

    def _keep_active(self, stream: Stream) -> list[Callable[[], None]]:
        assert self._lock
        return [self._lock.keep_active(rank, stream) for rank in range(self.step.schedule.ranks)]

    def _failed(self, failure: Failure) -> Generator[simpy.Event, Any, Any]:
        """Lose what was not saved, wait, and go on with the data that comes next; return the next failure meanwhile."""
        now = int(self.env.now)
        self.kept = max(self.kept, (self.saver.last_saved or 0) if self.saver else 0)
        self._lose()
        if now > self.begin:
            self.spans.append(StepSpan(self.done + 1, self.begin, now, lost=True))
        if self._feeding and self._feeding.is_alive:
            self._feeding.interrupt()
        self._lock, self._active, self.done, self.saver = None, [], self.kept, failure.saver
        self._listen()
        try:
            yield self.env.timeout(max(0, min(failure.ticks, self.until - now)))
        except simpy.Interrupt as stop:
            return stop.cause
        finally:
            self.begin = int(self.env.now)
            self.pauses.append((now, self.begin))
        return None

    def _lose(self) -> None:
        """Mark the steps after the one that is kept as lost; those before the last failure have been."""
        for n in range(len(self.spans) - 1, -1, -1):
            span = self.spans[n]
            if span.lost or span.number <= self.kept:
                return
            self.spans[n] = replace(span, lost=True)


def _let_go(held: Iterable[Callable[[], None]], _: simpy.Event | None = None) -> None:
    for let_go in held:
        let_go()
