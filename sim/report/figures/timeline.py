"""The pipeline's timeline: one row per pipeline rank, a bar per operation or a raster of them."""

from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class Shown:
    """The operations drawn: ranks in rows, then one entry per operation (times in ns from the step's start)."""

    ranks: Ints
    row: Ints
    start: Ints
    end: Ints
    kind: Ints
    stage: Ints
    chunk: Ints
    microbatch: Ints
    chunks: int
    total: int

    @property
    def kinds(self) -> list[Kind]:
        """The kinds that take time, in the legend's order."""
        held = set(self.kind[self.end > self.start].tolist())
        return [k for k in LOOKS if k in held]


def timeline(step: Step, ranks: int = 16, theme: Theme = "light") -> go.Figure:
    """Return the timeline of a step: time against pipeline rank.

    ranks: rows at most; of a longer pipeline they are spread evenly, the first and the last included. Up to
    1,000 operations are bars, more become a raster (colour of a bin: the operation that holds most of it,
    idle only if none touches it). Deeper colour is an earlier chunk of the model.
    """
    shown = _shown(step, ranks)
    unit = time_unit(shown.total * 1e-9)
    note = " (deeper colour: earlier chunk of the model)" if shown.chunks > 1 else ""
    height = min(560, 120 + 22 * len(shown.ranks))
    figure = frame(theme, height, f"time ({unit.name}){note}", "pipeline rank", barmode="overlay", bargap=0.15)
    (_bars if len(shown.start) <= MAX_BARS else _raster)(figure, shown, unit, theme)
    every = -(-len(shown.ranks) // 8)
    rows = np.arange(0, len(shown.ranks), every)
    end = len(shown.ranks) - 0.5
    figure.update_yaxes(range=[end, -0.5], tickvals=rows, ticktext=shown.ranks[rows].astype(str), showgrid=False)
    figure.update_xaxes(range=[0, shown.total * 1e-9 / unit.scale])
    return figure


def _shown(step: Step, most: int) -> Shown:
    graph, schedule = step.timeline.graph, step.timeline.schedule
    ranks = np.unique(np.linspace(0, schedule.ranks - 1, min(schedule.ranks, max(1, most))).round().astype(int))
    kept = np.isin(graph.rank, ranks)
    of_rank = np.array(schedule.rank_of)
    chunk = np.array([np.count_nonzero(of_rank[:s] == r) for s, r in enumerate(of_rank)])
    whole_rank = graph.microbatch < 0  # an update belongs to the rank, not to a chunk
    zero = int(step.timeline.start.min())
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
        total=max(1, step.timeline.makespan),
    )


def _shades(look: Look, chunks: int, theme: Theme) -> list[str]:
    return [mixed(look.colour, theme, s) for s in np.linspace(1.0, PALEST, chunks)]


def _bars(figure: go.Figure, shown: Shown, unit: Unit, theme: Theme) -> None:
    scale = 1e-9 / unit.scale
    for kind in shown.kinds:
        look, chosen = LOOKS[kind], np.flatnonzero(shown.kind == kind)
        chosen = chosen[np.argsort(shown.chunk[chosen], kind="stable")]  # the legend takes the first one's shade
        style = marker(look, theme)
        if shown.chunks > 1 and not look.hatch and kind is not Kind.OPTIMIZER:
            shades = _shades(look, shown.chunks, theme)
            style |= {"color": shown.chunk[chosen], "cmin": 0, "cmax": shown.chunks - 1, "colorscale": shades}
        start, end = shown.start[chosen] * scale, shown.end[chosen] * scale
        details = np.stack([start, end, shown.microbatch[chosen], shown.stage[chosen], shown.ranks[shown.row[chosen]]])
        one_batch = kind not in (Kind.REDUCE_GRAD, Kind.OPTIMIZER)
        figure.add_bar(
            orientation="h",
            base=start,
            x=end - start,
            y=shown.row[chosen],
            width=0.85,
            name=look.label,
            marker=style,
            text=[kind.name] * len(chosen) if one_batch else None,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            customdata=details.T,
            hovertemplate=f"<b>{look.label}</b>"
            + ("<br>microbatch %{customdata[2]}, stage %{customdata[3]}" if one_batch else "")
            + "<br>rank %{customdata[4]}"
            + f"<br>%{{customdata[0]:.4~r}}–%{{customdata[1]:.4~r}} {unit.name}"
            + f"<br>lasts %{{x:.3~r}} {unit.name}<extra></extra>",
        )
    legend_entry(figure, IDLE, theme)
    rows = np.arange(len(shown.ranks))
    figure.add_bar(
        orientation="h", x=np.full(len(rows), shown.total * scale), y=rows, width=0.85, showlegend=False,
        hoverinfo="skip", marker={"color": colour("idle", theme)}, zorder=-1,
    )  # fmt: skip
    figure.update_layout(uniformtext={"mode": "hide", "minsize": 10})


def _raster(figure: go.Figure, shown: Shown, unit: Unit, theme: Theme) -> None:
    rows = len(shown.ranks)
    op = raster(shown.start, shown.end, shown.row, rows, BINS, shown.total)
    colours, code = [colour("idle", theme)], np.zeros(len(shown.start), dtype=np.int64)
    for kind in shown.kinds:
        code[shown.kind == kind] = len(colours) + shown.chunk[shown.kind == kind]
        colours += _shades(LOOKS[kind], shown.chunks, theme)
        legend_entry(figure, LOOKS[kind], theme)
    legend_entry(figure, IDLE, theme)
    cells = np.where(op < 0, 0, code[op]).astype(np.uint8)
    name = [Kind(k).name + (str(m) if m >= 0 else "") for k, m in zip(shown.kind, shown.microbatch, strict=True)]
    width = shown.total * 1e-9 / unit.scale / BINS
    figure.add_heatmap(
        z=cells, zmin=-0.5, zmax=len(colours) - 0.5, colorscale=_steps(colours), showscale=False,
        x0=width / 2, dx=width, ygap=2 if rows <= 20 else 0,
        text=[["idle" if i < 0 else name[i] for i in line] for line in op.tolist()],
        customdata=np.repeat(shown.ranks.astype(np.int16)[:, None], BINS, axis=1),
        hovertemplate=f"<b>%{{text}}</b><br>rank %{{customdata}}<br>at %{{x:.4~r}} {unit.name}<extra></extra>",
    )  # fmt: skip


def _steps(colours: list[str]) -> list[tuple[float, str]]:
    n = len(colours)
    return [(i / n, c) for k, c in enumerate(colours) for i in (k, k + 1)]
