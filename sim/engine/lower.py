"""A training step taken apart for the event engine: collectives in lanes of their own, messages on links.

Where the compiled path charges an action what stays exposed of the collectives beside it (closed forms of
`costs.stage`), here they run beside it: layer by layer where a pass hides something, else in one piece.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from sim.engine.assembly import (
    COMPUTED,
    INSIDE,
    OFFLOAD,
    PASSES,
    Costs,
    exposed_tied,
    on_ranks,
    pass_seconds,
    pass_terms,
    tied_reduce,
)
from sim.engine.clock import tick_array, to_ticks
from sim.engine.copies import Copies, Moves, Where
from sim.engine.graph import Graph, Ints, graph_of
from sim.engine.program import Cause, Program, Run, Stream
from sim.engine.timeline import Timeline
from sim.schedules import SCHEDULES, Kind, Schedule


class Lane(IntEnum):
    """Lanes of a rank: its actions; collectives of fused pairs; gathers of weights; reductions of gradients; copies."""

    MAIN = 0
    PAIR = 1
    GATHER = 2
    REDUCE = 3
    H2D = 4
    D2H = 5


class Link(IntEnum):
    """Links of a rank, each way apart: between nodes and inside one."""

    INTER_OUT = 0
    INTER_IN = 1
    INTRA_OUT = 2
    INTRA_IN = 3

    def of(self, rank: int) -> int:
        """Return the number of this link of a rank."""
        return len(Link) * rank + self


# Looking up a member of an enumeration takes as long as adding an operation.
_MAIN, _PAIR, _GATHER, _REDUCE = map(int, (Lane.MAIN, Lane.PAIR, Lane.GATHER, Lane.REDUCE))
_COMPUTE, _COLLECTIVE, _LINK = map(int, (Stream.COMPUTE, Stream.COLLECTIVE, Stream.LINK))
_PASS, _INNER, _DATA = map(int, (Cause.PASS, Cause.INNER, Cause.DATA))
_B, _W = int(Kind.B), int(Kind.W)

_PARTS = (COMPUTED, INSIDE, ("dp",))
"""Terms of a pass: what computes, what it waits for, what ends of ZeRO-2 and 3 leave exposed."""


@dataclass(frozen=True)
class Layout:
    """What a plan says beyond costs: layers of every stage; which traffic leaves the node (dp and inner by rank, pp by
    the stage that a message enters); what runs side by side."""

    layers: tuple[int, ...]
    outside: Mapping[str, tuple[bool, ...]]
    overlap_dp: bool


@dataclass(frozen=True, eq=False)
class Lowered:
    """A program, the first and the last operation of every action, and the seconds in which each rank adds up a table
    that it shares, where an operation of it does that together with the other gradients."""

    program: Program
    begin: Ints
    finish: Ints
    tied: NDArray[np.float64]

    def timeline(self, schedule: Schedule, run: Run) -> Timeline:
        """Return when the actions ran."""
        return Timeline(schedule, graph_of(schedule), run.start[self.begin], run.end[self.finish], run, self.begin)


def lower(schedule: Schedule, costs: Costs, traffic: Costs, layout: Layout) -> Lowered:
    """Return the operations of a step; `traffic` are the values of `costs.stage.traffic` on every chunk and rank.

    Raises:
        InputError: as `tick_array`, by the time of a whole pass.
    """
    tick_array(list(pass_seconds(costs, schedule.depth, schedule.pipelines).values()))
    return _Lowering(schedule, costs, traffic, layout).build()


def _ways(outside: bool) -> tuple[Link, Link]:
    return (Link.INTER_OUT, Link.INTER_IN) if outside else (Link.INTRA_OUT, Link.INTRA_IN)


def _ring(rank: int, outside: bool) -> tuple[int, int]:
    """Return the links of a rank that a collective keeps busy."""
    out, into = _ways(outside)
    return out.of(rank), into.of(rank)


class _Lowering:
    """Operations under construction, in lists that become arrays."""

    def __init__(self, schedule: Schedule, costs: Costs, traffic: Costs, layout: Layout) -> None:
        self.schedule, self.layout = schedule, layout
        self.graph = graph_of(schedule)
        self.rows: list[int] = []
        """Eight numbers an operation, flat: a tuple each would keep the garbage collector busy."""
        self.sources: list[int] = []
        self.waiting: list[int] = []
        self.rings = {name: [_ring(r, out) for r, out in enumerate(each)] for name, each in layout.outside.items()}
        self.links: list[tuple[int, ...]] = []
        self.joined: dict[int, list[int]] = {}
        """What the next operation of a rank waits for."""
        self.last_main: dict[int, int] = {}
        self.last_beside: dict[tuple[int, int], int] = {}
        self.delayed = SCHEDULES[schedule.name].delayed and layout.overlap_dp
        self.reducing: dict[int, int] = {}
        ranks = schedule.ranks
        self.passes = _passes(costs, schedule.depth, schedule.pipelines)
        self.ends = _ends_of_passes(costs, schedule.depth, schedule.pipelines)
        self.gather, self.scatter = (
            np.tile(np.zeros(schedule.depth) + np.ravel(traffic[n]), schedule.pipelines).tolist()
            for n in ("gather", "scatter")
        )
        self.alone = {kind: [self._alone(kind, s) for s in range(schedule.stages)] for kind in self.passes}
        """Ticks of a pass's compute and of its collectives, by kind and stage, where nothing runs beside them."""
        self.flushes = not SCHEDULES[schedule.name].asynchronous
        parts = ("reduced", "late", "regathered")
        self.reduced, self.late, self.regathered = (on_ranks(traffic, n, schedule) for n in parts)
        self.optimizer = on_ranks(costs, "optimizer", schedule)
        self.rank_layers = np.maximum(1, np.bincount(schedule.rank_of, layout.layers, ranks))
        # Without flush there is no first forward of a step beside which to gather what was updated.
        self.bucket = (self.reduced + (0 if self.flushes else 1) * self.regathered) / self.rank_layers
        self.costs, self.tied = costs, tied_reduce(costs, schedule)
        self.message = tick_array(np.tile(np.zeros(schedule.depth) + costs["send"], schedule.pipelines))
        self.copies = Copies(schedule, self.graph, costs, self._copy, self.delayed)

    def build(self) -> Lowered:
        """Return everything put together."""
        graph = self.graph
        lasts = set(graph.lasts.tolist())
        begin, finish = [0] * len(graph), [0] * len(graph)
        regathers = self._regather() if self.layout.overlap_dp and self.flushes else {}
        second = graph.second.tolist()
        pair = (np.append(graph.second[1:], False) | graph.second).tolist()
        updates = np.isin(graph.kind, (Kind.REDUCE_GRAD, Kind.OPTIMIZER)).tolist()
        columns = graph.rank.tolist(), graph.stage.tolist(), graph.kind.tolist(), graph.microbatch.tolist()
        for i, where in enumerate(zip(*columns, strict=True)):
            if updates[i]:
                begin[i], finish[i] = self._update(where)
            else:
                moves = self.copies.of_pass(i, where, max(1, self.layout.layers[where[1]]))
                begin[i], finish[i] = self._pass(where, pair[i], regathers.get(i, ()), i in lasts, moves)
            if second[i]:
                begin[i] = begin[i - 1]
                finish[i - 1 : i + 1] = [self._join(where, finish[i - 1 : i + 1])] * 2
        return self._assembled(np.array(begin, dtype=np.int64), np.array(finish, dtype=np.int64))

    def _regather(self) -> dict[int, list[int]]:
        """Add the parameter gathers that ZeRO-1 runs beside every stage's first forward; return them by forward."""
        found: dict[int, list[int]] = {}
        forwards = np.flatnonzero(self.graph.kind == Kind.F)
        for i in sorted(forwards[np.unique(self.graph.stage[forwards], return_index=True)[1]].tolist()):
            rank, s = int(self.graph.rank[i]), int(self.graph.stage[i])
            share = self.regathered[rank] / self.rank_layers[rank]
            if share:
                where = rank, s, int(Kind.F), -1
                found[i] = [self._beside(where, _GATHER, share) for _ in range(self.layout.layers[s])]
        return found

    def _op(self, where: Where, lane: int, stream: int, cause: int, ticks: int) -> int:
        self.rows += (*where, lane, stream, cause, ticks)
        self.links.append(())
        return len(self.links) - 1

    def _wait(self, waiting: int, sources: Sequence[int]) -> None:
        """Add an edge from each of the sources to an operation."""
        self.sources += sources
        self.waiting += [waiting] * len(sources)

    def _main(self, where: Where, stream: int, cause: int, ticks: int) -> int:
        i = self._op(where, _MAIN, stream, cause, ticks)
        self._wait(i, self.joined.pop(where[0], []))
        self.last_main[where[0]] = i
        return i

    def _join(self, where: Where, both: Sequence[int]) -> int:
        """Add the end of a fused pair, which its rank's next action waits for."""
        i = self._op(where, _PAIR, _LINK, _PASS, 0)
        self._wait(i, both)
        self.joined.setdefault(where[0], []).append(i)
        return i

    def _beside(self, where: Where, lane: int, seconds: float, after: Sequence[int] = ()) -> int:
        i = self._op(where, lane, _COLLECTIVE, _DATA, to_ticks(seconds))
        self.links[i] = self.rings["dp"][where[0]]
        self._wait(i, after)
        self.last_beside[where[0], lane] = i
        return i

    def _copy(self, where: Where, leaves: bool, seconds: float, after: Sequence[int]) -> int:
        lane, stream = (Lane.D2H, Stream.D2H) if leaves else (Lane.H2D, Stream.H2D)
        i = self._op(where, int(lane), int(stream), int(Cause.OFFLOAD), to_ticks(seconds))
        self._wait(i, after)
        return i

    def _pass(
        self, where: Where, fused: bool, waits: Sequence[int], last: bool, moves: Moves | None
    ) -> tuple[int, int]:
        """Add one pass and the collectives beside it; return its first operation and the one that ends it."""
        rank, s, kind, _ = where
        if (alone := self.alone[kind][s]) and not (fused or waits or moves or (last and self.bucket[rank])):
            main = self._main(where, _COMPUTE, _PASS, alone[0])
            return main, self._inner(where, False, main, alone[1])
        overlap = self.layout.overlap_dp
        compute, inner, data = self.passes[kind][s]
        gather, scatter = self._sharded(kind, s)
        bucket = self.bucket[rank] if last and overlap else 0.0
        if not overlap:
            data, gather, scatter = data + gather + scatter, 0.0, 0.0
        sliced = bool(waits or gather or scatter or bucket or moves or (fused and inner))
        n = max(1, self.layout.layers[s]) if sliced else 1
        # What embedding and head compute hides no collectives of the layers (copies: `costs.offload` does not part it).
        before, after = self.ends[kind][s] if sliced and not (fused or moves) else (0.0, 0.0)
        begin = finish = self._main(where, _COMPUTE, _PASS, to_ticks(before)) if before else -1
        # A layer's weights are gathered while the layer before it runs, and no sooner.
        ready = [[self.last_main[rank]] if rank in self.last_main else []] * 2
        pieces = zip(_split(compute - before - after, n), _split(inner, n), strict=True)
        for piece, (ticks, more) in enumerate(pieces):
            fetched = moves.fetch() if moves else []
            if gather:
                fetched = [self._beside(where, _GATHER, gather / n, [*ready[0], *fetched])]
            copied = moves.before(piece) if moves else []
            main = self._main(where, _COMPUTE, _PASS, ticks)
            self._wait(main, [*fetched, *copied, *waits[piece : piece + 1]])
            finish = self._inner(where, fused, main, more)
            reduced = []
            if scatter or bucket:
                reduced = [self._beside(where, _REDUCE, scatter / n + bucket, [finish])]
            if moves:
                # A delayed reduction has a buffer of its own: what leaves is added up here and makes room at once.
                leaves = reduced if scatter or not self.delayed else []
                moves.after(piece, finish, fetched[0] if gather else finish, leaves)
            ready = [ready[1], [finish]]
            begin = main if begin < 0 else begin
        if after:
            finish = self._main(where, _COMPUTE, _PASS, to_ticks(after))
        if data:
            finish = self._main(where, _COLLECTIVE, _DATA, to_ticks(data))
            self.links[finish] = self.rings["dp"][rank]
        if scatter:  # the engines of ZeRO-2 and 3 end a backward pass when its gradients are in their shards
            self.joined.setdefault(rank, []).append(self.last_beside[rank, _REDUCE])
        return begin, finish

    def _sharded(self, kind: int, s: int) -> tuple[float, float]:
        """Return the seconds of ZeRO's gathers and reductions beside a pass."""
        return self.gather[s] if kind != _W else 0.0, self.scatter[s] if kind in (_B, _W) else 0.0

    def _alone(self, kind: int, s: int) -> tuple[int, int] | None:
        compute, inner, data = self.passes[kind][s]
        return None if data or any(self._sharded(kind, s)) else (to_ticks(compute), to_ticks(inner))

    def _inner(self, where: Where, fused: bool, after: int, ticks: int) -> int:
        """Add the collectives that a pass waits for; those of a fused pair leave the main lane free."""
        if not ticks:
            return after
        lane = _PAIR if fused else _MAIN
        i = self._op(where, lane, _COLLECTIVE, _INNER, ticks)
        self.links[i] = self.rings["inner"][where[0]]
        self._wait(i, [after])
        if not fused:
            self.last_main[where[0]] = i
        return i

    def _update(self, where: Where) -> tuple[int, int]:
        """Add the reduction that nothing hides, after all that ran beside; or the optimizer."""
        rank, kind = where[0], where[2]
        rest = self.late[rank] + self.tied[rank]
        if not self.layout.overlap_dp:
            rest += self.reduced[rank] + self.regathered[rank]
        i = -1
        waits: list[int] = []
        if self.delayed:  # these gradients are reduced beside the next step, which the update after it waits for
            own = self._beside(where, _REDUCE, float(rest), [self.last_main[rank]])
            waits, self.reducing[rank] = [self.reducing[rank]] if rank in self.reducing else [], own
        elif kind == Kind.REDUCE_GRAD or not self.flushes:  # without flush every update reduces its own gradients
            i = self._main(where, _COLLECTIVE, _DATA, to_ticks(float(rest)))
            self.links[i] = self.rings["dp"][rank]
            self._wait(i, [self.last_beside[rank, lane] for lane in Lane if (rank, lane) in self.last_beside])
        if kind == Kind.OPTIMIZER:
            seconds = float(self.optimizer[rank])
            if self.copies.moves_states(rank):
                begin, i = self._swapped_update(where, seconds)
            else:
                begin = i = self._main(where, _COMPUTE, int(Cause.UPDATE), to_ticks(seconds))
            self._wait(begin, waits)
            return begin, i
        return i, i

    def _swapped_update(self, where: Where, seconds: float) -> tuple[int, int]:
        """Add an update whose states come and go piece by piece; return its begin and its end.

        What comes once a step (gradient norm, logging) goes before, and hides no copies.
        """
        rank, kernels = where[0], float(self.copies.kernels[where[0]])
        begin = i = self._main(where, _COMPUTE, int(Cause.UPDATE), to_ticks(seconds - kernels))
        stages = [s for s, r in enumerate(self.schedule.rank_of) if r == rank]
        pieces = _parted(kernels, self.copies.shares(rank))
        for ticks, (arrived, leave) in zip(pieces, self.copies.of_update(where, stages, begin), strict=True):
            i = self._main(where, _COMPUTE, int(Cause.UPDATE), ticks)
            self._wait(i, arrived)
            i = leave(i)
        end = self._main(where, _COMPUTE, int(Cause.UPDATE), 0)
        self._wait(end, [i])
        return begin, end

    def _connected(self, begin: Ints, finish: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the rows of the messages, their links, and [source, waiting] of the edges between operations.

        Those of the edges between actions; what crosses ranks becomes a message.
        """
        graph, n = self.graph, len(self.links)
        waiting = np.repeat(np.arange(len(graph)), np.diff(graph.first))
        sent = np.flatnonzero((graph.boundary >= 0) & (self.message[graph.boundary] > 0))
        # From one rank to another they go one after the other, as NCCL's do in their stream.
        sent = sent[np.argsort(graph.source[sent], kind="stable")]
        to, of, boundary = waiting[sent], graph.source[sent], graph.boundary[sent]
        message, each = n + np.arange(len(sent)), np.ones(len(sent), dtype=np.int64)
        pair = self.schedule.ranks * graph.rank[of] + graph.rank[to]
        rows = [
            graph.rank[of], graph.stage[to], graph.kind[to], graph.microbatch[to],
            len(Lane) + pair, _LINK * each, int(Cause.MESSAGE) * each, self.message[boundary],
        ]  # fmt: skip
        ways = np.array([_ways(outside) for outside in self.layout.outside["pp"]], dtype=np.int64)[boundary]
        links = len(Link) * np.stack([graph.rank[of], graph.rank[to]], axis=1) + ways
        source = finish[graph.source]
        edges = np.array([[*source[sent], *source], [*message, *begin[waiting]]], dtype=np.int64)
        edges[0, len(sent) + sent] = message
        return np.stack(rows), links, edges

    def _assembled(self, begin: Ints, finish: Ints) -> Lowered:
        messages, ways, between = self._connected(begin, finish)
        own = np.array(self.rows, dtype=np.int64).reshape(-1, 8).T
        rank, stage, kind, microbatch, lane, stream, cause, ticks = np.concatenate([own, messages], axis=1)
        alone = lane >= len(Lane)
        lane = np.where(alone, self.schedule.ranks * len(Lane) + lane, rank * len(Lane) + lane)
        inside = np.array([self.sources, self.waiting], dtype=np.int64)
        source, waiting = np.concatenate([inside, between], axis=1)
        order = np.argsort(waiting, kind="stable")
        first = np.searchsorted(waiting[order], np.arange(len(rank) + 1))
        no_pairs = np.zeros(len(rank), dtype=bool)
        graph = Graph(rank, stage, kind, microbatch, lane, first, source[order], np.full(len(order), -1), no_pairs)
        used = np.cumsum([0, *map(len, self.links), *[2] * len(ways)])
        links = np.append(np.fromiter(chain.from_iterable(self.links), np.int64), ways)
        program = Program(graph, ticks, np.zeros(len(order), dtype=np.int64), stream, used, links, cause)
        return Lowered(program, begin, finish, exposed_tied(self.costs, self.schedule))


def _passes(costs: Costs, stages: int, copies: int) -> dict[int, list[tuple[float, float, float]]]:
    """Return seconds by kind and stage: of compute, of collectives it waits for, of exposed ends of ZeRO-2/3.

    The stages, so many each, repeat `copies` times.
    """
    # Blocks' shards are gathered and reduced in lanes of their own here; what is left of dp is the ends'.
    alone = {name: value for name, value in costs.items() if name not in PASSES["dp"].values()}
    found = {}
    for kind in OFFLOAD:
        terms = pass_terms(alone, kind, stages)
        parts = (sum(terms[term] for term in part) for part in _PARTS)
        found[int(kind)] = list(zip(*(np.tile(x, copies).tolist() for x in parts), strict=True))
    return found


def _ends_of_passes(costs: Costs, stages: int, copies: int) -> dict[int, list[tuple[float, float]]]:
    """Return the seconds of compute before and after the layers of a pass, by kind and stage: the embedding's before
    those of a forward and after those of a backward, the head's the other way round. The stages repeat `copies` times.
    """
    parts = [{name: cost for name, cost in costs.items() if name.startswith(end)} for end in ("embedding_", "head_")]
    found = {}
    for kind in OFFLOAD:
        terms = (pass_terms(part, kind, stages) for part in parts)
        ends = [np.tile(np.maximum(0, sum(of[term] for term in COMPUTED)), copies).tolist() for of in terms]
        found[int(kind)] = list(zip(*(ends if kind is Kind.F else ends[::-1]), strict=True))
    return found


@lru_cache(maxsize=1024)
def _split(seconds: float, pieces: int) -> list[int]:
    """Return `pieces` whole numbers of ticks, as equal as can be, that add up to the whole."""
    marks = [to_ticks(seconds * i / pieces) for i in range(pieces + 1)]
    return [b - a for a, b in pairwise(marks)]


def _parted(seconds: float, shares: Sequence[float]) -> list[int]:
    """Return whole numbers of ticks of these shares, which add up to the whole."""
    marks = [to_ticks(seconds * share) for share in accumulate(shares, initial=0.0)]
    return [b - a for a, b in pairwise(marks)]
