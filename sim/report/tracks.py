"""A step as tracks of slices, arrows and counters: what every trace format holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sim.engine.lower import Lane
from sim.engine.memory import CATEGORIES
from sim.engine.program import Cause, Program, Run, Stream
from sim.engine.step import Step
from sim.engine.timeline import Timeline
from sim.report.decimation import Ints, lasting
from sim.report.stretch import bars
from sim.run.trained import Trained
from sim.schedules import Kind

MEMORY_POINTS = 2_000
"""Memory points per rank at most; each bucket keeps its smallest and largest."""
CATEGORY = {Kind.REDUCE_GRAD: "communication", Kind.OPTIMIZER: "optimizer"}
ACTIONS, COMPUTE, COLLECTIVES, PAIRS, GATHERS, REDUCTIONS, COPIES_IN, COPIES_OUT, MESSAGES = range(9)
STREAMS = {
    COMPUTE: "compute",
    COLLECTIVES: "collectives",
    PAIRS: "collectives of fused pairs",
    GATHERS: "gathers of weights",
    REDUCTIONS: "reductions of gradients",
    COPIES_IN: "copies from the host",
    COPIES_OUT: "copies to the host",
    MESSAGES: "messages sent",
}
SHORT = {
    PAIRS: "pairs", GATHERS: "gathers", REDUCTIONS: "reductions", COPIES_IN: "copies in", COPIES_OUT: "copies out",
    MESSAGES: "messages",
}  # fmt: skip
"""For the rows of a figure."""
OF_LANE = {
    Lane.PAIR: PAIRS, Lane.GATHER: GATHERS, Lane.REDUCE: REDUCTIONS, Lane.H2D: COPIES_IN, Lane.D2H: COPIES_OUT,
}  # fmt: skip
SUFFIX = {Cause.INNER: " tp, cp, ep", Cause.DATA: " dp", Cause.MESSAGE: " message", Cause.OFFLOAD: " copy"}


class Track(NamedTuple):
    """A row; `order` among the rows of its process."""

    process: int
    order: int
    name: str


class Slice(NamedTuple):
    """Something that lasts, ns from the step's start, on the track with this index."""

    track: int
    start: int
    end: int
    name: str
    category: str
    args: Mapping[str, Any]


class Counter(NamedTuple):
    """Bytes held by category from each instant (ns) on."""

    process: int
    name: str
    at: list[int]
    values: Mapping[str, list[float]]


@dataclass(frozen=True)
class Tracks:
    """Processes by number, tracks, slices in the order of their starts, arrows (indices of slices) and counters."""

    processes: Mapping[int, str]
    tracks: list[Track]
    slices: list[Slice]
    flows: list[tuple[int, ...]]
    counters: list[Counter]
    left_out: int


def tracks_of(step: Step, most: int) -> Tracks:
    """Return a step as tracks, with at most `most` slices: the earliest.

    From the compiled engine a track is a pipeline rank, and an arrow a message from one action to another. From the
    event engine a process is a rank, with a track of actions and one for each stream; an arrow goes through the
    message's own slice.
    """
    timeline, title = step.timeline, f"{step.model.name} on {step.placed.gpus} x {step.cluster.device}"
    ranks, streams = range(timeline.schedule.ranks), len(timeline.run.program.stream) > 0
    starts = _starts(timeline, streams)
    until = int(np.partition(starts, most - 1)[most - 1] if len(starts) > most else starts.max())
    slices, of_action = _actions(timeline, until)
    if streams:
        tracks, more, flows = _operations(timeline, of_action, len(slices), until)
        processes = {r + 1: f"pipeline rank {r}" for r in ranks}
        slices += more
    else:
        tracks = [Track(1, r, f"pipeline rank {r}") for r in ranks]
        processes, flows = {1: title}, _arrows(timeline, of_action)
    order = sorted(range(len(slices)), key=lambda i: (slices[i].start, slices[i].track, slices[i].end))[:most]
    place = {i: n for n, i in enumerate(order)}
    kept = [tuple(place[i] for i in flow) for flow in flows if all(i in place for i in flow)]
    counters = list(_counters(step, streams))
    return Tracks(processes, tracks, [slices[i] for i in order], kept, counters, len(starts) - len(order))


def tracks_of_training(trained: Trained, most: int) -> Tracks:
    """Return a stretch of training as tracks, with at most `most` slices: the earliest.

    A process each for training (a track a pipeline rank, or one of steps where passes are too many), data, checkpoints
    and failures.
    """
    found = bars(trained, (0, round(trained.seconds * 1e9)), np.arange(trained.repeated.schedule.ranks), most)
    rows = {name: n for n, name in enumerate(dict.fromkeys(bar.row for bar in found))}
    process = {name: _PROCESS.get(name.split()[0], 1) for name in rows}
    tracks = [Track(process[name], n, f"pipeline rank {name}" if name.isdigit() else name) for name, n in rows.items()]
    every = sorted(
        (
            Slice(rows[bar.row], bar.start, bar.end, bar.words, CATEGORY.get(bar.kind, "compute"), {})
            if bar.kind is not None
            else Slice(rows[bar.row], bar.start, bar.end, f"{_VERB[bar.look]}{bar.words}", bar.look, {})
            for bar in found
        ),
        key=lambda s: (s.start, s.track, s.end),
    )
    names = {
        1: f"{trained.step.model.name}, all replicas alike",
        2: "data of the busiest node",
        3: "state",
        4: "failures",
    }
    used = {n: name for n, name in names.items() if n in process.values()}
    return Tracks(used, tracks, every[:most], [], [], max(0, len(every) - most))


_PROCESS = {"data": 2, "snapshots": 3, "storage": 3, "failures": 4}
_VERB = {"fetch": "read ", "prep": "prepare ", "snapshot": "copy ", "persist": "write ", "lost": "lost "}
_VERB |= {"step": "", "late": "", "down": ""}


def _starts(timeline: Timeline, streams: bool) -> Ints:
    """Return when every slice of a step starts, in ticks."""
    starts, run = timeline.start[~timeline.graph.second], timeline.run
    return np.concatenate([starts, run.start[_shown(run)]]) if streams else starts


def _shown(run: Run) -> Ints:
    """Return the operations of the event engine that have a slice: not those of no length, nor where pairs meet."""
    program = run.program
    return np.flatnonzero((run.end > run.start) & ((program.stream != Stream.LINK) | (program.cause == Cause.MESSAGE)))


def _actions(timeline: Timeline, until: int) -> tuple[list[Slice], dict[int, int]]:
    """Return a slice for every action that starts until a tick, one for a fused pair; and the slices of the actions."""
    graph, zero, found = timeline.graph, timeline.zero, list[Slice]()
    schedule, of_action = timeline.schedule, dict[int, int]()
    fused = np.append(graph.second[1:], False)
    for i in np.flatnonzero(timeline.start <= until).tolist():
        rank, start, end = int(graph.rank[i]), int(timeline.start[i]) - zero, int(timeline.end[i]) - zero
        action = graph.action(i)
        if not graph.second[i]:
            both = schedule.pair_label(action, graph.action(i + 1)) if fused[i] else schedule.label(action)
            torch = f"({action};{graph.action(i + 1)})OVERLAP_F_B" if fused[i] else str(action)
            args = {"torch": f"PP:{torch}", "stage": action.stage, "microbatch": action.microbatch}
            found.append(Slice(rank, start, end, both, CATEGORY.get(action.kind, "compute"), args))
        of_action[i] = len(found) - 1
    return found, of_action


def _arrows(timeline: Timeline, of_action: Mapping[int, int]) -> list[tuple[int, ...]]:
    graph = timeline.graph
    waiting = np.repeat(np.arange(len(graph)), np.diff(graph.first))
    sent = np.flatnonzero(graph.boundary >= 0)
    pairs = zip(graph.source[sent].tolist(), waiting[sent].tolist(), strict=True)
    return [(of_action[a], of_action[b]) for a, b in pairs if a in of_action and b in of_action]


def _operations(
    timeline: Timeline, of_action: Mapping[int, int], before: int, until: int
) -> tuple[list[Track], list[Slice], list[tuple[int, ...]]]:
    """Return tracks (those of the actions first), a slice per operation and the arrows through messages.

    of_action: the slices of the actions; before: how many slices there are already; until: tick of the last start.
    """
    program, run, ranks = timeline.run.program, timeline.run, timeline.schedule.ranks
    tracks = [Track(r + 1, ACTIONS, "actions") for r in range(ranks)]
    index: dict[tuple[int, int], int] = {}
    row, names = rows(program, run.start, run.end), _Names(timeline)
    slices: list[Slice] = []
    message: dict[int, int] = {}
    shown = _shown(run)
    shown = shown[run.start[shown] <= until]
    for i in shown[np.lexsort((shown, row[shown], program.graph.rank[shown]))].tolist():
        where = int(program.graph.rank[i]), int(row[i])
        if where not in index:
            index[where] = len(tracks)
            tracks.append(Track(where[0] + 1, where[1], row_name(where[1])))
        if program.cause[i] == Cause.MESSAGE:
            message[i] = before + len(slices)
        slices.append(names.slice(i, index[where]))
    rank, action = timeline.graph.rank, timeline.graph.action
    at: dict[tuple[int, ...], int] = {(int(rank[i]), *action(i)): n for i, n in of_action.items()}
    return tracks, slices, [flow for i, n in message.items() for flow in names.flow(i, n, at)]


class _Names:
    """What operations of the event engine are called, and which actions a message joins."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, self.program = timeline, timeline.run.program
        self.zero = timeline.zero
        graph = self.program.graph
        waiting = np.repeat(np.arange(len(graph)), np.diff(graph.first))
        messages = self.program.cause[graph.source] == Cause.MESSAGE
        self.receiver = dict(zip(graph.source[messages].tolist(), waiting[messages].tolist(), strict=True))

    def slice(self, i: int, track: int) -> Slice:
        graph, cause = self.program.graph, Cause(int(self.program.cause[i]))
        sender = int(graph.source[graph.first[i]]) if cause is Cause.MESSAGE else i
        action, run = graph.action(sender), self.timeline.run
        computes = cause in (Cause.PASS, Cause.UPDATE)
        category = CATEGORY.get(action.kind, "compute") if computes else "communication"
        args = {"stage": action.stage, "microbatch": action.microbatch, "alone_ns": int(self.program.duration[i])}
        name = self.timeline.schedule.label(action) + SUFFIX.get(cause, "")
        return Slice(track, int(run.start[i]) - self.zero, int(run.end[i]) - self.zero, name, category, args)

    def flow(self, i: int, own: int, at: Mapping[tuple[int, ...], int]) -> Iterator[tuple[int, ...]]:
        graph = self.program.graph
        ends = int(graph.source[graph.first[i]]), self.receiver[i]
        sender, receiver = ((int(graph.rank[e]), *graph.action(e)) for e in ends)
        if sender in at and receiver in at:
            yield at[sender], own, at[receiver]


def rows(program: Program, start: Ints, end: Ints) -> Ints:
    """Return every operation's row on its rank: a stream's, or for messages the first that is free; -1: none."""
    n, lane = len(program), program.graph.lane
    row = np.where(program.stream == Stream.COMPUTE, COMPUTE, COLLECTIVES)
    own = program.cause != Cause.MESSAGE
    for each, stream in OF_LANE.items():
        row[own & (lane % len(Lane) == each)] = stream
    row[(program.stream == Stream.LINK) & own] = -1  # where the operations of a pair meet
    free: dict[int, list[int]] = {}
    for i in np.lexsort((np.arange(n), end, start)).tolist():
        if own[i]:
            continue
        lanes = free.setdefault(int(program.graph.rank[i]), [])
        at = next((k for k, until in enumerate(lanes) if until <= start[i]), len(lanes))
        lanes[at : at + 1] = [int(end[i])]
        row[i] = MESSAGES + at
    return row


def row_name(row: int) -> str:
    """Return what a row of `rows` holds."""
    return STREAMS[row] if row <= MESSAGES else f"{STREAMS[MESSAGES]} ({row - MESSAGES + 1})"


def _counters(step: Step, streams: bool) -> Iterator[Counter]:
    zero = step.timeline.zero
    for held in step.memory:
        kept = lasting(held, MEMORY_POINTS)
        moving = {"activations": held.activations[kept], "temporaries": held.temporaries[kept]}
        fixed = {c: np.full(len(kept), float(held.fixed.get(c, 0.0))) for c in CATEGORIES}
        values = {c: list(map(float, moving.get(c, fixed[c]))) for c in CATEGORIES}
        at = (held.at_ns[kept] - zero).tolist()
        yield Counter(held.rank + 1 if streams else 1, f"memory of pipeline rank {held.rank}", at, values)
