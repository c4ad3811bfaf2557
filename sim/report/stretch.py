"""A stretch of training as bars on rows: passes or steps, data, snapshots, writing to storage, failures."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from sim.engine.graph import Ints
from sim.engine.program import Stream
from sim.engine.training import StepSpan
from sim.run.trained import Trained
from sim.schedules import Kind

MOST_PASSES = 20_000
"""Passes that are shown one by one; beyond, a bar is a step."""
MOST_WORKERS = 4
ROWS = ("training", "data", "snapshots", "storage", "failures")
"""First words of the rows below those of pipeline ranks, in their order."""

Look = Literal["pass", "step", "late", "lost", "down", "fetch", "prep", "snapshot", "persist"]


class Bar(NamedTuple):
    """Something that lasts, ns from the begin of training; `kind` of a pass, else None."""

    row: str
    start: int
    end: int
    look: Look
    words: str
    kind: Kind | None = None


def bars(trained: Trained, span: tuple[int, int], ranks: Ints, most: int = MOST_PASSES) -> list[Bar]:
    """Return what happens in `span` (ns): the passes of `ranks` if they are at most `most`, else steps; row by row."""
    found = [bar for bar in _all(trained, span, ranks, most) if span[0] < bar.end > bar.start < span[1]]
    return sorted(found, key=_place)


def _place(bar: Bar) -> tuple[int, int, int]:
    first, last = bar.row.split()[0], bar.row.split()[-1]
    if first.isdigit():
        return 0, int(first), bar.start
    return 1 + ROWS.index(first), int(last) if last.isdigit() else 0, bar.start


def _all(trained: Trained, span: tuple[int, int], ranks: Ints, most: int) -> Iterator[Bar]:
    inside = [s for s in trained.spans if s.end > span[0] and s.begin < span[1]]
    program = trained.repeated.program
    computes = program.stream == Stream.COMPUTE if len(program.stream) else np.full(len(program), True)
    shown = np.flatnonzero(np.isin(program.graph.rank, ranks) & computes)
    for step in inside:
        if len(inside) * len(shown) <= most:
            yield from _passes(trained, step, shown.tolist())
        else:
            late = step.end - step.begin > trained.repeated.ticks
            yield Bar("training", step.begin, step.end, "late" if late else "step", f"step {step.number}")
        if step.lost:
            yield Bar("failures", step.begin, step.end, "lost", f"step {step.number}")
    for piece in trained.data_spans:
        if piece.worker < MOST_WORKERS:
            words = f"microbatch {piece.batch}"
            yield Bar(f"data worker {piece.worker}", piece.start_ns, piece.end_ns, piece.kind, words)
    for kept in trained.save_spans:
        row = "snapshots" if kept.kind == "snapshot" else "storage"
        yield Bar(row, kept.start_ns, kept.end_ns, kept.kind, f"state of step {kept.step}")
    for start, end in trained.pauses:
        yield Bar("failures", start, end, "down", "restarting")


def _passes(trained: Trained, step: StepSpan, shown: list[int]) -> Iterator[Bar]:
    """Yield the passes of a step, those of one that a failure stopped up to then."""
    one = trained.repeated
    run, graph, stop = step.run or one.run, one.program.graph, step.end if step.lost else np.iinfo(np.int64).max
    for i in shown:
        start, end = step.begin + int(run.start[i]), min(int(stop), step.begin + int(run.end[i]))
        if start < end:
            action = graph.action(i)
            words = f"{one.schedule.label(action)} of step {step.number}"
            yield Bar(str(graph.rank[i]), start, end, "pass", words, action.kind)
