"""The pipeline's timeline: one row per pipeline rank, a bar per operation or a raster of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from sim.engine.step import Step
from sim.report.figures.raster import raster
from sim.report.numbers import Unit, time_unit
from sim.report.theme import Look, Theme, colour, frame, legend_entry, marker, mixed
from sim.schedules import Kind

Ints = NDArray[np.int64]

LOOKS = {
    Kind.F: Look("forward", "", "forward (F)"),
    Kind.B: Look("backward", "", "backward (B)"),
    Kind.I: Look("backward", "", "backward, input (I)"),
    Kind.W: Look("weight", "", "backward, weights (W)"),
    Kind.REDUCE_GRAD: Look("communication", "\\", "gradient reduction (dp)"),
    Kind.OPTIMIZER: Look("optimizer", "", "optimizer"),
}
IDLE = Look("idle", "", "idle")
MAX_BARS = 1_000
BINS = 1_600
PALEST = 0.45
"""Share of the full colour that the last chunk of a rank keeps."""
MAX_SHADES = 8
"""Chunks beyond this share shades, so that a figure keeps under 30 traces."""


@dataclass(frozen=True, eq=False)
class Shown:
    """The operations drawn: ranks in rows, then one entry per operation.

    Times in ns from the start of the step; the axis runs from `begin` to `finish`.
    """

    ranks: Ints
    row: Ints
    start: Ints
    end: Ints
    kind: Ints
    stage: Ints
    chunk: Ints
    microbatch: Ints
    chunks: int
    begin: int
    finish: int

    @property
    def kinds(self) -> list[Kind]:
        """The kinds that are drawn, in the legend's order."""
        held = set(self.kind.tolist())
        return [k for k in LOOKS if k in held]


def timeline(
    step: Step, ranks: int = 16, theme: Theme = "light", window: tuple[float, float] | None = None
) -> go.Figure:
    """Return the timeline of a step: time against pipeline rank.

    ranks: rows at most; of a longer pipeline they are spread evenly, the first and the last included. Up to
    1,000 operations are bars, more become a raster (colour of a bin: the operation that holds most of it,
    idle only if none touches it). Deeper colour is an earlier chunk of the model. window: the part of the
    step to show, in seconds from its start; None is the whole step.
    """
    shown = _shown(step, ranks, window)
    unit = time_unit(shown.finish * 1e-9)
    note = " (deeper colour: earlier chunk of the model)" if shown.chunks > 1 else ""
    height = min(560, 120 + 22 * len(shown.ranks))
    figure = frame(theme, height, f"time ({unit.name}){note}", "pipeline rank", barmode="overlay", bargap=0.15)
    (_bars if len(shown.start) <= MAX_BARS else _raster)(figure, shown, unit, theme)
    every = -(-len(shown.ranks) // 8)
    rows = np.arange(0, len(shown.ranks), every)
    end = len(shown.ranks) - 0.5
    figure.update_yaxes(range=[end, -0.5], tickvals=rows, ticktext=shown.ranks[rows].astype(str), showgrid=False)
    figure.update_xaxes(range=[shown.begin * 1e-9 / unit.scale, shown.finish * 1e-9 / unit.scale])
    return figure


def _ranks(step: Step, most: int) -> Ints:
    every = step.plan.pp
    return np.unique(np.linspace(0, every - 1, min(every, max(1, most))).round().astype(np.int64))


def opening(step: Step, ranks: int = 16) -> tuple[int, tuple[float, float]] | None:
    """Return (rows, window in s) that show a step's beginning as bars, or None where all of it fits.

    With fewer rows the window is longer; rows are given up until it reaches rank 0's first backward.
    """
    graph, start = step.timeline.graph, step.timeline.start - step.timeline.zero
    backward = np.isin(graph.kind, (Kind.B, Kind.I)) & (graph.rank == 0)
    wanted, rows = int(step.timeline.end[backward].min()), min(ranks, step.plan.pp)
    if np.count_nonzero(np.isin(graph.rank, _ranks(step, rows))) <= MAX_BARS:
        return None
    while True:
        reached = int(np.sort(start[np.isin(graph.rank, _ranks(step, rows))])[int(0.9 * MAX_BARS)])
        if reached >= wanted or rows <= 4:
            return rows, (0.0, reached * 1e-9)
        rows //= 2


def _shown(step: Step, most: int, window: tuple[float, float] | None) -> Shown:
    graph, schedule = step.timeline.graph, step.timeline.schedule
    ranks, zero = _ranks(step, most), step.timeline.zero
    span = (0, max(1, step.timeline.makespan)) if window is None else tuple(round(t * 1e9) for t in window)
    inside = (step.timeline.end - zero > span[0]) & (step.timeline.start - zero < span[1])
    kept = np.isin(graph.rank, ranks) & inside & (step.timeline.end > step.timeline.start)
    of_rank = np.array(schedule.rank_of)
    chunk = np.array([np.count_nonzero(of_rank[:s] == r) for s, r in enumerate(of_rank)])
    whole_rank = graph.microbatch < 0  # an update belongs to the rank, not to a chunk
    return Shown(
        ranks=ranks,
        row=np.searchsorted(ranks, graph.rank[kept]),
        start=step.timeline.start[kept] - zero,
        end=step.timeline.end[kept] - zero,
        kind=graph.kind[kept],
        stage=graph.stage[kept],
        chunk=np.where(whole_rank, 0, chunk[graph.stage])[kept],
        microbatch=graph.microbatch[kept],
        chunks=int(chunk.max()) + 1,
        begin=span[0],
        finish=span[1],
    )


def _shades(look: Look, chunks: int, theme: Theme) -> list[str]:
    return [mixed(look.colour, theme, s) for s in np.linspace(1.0, PALEST, chunks)]


def _bars(figure: go.Figure, shown: Shown, unit: Unit, theme: Theme) -> None:
    for kind in shown.kinds:
        of_kind = shown.kind == kind
        shade, shades = _shade(shown)
        legend_entry(figure, LOOKS[kind], theme, kind.name)
        for n in np.unique(shade[of_kind]).tolist():
            style = marker(LOOKS[kind], theme)
            style |= {} if "pattern" in style else {"color": _shades(LOOKS[kind], shades, theme)[n]}
            figure.add_bar(**_trace(shown, np.flatnonzero(of_kind & (shade == n)), kind, unit), marker=style)
    legend_entry(figure, IDLE, theme)
    rows, scale = np.arange(len(shown.ranks)), 1e-9 / unit.scale
    width = np.full(len(rows), (shown.finish - shown.begin) * scale)
    figure.add_bar(
        orientation="h",
        x=width,
        base=shown.begin * scale,
        y=rows,
        width=0.85,
        showlegend=False,
        hoverinfo="skip",
        marker={"color": colour("idle", theme)},
        zorder=-1,
    )
    figure.update_layout(uniformtext={"mode": "hide", "minsize": 10})


def _shade(shown: Shown) -> tuple[Ints, int]:
    """Return every operation's shade by its chunk, and how many shades there are."""
    shades = min(shown.chunks, MAX_SHADES)
    return shown.chunk * shades // shown.chunks, shades


def _trace(shown: Shown, chosen: Ints, kind: Kind, unit: Unit) -> dict[str, Any]:
    """Return the bars of the operations `chosen`, all of one kind."""
    scale, look = 1e-9 / unit.scale, LOOKS[kind]
    start, end = shown.start[chosen] * scale, shown.end[chosen] * scale
    details = [start, end, shown.microbatch[chosen], shown.stage[chosen], shown.ranks[shown.row[chosen]]]
    computes = kind not in (Kind.REDUCE_GRAD, Kind.OPTIMIZER)
    lines = [
        f"<b>{look.label}</b>",
        *(["microbatch %{customdata[2]}, stage %{customdata[3]}"] if computes else []),
        "rank %{customdata[4]}",
        f"%{{customdata[0]:.4~r}}–%{{customdata[1]:.4~r}} {unit.name}",
        f"lasts %{{x:.3~r}} {unit.name}<extra></extra>",
    ]
    return {
        "orientation": "h",
        "base": start,
        "x": end - start,
        "y": shown.row[chosen],
        "width": 0.85,
        "name": look.label,
        "legendgroup": kind.name,
        "showlegend": False,
        "text": [kind.name] * len(chosen) if computes else None,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "customdata": np.stack(details, axis=1),
        "hovertemplate": "<br>".join(lines),
    }


def _raster(figure: go.Figure, shown: Shown, unit: Unit, theme: Theme) -> None:
    rows = len(shown.ranks)
    span = shown.finish - shown.begin
    op = raster(shown.start - shown.begin, shown.end - shown.begin, shown.row, rows, BINS, span)
    colours, code = [colour("idle", theme)], np.zeros(len(shown.start), dtype=np.int64)
    shade, shades = _shade(shown)
    for kind in shown.kinds:
        code[shown.kind == kind] = len(colours) + shade[shown.kind == kind]
        colours += _shades(LOOKS[kind], shades, theme)
        legend_entry(figure, LOOKS[kind], theme)
    legend_entry(figure, IDLE, theme)
    cells = np.where(op < 0, 0, code[op]).astype(np.uint8)
    name = [Kind(k).name + (str(m) if m >= 0 else "") for k, m in zip(shown.kind, shown.microbatch, strict=True)]
    width = span * 1e-9 / unit.scale / BINS
    figure.add_heatmap(
        z=cells,
        zmin=-0.5,
        zmax=len(colours) - 0.5,
        colorscale=_steps(colours),
        showscale=False,
        x0=shown.begin * 1e-9 / unit.scale + width / 2,
        dx=width,
        ygap=2 if rows <= 20 else 0,
        text=[["idle" if i < 0 else name[i] for i in line] for line in op.tolist()],
        customdata=np.repeat(shown.ranks.astype(np.int16)[:, None], BINS, axis=1),
        hovertemplate=f"<b>%{{text}}</b><br>rank %{{customdata}}<br>at %{{x:.4~r}} {unit.name}<extra></extra>",
    )


def _steps(colours: list[str]) -> list[tuple[float, str]]:
    n = len(colours)
    return [(i / n, c) for k, c in enumerate(colours) for i in (k, k + 1)]
