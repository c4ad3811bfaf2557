"""A training step taken apart for the event engine: collectives in lanes of their own, messages on links.

Where the compiled path charges an action what stays exposed of the collectives beside it (closed forms of
`costs.stage`), here they run beside it: layer by layer where a pass hides something, else in one piece.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from sim.engine.assembly import Costs, on_ranks, tied_reduce
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


@dataclass(frozen=True)
class Layout:
    """What a plan says beyond costs: layers of every stage; which traffic leaves the node (dp and inner by rank, pp by
    the stage that a message enters); what runs side by side."""

    layers: tuple[int, ...]
    outside: Mapping[str, tuple[bool, ...]]
    overlap_dp: bool


@dataclass(frozen=True, eq=False)
class Lowered:
    """A program, and the first and the last operation of every action."""

    program: Program
    begin: Ints
    finish: Ints

    def timeline(self, schedule: Schedule, run: Run) -> Timeline:
        """Return when the actions ran."""
        return Timeline(schedule, graph_of(schedule), run.start[self.begin], run.end[self.finish], run, self.begin)


def lower(schedule: Schedule, costs: Costs, traffic: Costs, layout: Layout) -> Lowered:
    """Return the operations of a step; `traffic` are the values of `costs.stage.traffic` on every chunk and rank."""
    return _Lowering(schedule, costs, traffic, layout).build()


def _ways(outside: bool) -> tuple[Link, Link]:
    return (Link.INTER_OUT, Link.INTER_IN) if outside else (Link.INTRA_OUT, Link.INTRA_IN)


class _Lowering:
    """Operations under construction, in lists that become arrays."""

    def __init__(self, schedule: Schedule, costs: Costs, traffic: Costs, layout: Layout) -> None:
        self.schedule, self.layout = schedule, layout
        self.graph = graph_of(schedule)
        self.rows: list[tuple[int, int, int, int, int, int, int, int]] = []
        self.edges: list[tuple[int, int]] = []
        self.links: list[tuple[int, ...]] = []
        self.joined: dict[int, int] = {}
        self.last_main: dict[int, int] = {}
        self.last_beside: dict[tuple[int, Lane], int] = {}
        self.delayed = SCHEDULES[schedule.name].delayed and layout.overlap_dp
        self.reducing: dict[int, int] = {}
        ranks = schedule.ranks
        self.passes = _passes(costs, schedule.depth, schedule.pipelines)
        self.gather, self.scatter = (
            np.tile(np.zeros(schedule.depth) + np.ravel(traffic[n]), schedule.pipelines) for n in ("gather", "scatter")
        )
        self.flushes = not SCHEDULES[schedule.name].asynchronous
        parts = ("reduced", "late", "regathered")
        self.reduced, self.late, self.regathered = (on_ranks(traffic, n, schedule) for n in parts)
        self.optimizer = on_ranks(costs, "optimizer", schedule)
        self.rank_layers = np.maximum(1, np.bincount(schedule.rank_of, layout.layers, ranks))
        # Without flush there is no first forward of a step beside which to gather what was updated.
        self.bucket = (self.reduced + (0 if self.flushes else 1) * self.regathered) / self.rank_layers
        self.tied = tied_reduce(costs, schedule)
        self.message = [_ticks(x) for x in (np.zeros(schedule.stages) + costs["send"]).tolist()]
        self.copies = Copies(schedule, self.graph, costs, self._copy)

    def build(self) -> Lowered:
        """Return everything put together."""
        graph, kind, stage, microbatch = self.graph, self.graph.kind, self.graph.stage, self.graph.microbatch
        firsts, lasts = self._ends()
        begin, finish = np.empty(len(graph), dtype=np.int64), np.empty(len(graph), dtype=np.int64)
        regathers = self._regather(firsts) if self.layout.overlap_dp and self.flushes else {}
        pair = np.append(graph.second[1:], False) | graph.second
        for i, rank in enumerate(graph.rank.tolist()):
            where = rank, int(stage[i]), int(kind[i]), int(microbatch[i])
            if kind[i] in (Kind.REDUCE_GRAD, Kind.OPTIMIZER):
                begin[i], finish[i] = self._update(where)
            else:
                moves = self.copies.of_pass(i, where, max(1, self.layout.layers[where[1]]))
                begin[i], finish[i] = self._pass(where, bool(pair[i]), regathers.get(i, ()), i in lasts, moves)
            if graph.second[i]:
                begin[i] = begin[i - 1]
                finish[i - 1 : i + 1] = self._join(where, finish[i - 1 : i + 1].tolist())
        self._connect(begin, finish)
        return self._assembled(begin, finish)

    def _ends(self) -> tuple[set[int], set[int]]:
        """Return every stage's first forward, and the actions that complete its weight gradients before an update."""
        firsts: dict[int, int] = {}
        last: dict[int, int] = {}
        lasts: set[int] = set()
        for i, (s, kind) in enumerate(zip(self.graph.stage.tolist(), self.graph.kind.tolist(), strict=True)):
            if kind == Kind.F:
                firsts.setdefault(s, i)
            elif kind in (Kind.B, Kind.W):
                last[s] = i
            elif kind in (Kind.REDUCE_GRAD, Kind.OPTIMIZER):
                lasts |= set(last.values())
                last = {}
        return set(firsts.values()), lasts

    def _regather(self, firsts: set[int]) -> dict[int, list[int]]:
        """Add the parameter gathers that ZeRO-1 runs beside the first forwards; return them by forward."""
        found: dict[int, list[int]] = {}
        for i in sorted(firsts):
            rank, s = int(self.graph.rank[i]), int(self.graph.stage[i])
            share = self.regathered[rank] / self.rank_layers[rank]
            if share:
                where = rank, s, int(Kind.F), -1
                found[i] = [self._beside(where, Lane.GATHER, share) for _ in range(self.layout.layers[s])]
        return found

    def _op(self, where: Where, lane: int, stream: Stream, cause: Cause, ticks: int) -> int:
        self.rows.append((*where, lane, int(stream), int(cause), ticks))
        self.links.append(())
        return len(self.rows) - 1

    def _main(self, where: Where, stream: Stream, cause: Cause, ticks: int) -> int:
        i = self._op(where, Lane.MAIN, stream, cause, ticks)
        if where[0] in self.joined:
            self.edges.append((self.joined.pop(where[0]), i))
        self.last_main[where[0]] = i
        return i

    def _join(self, where: Where, both: Sequence[int]) -> int:
        """Add the end of a fused pair, which its rank's next action waits for."""
        i = self._op(where, Lane.PAIR, Stream.LINK, Cause.PASS, 0)
        self.edges += [(end, i) for end in both]
        self.joined[where[0]] = i
        return i

    def _beside(self, where: Where, lane: Lane, seconds: float, after: Sequence[int] = ()) -> int:
        i = self._op(where, lane, Stream.COLLECTIVE, Cause.DATA, _ticks(seconds))
        self.links[i] = self._ring(where[0], "dp")
        self.edges += [(a, i) for a in after]
        self.last_beside[where[0], lane] = i
        return i

    def _ring(self, rank: int, traffic: str) -> tuple[int, ...]:
        out, into = _ways(self.layout.outside[traffic][rank])
        return out.of(rank), into.of(rank)

    def _copy(self, where: Where, leaves: bool, seconds: float, after: Sequence[int]) -> int:
        lane, stream = (Lane.D2H, Stream.D2H) if leaves else (Lane.H2D, Stream.H2D)
        i = self._op(where, lane, stream, Cause.OFFLOAD, _ticks(seconds))
        self.edges += [(a, i) for a in after]
        return i

    def _pass(
        self, where: Where, fused: bool, waits: Sequence[int], last: bool, moves: Moves | None
    ) -> tuple[int, int]:
        """Add one pass and the collectives beside it; return its first operation and the one that ends it."""
        rank, s, kind, _ = where
        overlap = self.layout.overlap_dp
        compute, inner, data = (float(x[s]) for x in self.passes[kind])
        gather = float(self.gather[s]) if kind != Kind.W else 0.0
        scatter = float(self.scatter[s]) if kind in (Kind.B, Kind.W) else 0.0
        bucket = self.bucket[rank] if last and overlap else 0.0
        if not overlap:
            data, gather, scatter = data + gather + scatter, 0.0, 0.0
        sliced = bool(waits or gather or scatter or bucket or moves)
        n = max(1, self.layout.layers[s]) if sliced else 1
        begin = finish = -1
        # A layer's weights are gathered while the layer before it runs, and no sooner.
        ready = [self.last_main[rank]] * 2 if rank in self.last_main else []
        for piece, (ticks, more) in enumerate(zip(_split(compute, n), _split(inner, n), strict=True)):
            fetched = moves.fetch() if moves else []
            if gather:
                fetched = [self._beside(where, Lane.GATHER, gather / n, [*ready[:1], *fetched])]
            copied = moves.before(piece) if moves else []
            main = self._main(where, Stream.COMPUTE, Cause.PASS, ticks)
            self.edges += [(a, main) for a in (*fetched, *copied, *waits[piece : piece + 1])]
            finish = self._inner(where, fused, main, more)
            reduced = []
            if scatter or bucket:
                reduced = [self._beside(where, Lane.REDUCE, scatter / n + bucket, [finish])]
            if moves:
                moves.after(piece, finish, fetched[0] if gather else finish, reduced)
            ready = [*ready[1:], main]
            begin = main if begin < 0 else begin
        if scatter:  # the engines of ZeRO-2 and 3 end a backward pass when its gradients are in their shards
            self.joined[rank] = self.last_beside[rank, Lane.REDUCE]
        if data:
            finish = self._main(where, Stream.COLLECTIVE, Cause.DATA, _ticks(data))
            self.links[finish] = self._ring(rank, "dp")
        return begin, finish

    def _inner(self, where: Where, fused: bool, after: int, ticks: int) -> int:
        """Add the collectives that a pass waits for; those of a fused pair leave the main lane free."""
        if not ticks:
            return after
        lane = Lane.PAIR if fused else Lane.MAIN
        i = self._op(where, lane, Stream.COLLECTIVE, Cause.INNER, ticks)
        self.links[i] = self._ring(where[0], "inner")
        self.edges.append((after, i))
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
            own = self._beside(where, Lane.REDUCE, float(rest), [self.last_main[rank]])
            waits, self.reducing[rank] = [self.reducing[rank]] if rank in self.reducing else [], own
        elif kind == Kind.REDUCE_GRAD or not self.flushes:  # without flush every update reduces its own gradients
            i = self._main(where, Stream.COLLECTIVE, Cause.DATA, _ticks(float(rest)))
            self.links[i] = self._ring(rank, "dp")
            self.edges += [(self.last_beside[rank, lane], i) for lane in Lane if (rank, lane) in self.last_beside]
        if kind == Kind.OPTIMIZER:
            seconds = float(self.optimizer[rank])
            if self.copies.moves_states(rank):
                begin, i = self._swapped_update(where, _split(seconds, int(self.rank_layers[rank])))
            else:
                begin = i = self._main(where, Stream.COMPUTE, Cause.UPDATE, _ticks(seconds))
            self.edges += [(a, begin) for a in waits]
            return begin, i
        return i, i

    def _swapped_update(self, where: Where, pieces: Sequence[int]) -> tuple[int, int]:
        """Add an update whose states come and go layer by layer; return its begin and its end."""
        begin = i = self._main(where, Stream.COMPUTE, Cause.UPDATE, 0)
        stages = [s for s, r in enumerate(self.schedule.rank_of) if r == where[0]]
        moving = self.copies.of_update(where, stages, len(pieces), begin)
        for ticks, (arrived, leave) in zip(pieces, moving, strict=True):
            i = self._main(where, Stream.COMPUTE, Cause.UPDATE, ticks)
            self.edges += [(a, i) for a in arrived]
            i = leave(i)
        end = self._main(where, Stream.COMPUTE, Cause.UPDATE, 0)
        self.edges.append((i, end))
        return begin, end

    def _connect(self, begin: Ints, finish: Ints) -> None:
        """Turn the edges between actions into edges between operations; what crosses ranks becomes a message."""
        graph = self.graph
        waiting = np.repeat(np.arange(len(graph)), np.diff(graph.first))
        for w, source, boundary in zip(waiting.tolist(), graph.source.tolist(), graph.boundary.tolist(), strict=True):
            a, b = int(finish[source]), int(begin[w])
            if boundary >= 0 and self.message[boundary]:
                out, to = int(graph.rank[source]), int(graph.rank[w])
                where = out, int(graph.stage[w]), int(graph.kind[w]), int(graph.microbatch[w])
                i = self._op(where, len(Lane) + len(self.rows), Stream.LINK, Cause.MESSAGE, self.message[boundary])
                leaves, enters = _ways(self.layout.outside["pp"][boundary])
                self.links[i] = leaves.of(out), enters.of(to)
                self.edges += [(a, i), (i, b)]
            else:
                self.edges.append((a, b))

    def _assembled(self, begin: Ints, finish: Ints) -> Lowered:
        rank, stage, kind, microbatch, lane, stream, cause, ticks = np.array(self.rows, dtype=np.int64).T.copy()
        alone = lane >= len(Lane)
        lane = np.where(alone, self.schedule.ranks * len(Lane) + lane, rank * len(Lane) + lane)
        source, waiting = np.array(self.edges, dtype=np.int64).reshape(-1, 2).T
        order = np.argsort(waiting, kind="stable")
        first = np.searchsorted(waiting[order], np.arange(len(rank) + 1))
        no_pairs = np.zeros(len(rank), dtype=bool)
        graph = Graph(rank, stage, kind, microbatch, lane, first, source[order], np.full(len(order), -1), no_pairs)
        used = np.cumsum([0, *map(len, self.links)])
        links = np.array([link for each in self.links for link in each], dtype=np.int64)
        program = Program(graph, ticks, np.zeros(len(order), dtype=np.int64), stream, used, links, cause)
        return Lowered(program, begin, finish)


def _passes(costs: Costs, stages: int, copies: int) -> dict[int, tuple[Any, ...]]:
    """Return seconds on every stage by kind: of compute, of collectives it waits for, of exposed ends of ZeRO-2/3.

    The stages, so many each, repeat `copies` times.
    """
    zero = np.zeros(stages)

    def total(*names: str) -> Any:
        return sum((np.ravel(costs[n]) for n in names), start=zero)

    kinds = ("tp", "cp", "ep", "pp")
    forward, weight = total("forward_compute", "forward_host"), total("weight_compute")
    backward = total("input_compute", "recompute", "backward_host")
    inner = total(*(f"forward_{k}" for k in kinds)), total(*(f"input_{k}" for k in kinds))
    data = zero.copy(), zero.copy()
    for s, end in ((0, "embedding"), (-1, "head")):
        forward[s] += costs[f"{end}_forward_compute"]
        backward[s] += costs[f"{end}_input_compute"]
        weight[s] += costs[f"{end}_weight_compute"]
        for where, phase, each in zip(inner, ("forward", "input"), data, strict=True):
            where[s] += sum(float(costs[f"{end}_{phase}_{k}"]) for k in kinds)
            each[s] += costs[f"{end}_{'forward' if phase == 'forward' else 'backward'}_dp"]
    passes = {
        int(Kind.F): (forward, inner[0], data[0]),
        int(Kind.I): (backward, inner[1], data[1]),
        int(Kind.W): (weight, zero, zero),
        int(Kind.B): (backward + weight, inner[1], data[1]),
    }
    return {kind: tuple(np.tile(x, copies) for x in each) for kind, each in passes.items()}


def _ticks(seconds: float) -> int:
    return round(seconds * 1e9)


@lru_cache(maxsize=1024)
def _split(seconds: float, pieces: int) -> list[int]:
    """Return `pieces` whole numbers of ticks, as equal as can be, that add up to the whole."""
    marks = [_ticks(seconds * i / pieces) for i in range(pieces + 1)]
    return [b - a for a, b in pairwise(marks)]
