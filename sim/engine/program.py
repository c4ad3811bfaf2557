"""A graph with durations: what one run is made of, and what its operations share while they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from sim.engine.graph import NOTHING, Graph, Ints


class Stream(IntEnum):
    """What an operation keeps busy on its device; operations of different streams may run side by side."""

    COMPUTE = 0
    COLLECTIVE = 1
    H2D = 2
    D2H = 3
    HOST = 4
    LINK = 5
    """A message on its way: it keeps links busy, and no device."""


class Cause(IntEnum):
    """What an operation is for."""

    PASS = 0
    INNER = 1
    DATA = 2
    MESSAGE = 3
    UPDATE = 4
    OFFLOAD = 5


@dataclass(frozen=True, eq=False)
class Program:
    """Operations with integer durations (ticks while nothing is shared) and edges with lags.

    duration[i]: of operation i; lag[e]: ticks between the end of edge e's source and what waits for it. stream[i]: a
    `Stream` (empty: all compute). links[first_link[i]:first_link[i + 1]]: the links that operation i sends over
    (empty: none does). cause[i]: what operation i is for (empty: its kind of action says it). sent[i]: ticks in which
    the message of operation i, a lag, keeps its rank from sending another (empty: none does).
    """

    graph: Graph
    duration: Ints
    lag: Ints
    stream: Ints = field(default_factory=lambda: NOTHING)
    first_link: Ints = field(default_factory=lambda: NOTHING)
    links: Ints = field(default_factory=lambda: NOTHING)
    cause: Ints = field(default_factory=lambda: NOTHING)
    sent: Ints = field(default_factory=lambda: NOTHING)

    def __len__(self) -> int:
        return len(self.graph)


Slowdown = Mapping[tuple[Stream, Stream], float]
"""How much slower the second stream of a pair makes the first, while both are active on a device."""


@dataclass(frozen=True)
class Sharing:
    """How operations that run at once slow each other down.

    slowdown[a, b]: an operation of stream a progresses at 1 / (1 + the sum over the streams b that are active on its
    device): the fluid contention model of Mist (EuroSys '25), 12 numbers for compute, collectives and both directions
    of host copies. own[r]: these pairs of rank r, in place of those of all (copies of a pipeline take them in turn).
    links: whether the operations on one link divide it equally. source: where the numbers come from.
    """

    slowdown: Slowdown = field(default_factory=dict)
    links: bool = True
    source: str = ""
    own: Sequence[Slowdown] = ()

    def on(self, rank: int) -> Slowdown:
        """Return the slowdowns on a rank."""
        return {**self.slowdown, **self.own[rank % len(self.own)]} if self.own else self.slowdown


@dataclass(frozen=True, eq=False)
class Run:
    """When every operation of a program started and ended, in ticks."""

    program: Program
    start: Ints
    end: Ints

    @property
    def makespan(self) -> int:
        """Ticks from the first start to the last end."""
        return int(self.end.max() - self.start.min())
