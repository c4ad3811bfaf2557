"""What a run of a schedule leaves: when every action started and ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

import numpy as np

from sim.engine.graph import NOTHING, Graph, Ints
from sim.engine.program import Program, Run
from sim.schedules import Action, Kind, Schedule, Work


@dataclass(frozen=True, eq=False)
class Durations:
    """Integer durations: `of_kind[kind][stage]` and the latency `message[stage]` of what a stage receives.

    `message[s]` is charged between stages s - 1 and s in either direction; `back[s]` from s to s - 1, if it is given.
    Less than nothing, it leaves before a pass is done, or its receiver is under way before it needs it. hidden: ticks
    by which each fused pair, in the order of the graph, is shorter than its halves one after the other. longer:
    ticks by which each action takes longer than others of its kind and stage; aside: more ticks, which its message does
    not wait for (both empty where nothing does). sending[s]: ticks in which a message between stages s - 1 and s keeps
    its rank from sending another (empty: none does).
    """

    of_kind: Mapping[Kind, Ints]
    message: Ints
    back: Ints | None = None
    hidden: Ints = field(default_factory=lambda: NOTHING)
    longer: Ints = field(default_factory=lambda: NOTHING)
    aside: Ints = field(default_factory=lambda: NOTHING)
    sending: Ints = field(default_factory=lambda: NOTHING)

    @classmethod
    def uniform(cls, stages: int, times: Mapping[Kind, int], message: int = 0) -> "Durations":
        """Return the same durations on all stages."""
        return cls({k: np.full(stages, t) for k, t in times.items()}, np.full(stages, message))

    def work(self) -> Work:
        """Return the durations of F, I and W for a kind of schedule that searches its order."""
        columns = (*(self.of_kind[k] for k in (Kind.F, Kind.I, Kind.W)), self.message)
        return Work(*(tuple(map(int, column)) for column in columns))

    def program(self, graph: Graph) -> Program:
        """Return the operations of a schedule's graph with these durations."""
        table = np.zeros((len(self.message), len(Kind)), dtype=np.int64)
        for kind, values in self.of_kind.items():
            table[:, kind] = values
        took = table.ravel()[graph.cell]
        if len(self.hidden):
            first, second = took[graph.pairs]
            shorter = self.hidden * first // np.maximum(1, first + second)  # both by one share: none below nothing
            took[graph.pairs] -= np.stack([shorter, self.hidden - shorter])
        if len(self.longer):
            took += self.longer + self.aside
        # Boundary -1 reads the zero at the end.
        lag = np.append(self.message, 0)[graph.boundary]
        if self.back is not None:
            forward = np.repeat(graph.kind == Kind.F, np.diff(graph.first))
            lag = np.where(forward, lag, np.append(self.back, 0)[graph.boundary])
            if len(self.aside):
                lag = lag - np.where(graph.boundary >= 0, self.aside[graph.source], 0)
            lag = np.maximum(lag, -took[graph.source])  # nobody is served before its server begins
        return Program(graph, took, lag, sent=self._sent(graph))

    def _sent(self, graph: Graph) -> Ints:
        if not self.sending.any() or graph.second.any():  # the halves of a pair end together, and both may send
            return NOTHING
        sent, away = np.zeros(len(graph), dtype=np.int64), graph.boundary >= 0
        sent[graph.source[away]] = self.sending[graph.boundary[away]]
        return sent


@dataclass(frozen=True, eq=False)
class Timeline:
    """Start and end of every action, in integer ticks (nanoseconds in a training step).

    Of a fused pair both actions have the times of the pair. `run`: the operations behind the actions; begin[i]: the
    operation that action i starts with.
    """

    schedule: Schedule
    graph: Graph
    start: Ints
    end: Ints
    run: Run
    begin: Ints

    @classmethod
    def of(cls, schedule: Schedule, run: Run) -> "Timeline":
        """Return the timeline of a run whose operations are the schedule's actions."""
        graph, start, end = run.program.graph, run.start, run.end
        begin, second = np.arange(len(graph)), np.flatnonzero(graph.second)
        if len(second):
            start, end = start.copy(), end.copy()
            start[second], end[second - 1] = start[second - 1], end[second]
            begin[second] -= 1
        return cls(schedule, graph, start, end, run, begin)

    @property
    def zero(self) -> int:
        """When the first operation starts: that of an action, or a collective before the first action."""
        return int(self.run.start.min())

    @property
    def makespan(self) -> int:
        """Ticks from the first start to the last end."""
        return self.run.makespan

    @property
    def period(self) -> int:
        """Ticks from one step to the next: the makespan, or the longest rank span where no barrier holds ranks up."""
        return self.makespan if self.schedule.barrier else int(self.spans().max())

    def took(self) -> Ints:
        """Return the ticks that each action takes; a fused pair counts once."""
        return (self.end - self.start) * ~self.graph.second

    def busy(self) -> Ints:
        """Return busy ticks per rank."""
        return np.bincount(self.graph.rank, self.took(), self.schedule.ranks).astype(np.int64)

    def spans(self) -> Ints:
        """Return, per rank, the ticks from its first start to its last end."""
        first, last = self.first_and_last()
        return last - first

    def first_and_last(self) -> tuple[Ints, Ints]:
        """Return each rank's first start and last end."""
        edges = self.graph.first_of_rank
        return np.minimum.reduceat(self.start, edges), np.maximum.reduceat(self.end, edges)

    def decides(self) -> int:
        """Return the rank that the next step waits for: the last one, or without a barrier that of the longest span."""
        return int(np.argmax(self.first_and_last()[1] if self.schedule.barrier else self.spans()))

    def bubble_makespan(self) -> float:
        """Return idle over ideal: (makespan - busiest rank) / busiest rank (Megatron-LM's definition)."""
        ideal = int(self.busy().max())
        return (self.makespan - ideal) / ideal

    def bubble_fraction(self) -> float:
        """Return idle over the total: (makespan - busiest rank) / makespan."""
        return (self.makespan - int(self.busy().max())) / self.makespan

    def bubble_rank_span(self) -> float:
        """Return the idle share of the longest rank span (the zero-bubble papers' definition)."""
        spans = self.spans()
        longest = int(np.argmax(spans))
        return float((spans[longest] - self.busy()[longest]) / spans[longest])

    def action(self, index: int) -> Action:
        """Return the action at `index`."""
        return self.graph.action(index)


def exact_ticks(values: Mapping[str, str]) -> dict[str, int]:
    """Return decimal numbers as integers of one common unit, exactly: {"F": "1", "B": "2.5"} -> 2 and 5.

    Raises:
        ValueError: a value is not a decimal number >= 0.
    """
    exact = {name: Fraction(text) for name, text in values.items()}
    negative = [name for name, value in exact.items() if value < 0]
    if negative:
        raise ValueError(f"{negative[0]}: got {values[negative[0]]}; allowed: a number >= 0")
    unit = lcm(*(value.denominator for value in exact.values()))
    return {name: int(value * unit) for name, value in exact.items()}
