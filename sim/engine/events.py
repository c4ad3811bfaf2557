"""Event engine: operations as simpy events on an integer clock; what they share slows them down as they run."""

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

import numpy as np
import simpy

from sim.engine.fluid import Fluid
from sim.engine.graph import DeadlockError, graph_of, waiting_cycle
from sim.engine.program import Program, Run, Sharing, Stream
from sim.engine.timeline import Durations, Timeline
from sim.schedules import Action, Schedule

Guest = Callable[["World"], Generator[simpy.Event, Any, Any]]
"""A process from outside, such as data loading or a checkpoint: a generator of simpy events."""


class World:
    """A program under way.

    An operation starts as soon as nothing holds it back: the one before it in its lane, the sources of its edges
    (with their lags), and the guests that hold it.
    """

    def __init__(self, program: Program, sharing: Sharing | None) -> None:
        graph, n = program.graph, len(program)
        self.env, self.program = simpy.Environment(), program
        self.fluid = Fluid(self.env, program, sharing) if sharing else None
        self.start, self.end = [-1] * n, [-1] * n
        self._duration = program.duration.tolist()
        follows = graph.previous >= 0
        self._missing = (np.diff(graph.first) + follows).tolist()
        after = np.full(n, -1)
        after[graph.previous[follows]] = np.flatnonzero(follows)
        self._next = after.tolist()
        by_source = np.argsort(graph.source, kind="stable")
        self._waiting = np.repeat(np.arange(n), np.diff(graph.first))[by_source].tolist()
        self._lag = program.lag[by_source].tolist()
        self._waiting_from = np.searchsorted(graph.source[by_source], np.arange(n + 1)).tolist()
        self._watched: dict[int, simpy.Event] = {}
        self._awaited: dict[int, simpy.Event] = {}
        self.left = n
        """How many operations have not ended."""

    def operations(self, rank: int, action: Action) -> list[int]:
        """Return the operations of an action of a rank, in their order."""
        g, (stage, kind, microbatch) = self.program.graph, action
        same = (g.rank == rank) & (g.stage == stage) & (g.kind == kind) & (g.microbatch == microbatch)
        return [int(i) for i in np.flatnonzero(same)]

    def hold(self, operation: int) -> Callable[[], None]:
        """Keep an operation from starting until the returned function is called (once).

        Raises:
            ValueError: the operation has started.
        """
        if self.start[operation] >= 0:
            raise ValueError(f"operation {operation} has started at {self.start[operation]}")
        self._missing[operation] += 1
        return lambda: self._arrive(operation)

    def started(self, operation: int) -> simpy.Event:
        """Return an event that happens when an operation starts."""
        event = self._awaited.setdefault(operation, self.env.event())
        if self.start[operation] >= 0 and not event.triggered:
            event.succeed()
        return event

    def ended(self, operation: int) -> simpy.Event:
        """Return an event that happens when an operation ends."""
        event = self._watched.setdefault(operation, self.env.event())
        if self.end[operation] >= 0 and not event.triggered:
            event.succeed()
        return event

    def occupy(self, rank: int, stream: Stream, ticks: int, links: Iterable[int] = ()) -> simpy.Event:
        """Return an event that happens when `ticks` of work on a rank's stream, and on links, are done.

        The work starts now and shares what operations share.
        """
        done = self.env.event()
        if self.fluid:
            self.fluid.add(rank, stream, tuple(links), ticks, done.succeed)
        else:
            self._after(ticks, done.succeed)
        return done

    def run(self, guests: Iterable[Guest] = ()) -> Run:
        """Run everything and return when operations ran; raises DeadlockError."""
        for guest in guests:
            self.env.process(guest(self))
        self.launch()
        self.env.run()
        return self.result()

    def launch(self) -> None:
        """Let operations start from the next instant on: guests hold them in their first one, before that."""
        self._after(0, self._begin)

    def result(self) -> Run:
        """Return when operations ran; raises DeadlockError where some have not, InputError where a guest holds them."""
        end = np.array(self.end, dtype=np.int64)
        if (end < 0).any():
            raise DeadlockError(waiting_cycle(self.program.graph, end >= 0))
        return Run(self.program, np.array(self.start, dtype=np.int64), end)

    def _begin(self) -> None:
        for i in [i for i, missing in enumerate(self._missing) if missing == 0]:
            if self.start[i] < 0:
                self._start(i)

    def _after(self, ticks: int, then: Callable[[], Any]) -> None:
        timeout = self.env.timeout(ticks)
        timeout.callbacks.append(lambda _: then())

    def _start(self, i: int) -> None:
        self.start[i] = int(self.env.now)
        if i in self._awaited and not self._awaited[i].triggered:
            self._awaited[i].succeed()
        if self.fluid:
            self.fluid.add_operation(i, lambda: self._finish(i))
        else:
            self._after(self._duration[i], lambda: self._finish(i))

    def _finish(self, i: int) -> None:
        self.end[i] = int(self.env.now)
        self.left -= 1
        if i in self._watched and not self._watched[i].triggered:
            self._watched[i].succeed()
        if self._next[i] >= 0:
            self._arrive(self._next[i])
        for e in range(self._waiting_from[i], self._waiting_from[i + 1]):
            waiting = self._waiting[e]
            if self._lag[e]:
                self._after(self._lag[e], partial(self._arrive, waiting))
            else:
                self._arrive(waiting)

    def _arrive(self, i: int) -> None:
        self._missing[i] -= 1
        if self._missing[i] == 0:
            self._start(i)


def run_events_of(program: Program, sharing: Sharing | None = None, guests: Iterable[Guest] = ()) -> Run:
    """Return when the operations of `program` run by discrete events, slowed by what they share.

    Without `sharing` every operation takes its own duration. Raises DeadlockError.
    """
    return World(program, sharing).run(guests)


def run_events(schedule: Schedule, durations: Durations) -> Timeline:
    """Return the timeline of `schedule` by discrete events with nothing shared; raises DeadlockError."""
    return Timeline.of(schedule, run_events_of(durations.program(graph_of(schedule))))
