"""The pipeline's timeline: one row per pipeline rank, or per stream of a rank."""

from functools import lru_cache, partial
from math import isfinite, nan
from typing import Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from sim.engine.critical import CriticalPath, Spent, critical_path, reasons
from sim.engine.graph import Graph
from sim.engine.program import Cause
from sim.engine.step import Step
from sim.engine.timeline import Timeline
from sim.report.figures.gantt import LOOK_OF_KIND, MAX_BARS, MAX_SHADES, NAMES, Ints, Shown, draw, height, rank_title
from sim.report.numbers import time_unit
from sim.report.theme import MARGIN, Theme, frame, wrapped
from sim.report.tracks import SHORT, row_name, rows
from sim.schedules import Action, Kind, Schedule
from sim.specs import InputError
from sim.specs.arguments import checked
from sim.units import seconds

Shading = Literal["chunk", "microbatch", "nothing"]
UNSHOWN = 1e-3
"""Share of a step that its timeline may miss without a word."""

OF_CAUSE = {Cause.INNER: "inner", Cause.DATA: "dp", Cause.MESSAGE: "pp", Cause.OFFLOAD: "offload"}


@checked
def timeline(
    step: Step | Timeline,
    ranks: int | None = None,
    theme: Theme = "light",
    window: tuple[float, float] | None = None,
    lanes: bool = False,
    critical: bool = True,
    shade: Shading = "chunk",
) -> go.Figure:
    """Return the timeline of a step: time against pipeline rank.

    ranks: rows at most (16; with lanes ranks at most, 4); of a longer pipeline they are spread evenly, the first and
    the last included. Up to 1,000 operations are bars, more become a raster, in which the area of each kind and of idle
    time is its share of the time. A fused pair is one bar, its forward above. window: the part of the step
    to show, in seconds from its start; None is the whole step. lanes: a row per stream of the event engine (compute,
    collectives, messages). critical: outline the critical path. shade: what deeper and paler colours tell apart: chunks
    of the model (or the two directions), microbatches (eight shades, again and again), or nothing.

    Raises:
        InputError: lanes of a run of the compiled engine, which has none; a window that shows nothing of the step.
    """
    run = timeline_of(step)
    if window is not None and (_ends(window)[1] <= 0 or window[0] >= run.makespan * 1e-9):
        raise InputError("window", window, f"a part of the step, 0 to {run.makespan * 1e-9:.6g} s")
    if lanes and not len(run.run.program.stream):
        raise InputError("lanes", lanes, 'False, or a step of the event engine (engine="events")')
    path = step.critical_path if critical and isinstance(step, Step) else critical_path(run.run) if critical else None
    shown = (of_operations if lanes else of_actions)(run, ranks or (4 if lanes else 16), window, path, shade=shade)
    unit = time_unit(shown.finish * 1e-9)
    after = after_note(step) if isinstance(step, Step) and shown.finish >= run.makespan else ""
    title, more = wrapped(f"time ({unit.name}){shade_note(run.schedule, shade)}{after}")
    tall = height(len(shown.rows)) + more
    figure = frame(
        theme, tall, title, rank_title(len(shown.rows)), barmode="overlay", bargap=0.15, margin_b=MARGIN["b"] + more
    )  # fmt: skip
    draw(figure, shown, unit, theme, legend=shown.looks)
    return figure


def timeline_of(step: Step | Timeline) -> Timeline:
    """Return a step's timeline."""
    return step if isinstance(step, Timeline) else step.timeline


def shade_note(schedule: Schedule, shade: Shading = "chunk") -> str:
    """Return what paler colours mean."""
    if shade != "chunk":
        return f" (deeper colour: earlier of {MAX_SHADES} microbatches)" if shade == "microbatch" else ""
    if schedule.pipelines > 1:
        return " (deeper colour: first direction, paler: second)"
    return " (deeper colour: earlier chunk of the model)" if schedule.stages > schedule.ranks else ""


def after_note(step: Step) -> str:
    """Return what a step takes after its last operation, which no bar shows; empty where that is only rounding."""
    left = step.step_time_s - step.timeline.makespan * 1e-9
    causes = {"straggler": "waiting for the slowest device", "learned": "the learned correction"}
    named = [words for term, words in causes.items() if step.breakdown_s.get(term, 0.0) > 0]
    if left <= UNSHOWN * step.step_time_s or not named:
        return ""
    return f"; {' and '.join(named)} add{'s' * (len(named) == 1)} {seconds(left)}"


def spread(every: int, most: int) -> Ints:
    """Return `most` ranks of `every`, the first and the last included."""
    return np.unique(np.linspace(0, every - 1, min(every, max(1, most))).round().astype(np.int64))


@checked
def opening(step: Step, ranks: int = 16) -> tuple[int, tuple[float, float]] | None:
    """Return (rows, window in s) that show a step's beginning as bars, or None where all of it fits.

    With fewer rows the window is longer; rows are given up until it reaches rank 0's first backward.
    """
    graph, start = step.timeline.graph, step.timeline.start - step.timeline.zero
    backward = np.isin(graph.kind, (Kind.B, Kind.I)) & (graph.rank == 0)
    wanted, most = int(step.timeline.end[backward].min()), min(ranks, step.plan.pp)
    if np.count_nonzero(np.isin(graph.rank, spread(step.plan.pp, most))) <= MAX_BARS:
        return None
    while True:
        reached = int(np.sort(start[np.isin(graph.rank, spread(step.plan.pp, most))])[int(0.9 * MAX_BARS)])
        if reached >= wanted or most <= 4:
            return most, (0.0, reached * 1e-9)
        most //= 2


def of_actions(
    timeline: Timeline,
    most: int,
    window: tuple[float, float] | None = None,
    path: CriticalPath | None = None,
    waits: bool = True,
    shade: Shading = "chunk",
) -> Shown:
    """Return a timeline's actions as bars, one row for each of at most `most` ranks.

    path: what is outlined; waits: whether bars say what they wait for.
    """
    graph, schedule, zero = timeline.graph, timeline.schedule, timeline.zero
    ranks = spread(schedule.ranks, most)
    span = _span(timeline, window)
    inside = (timeline.end - zero > span[0]) & (timeline.start - zero < span[1])
    kept = np.flatnonzero(np.isin(graph.rank, ranks) & inside & (timeline.end > timeline.start))
    words = _labels(schedule, graph)[kept].tolist()  # short in a raster, which repeats them
    if len(kept) <= MAX_BARS:
        words = [_words(timeline, i) for i in kept.tolist()]
        held = reasons(timeline.run, timeline.begin[kept].tolist()) if waits else []
        words = [f"{each}<br>{why}" for each, why in zip(words, held, strict=True)] if waits else words
    row = {int(r): n for n, r in enumerate(ranks)}
    group, groups = _grouped(schedule, graph, shade)
    return Shown(
        rows=[str(r) for r in ranks],
        index=kept,
        row=np.searchsorted(ranks, graph.rank[kept]),
        rank=graph.rank[kept],
        start=timeline.start[kept] - zero,
        end=timeline.end[kept] - zero,
        look=LOOK_OF_KIND[graph.kind[kept]],
        group=group[kept],
        half=np.where(graph.second, 2, np.append(graph.second[1:], False))[kept],
        words=words,
        groups=groups,
        begin=span[0],
        finish=span[1],
        path=[
            (row.get(s.rank, -1), s.start - zero, s.end - zero)
            for s in (path or CriticalPath(())).segments
            if s.spent not in (Spent.MESSAGE, Spent.OUTSIDE) and s.ticks > 0
        ],
    )


def of_operations(
    timeline: Timeline,
    most: int,
    window: tuple[float, float] | None = None,
    path: CriticalPath | None = None,
    shade: Shading = "chunk",
) -> Shown:
    """Return the operations of a run of the event engine as bars: of each rank a row per stream that it uses."""
    run, program, zero = timeline.run, timeline.run.program, timeline.zero
    graph, schedule, span = program.graph, timeline.schedule, _span(timeline, window)
    of_rank = rows(program, run.start, run.end)
    seen = np.isin(graph.rank, spread(schedule.ranks, most)) & (run.end > run.start) & (of_rank >= 0)
    key = graph.rank * (of_rank.max() + 1) + of_rank
    used, row = np.unique(key[seen], return_inverse=True)
    place = np.full(len(program), -1)
    place[seen] = row
    kept = np.flatnonzero(seen & (run.end - zero > span[0]) & (run.start - zero < span[1]))
    looks = [NAMES.index(OF_CAUSE[Cause(c)]) if c in OF_CAUSE else -1 for c in program.cause[kept].tolist()]
    named = partial(_named, schedule) if len(kept) <= MAX_BARS else schedule.label
    ranks, streams = np.divmod(used, of_rank.max() + 1)
    group, groups = _grouped(schedule, graph, shade)
    return Shown(
        rows=[f"{r} {SHORT.get(s) or row_name(s)}" for r, s in zip(ranks.tolist(), streams.tolist(), strict=True)],
        index=kept,
        row=place[kept],
        rank=graph.rank[kept],
        start=run.start[kept] - zero,
        end=run.end[kept] - zero,
        look=np.where(np.array(looks, dtype=np.int64) < 0, LOOK_OF_KIND[graph.kind[kept]], looks),
        group=group[kept],
        half=np.zeros(len(kept), dtype=np.int64),
        words=[named(graph.action(i)) for i in kept.tolist()],
        groups=groups,
        begin=span[0],
        finish=span[1],
        path=[
            (int(place[s.operation]), s.start - zero, s.end - zero)
            for s in (path or CriticalPath(())).segments
            if s.spent is not Spent.OUTSIDE
        ],
    )


@lru_cache(maxsize=16)
def _labels(schedule: Schedule, graph: Graph) -> NDArray[np.str_]:
    """Return the short name of every operation of a schedule's graph."""
    if schedule.pipelines > 1:
        return np.array([schedule.label(graph.action(i)) for i in range(len(graph))])
    kinds = np.array([kind.name for kind in Kind])[graph.kind]
    parts = graph.stage.astype(str), kinds, np.where(graph.microbatch < 0, "", graph.microbatch.astype(str))
    return np.char.add(np.char.add(*parts[:2]), parts[2])


def _span(timeline: Timeline, window: tuple[float, float] | None) -> tuple[int, int]:
    if window is None:
        return 0, max(1, timeline.makespan)
    begin, end = _ends(window)
    return round(begin * 1e9), max(round(begin * 1e9) + 1, round(end * 1e9))


def _ends(window: tuple[float, float]) -> tuple[float, float]:
    try:
        begin, end = map(float, window)
    except (TypeError, ValueError):
        begin = end = nan
    if not (isfinite(begin) and isfinite(end) and begin < end):
        raise InputError("window", window, "two times in seconds, the first before the second")
    return begin, end


def _of_stage(schedule: Schedule) -> list[int]:
    """Return which of its rank's chunks each stage is; of two directions, which direction."""
    if schedule.pipelines > 1:
        return [s // schedule.depth for s in range(schedule.stages)]
    of_rank = schedule.rank_of
    return [of_rank[:s].count(r) for s, r in enumerate(of_rank)]


def _grouped(schedule: Schedule, graph: Graph, shade: Shading) -> tuple[Ints, int]:
    """Return which group's shade every operation has, and how many groups there are; an update belongs to the rank, not
    to a chunk or a microbatch."""
    if shade == "chunk":
        of_stage = np.array(_of_stage(schedule))
        return np.where(graph.microbatch < 0, 0, of_stage[graph.stage]), int(of_stage.max()) + 1
    groups = MAX_SHADES if shade == "microbatch" else 1
    return np.maximum(graph.microbatch, 0) % groups, groups


def _named(schedule: Schedule, action: Action) -> str:
    stage, kind, microbatch = action
    if microbatch < 0:
        return "all microbatches"
    where = f"stage {stage % schedule.depth}"
    way = ("", ", second direction")[stage // schedule.depth] if schedule.pipelines > 1 else ""
    return f"{kind.name} of microbatch {microbatch}, {where}{way}"


def _words(timeline: Timeline, i: int) -> str:
    graph, name = timeline.graph, _named(timeline.schedule, timeline.graph.action(i))
    fused = graph.second[i] or (i + 1 < len(graph) and graph.second[i + 1])
    return f"{name}<br>runs as one with {graph.action(i - 1 if graph.second[i] else i + 1)}" if fused else name
