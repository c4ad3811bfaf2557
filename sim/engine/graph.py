"""What both engines run: operations in lanes, and explicit edges between them."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sim.schedules import Action, Kind, Schedule
from sim.specs.fields import InputError

Ints = NDArray[np.int64]
NOTHING = np.empty(0, dtype=np.int64)


class DeadlockError(ValueError):
    """An order in which some actions wait for each other; `cycle` names them."""

    def __init__(self, cycle: list[Action]) -> None:
        self.cycle = cycle
        super().__init__("deadlock: " + " waits for ".join(map(str, [*cycle, cycle[0]])))


@dataclass(frozen=True, eq=False)
class Graph:
    """Operations of all ranks; arrays share the index. In the graph of a schedule each is one action.

    lane: operations of one lane follow each other in the order of their indices. Operation i waits, beside the one
    before it in its lane, for `source[first[i]:first[i + 1]]`; boundary: the stage s of an edge whose data travels
    between stages s - 1 and s of different ranks, or -1. second: the operation runs as one with the one before it
    (a fused pair): both start with that one and end with this one.
    """

    rank: Ints
    stage: Ints
    kind: Ints
    microbatch: Ints
    lane: Ints
    first: Ints
    source: Ints
    boundary: Ints
    second: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rank)

    def action(self, index: int) -> Action:
        """Return the action at `index`."""
        return Action(int(self.stage[index]), Kind(int(self.kind[index])), int(self.microbatch[index]))

    @cached_property
    def previous(self) -> Ints:
        """The operation before each one in its lane, or -1."""
        order = np.argsort(self.lane, kind="stable")
        previous = np.full(len(self), -1)
        follows = np.flatnonzero(np.diff(self.lane[order]) == 0)
        previous[order[follows + 1]] = order[follows]
        return previous

    @cached_property
    def first_of_rank(self) -> Ints:
        """The index of every rank's first operation, where those of a rank stand together."""
        return np.flatnonzero(np.diff(self.rank, prepend=-1))

    @cached_property
    def cell(self) -> Ints:
        """The place of each operation's stage and kind in a flat table [stage, kind]."""
        return self.stage * len(Kind) + self.kind

    @cached_property
    def lasts(self) -> Ints:
        """The operations that complete the weight gradients of every stage before an update of its rank."""
        last: dict[int, int] = {}
        found: set[int] = set()
        for i, (s, kind) in enumerate(zip(self.stage.tolist(), self.kind.tolist(), strict=True)):
            if kind in (Kind.B, Kind.W):
                last[s] = i
            elif kind in (Kind.REDUCE_GRAD, Kind.OPTIMIZER):
                found |= set(last.values())
                last = {}
        return np.array(sorted(found), dtype=np.int64)

    @cached_property
    def rows(self) -> tuple[Ints, Ints, Ints]:
        """The F that their rank lets another F follow at once, and the B and the W that another follows."""
        same = (self.kind[1:] == self.kind[:-1]) & (self.rank[1:] == self.rank[:-1])
        forwards, backwards, weights = (np.flatnonzero(same & (self.kind[1:] == k)) for k in (Kind.F, Kind.B, Kind.W))
        return forwards, backwards, weights

    @cached_property
    def pairs(self) -> Ints:
        """The indices of the halves of every fused pair: [half, pair]."""
        second = np.flatnonzero(self.second)
        return np.stack([second - 1, second])

    def waits_for(self, index: int) -> list[int]:
        """Return every operation that must end before the one at `index` starts."""
        before = self.previous[index : index + 1]
        sources = self.source[self.first[index] : self.first[index + 1]]
        return [int(i) for i in (*before, *sources) if i >= 0]


@lru_cache(maxsize=16)
def graph_of(schedule: Schedule) -> Graph:
    """Return the graph of a schedule (cached), without looking for a deadlock."""
    lengths = [len(actions) for actions in schedule.actions]
    # No tuple an action: the garbage collector would walk all that is loaded again and again.
    flat = chain.from_iterable(chain.from_iterable(schedule.actions))
    stage, kind, microbatch = np.fromiter(flat, np.int64, 3 * sum(lengths)).reshape(-1, 3).T.copy()
    rank, offset = np.repeat(np.arange(schedule.ranks), lengths), np.cumsum([0, *lengths])
    second = np.zeros(len(rank), dtype=bool)
    second[[offset[r] + at + 1 for r, places in enumerate(schedule.fused) for at in places]] = True
    bare = Graph(rank, stage, kind, microbatch, rank, NOTHING, NOTHING, NOTHING, second)
    waiting, source, boundary = _edges(bare, schedule)
    first = np.searchsorted(waiting, np.arange(len(rank) + 1))
    return replace(bare, first=first, source=source, boundary=boundary)


def _edges(graph: Graph, schedule: Schedule) -> tuple[Ints, Ints, Ints]:
    """Return (operation, what it waits for, boundary) of all edges, by operation.

    F waits for F of the stage before; B and I for the stage's own F and for B or I of the stage after; W for its I;
    with a barrier OPTIMIZER for every REDUCE_GRAD.
    """
    kind, stage, microbatch = graph.kind, graph.stage, graph.microbatch
    computes = microbatch >= 0
    most = int(microbatch.max(initial=0)) + 1
    at = np.full((len(Kind), schedule.stages + 2, most), -1)  # a stage beside each end, where nothing runs
    at[kind[computes], stage[computes] + 1, microbatch[computes]] = np.flatnonzero(computes)
    place, depth = stage % schedule.depth, schedule.depth
    found = []

    def add(mask: NDArray[np.bool_], of: tuple[Kind, ...], shift: int) -> None:
        waiting = np.flatnonzero(mask & computes)
        options = [at[k, stage[waiting] + 1 + shift, microbatch[waiting]] for k in of]
        source = options[0] if len(of) == 1 else np.where(options[0] >= 0, *options)
        boundary = stage[waiting] + (shift > 0) if shift else np.full(len(waiting), -1)
        remote = graph.rank[source] != graph.rank[waiting]
        found.append(np.stack([waiting, source, np.where(remote, boundary, -1)])[:, source >= 0])

    backward = (kind == Kind.B) | (kind == Kind.I)
    add((kind == Kind.F) & (place > 0), (Kind.F,), -1)
    add(backward, (Kind.F,), 0)
    add(backward & (place < depth - 1), (Kind.B, Kind.I), 1)
    add(kind == Kind.W, (Kind.I,), 0)
    if schedule.barrier:
        found.append(_all_pairs(np.flatnonzero(kind == Kind.OPTIMIZER), np.flatnonzero(kind == Kind.REDUCE_GRAD)))
    waiting, source, boundary = np.concatenate(found, axis=1)
    # A fused pair starts when both may, and ends when its second action does.
    following = np.append(graph.second[1:], False)
    waiting, source = waiting - graph.second[waiting], source + following[source]
    order = np.argsort(waiting, kind="stable")
    return waiting[order], source[order], boundary[order]


def _all_pairs(waiting: Ints, source: Ints) -> Ints:
    """Return edges from every source to everything that waits."""
    pairs = np.repeat(waiting, len(source)), np.tile(source, len(waiting))
    return np.stack([*pairs, np.full(len(pairs[0]), -1)])


def waiting_cycle(graph: Graph, done: NDArray[np.bool_]) -> list[Action]:
    """Return actions that wait for each other, from the first operation that is not `done`.

    Raises:
        InputError: it waits for no other: a guest of the event engine holds it.
    """
    at, seen = int(np.flatnonzero(~done)[0]), dict[int, None]()
    while at not in seen:
        seen[at] = None
        waits = [w for w in graph.waits_for(at) if not done[w]]
        if not waits:
            raise InputError("guests", f"{graph.action(at)} held for ever", "functions that let go of what they hold")
        at = waits[0]
    path = list(seen)
    return [graph.action(i) for i in path[path.index(at) :]]
