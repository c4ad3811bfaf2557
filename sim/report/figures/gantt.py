"""Bars of a timeline, or a raster of them, on one pair of axes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from sim.report.figures.raster import raster
from sim.report.numbers import Unit
from sim.report.theme import Look, Theme, colour, legend_entry, marker, mixed
from sim.schedules import Kind

Ints = NDArray[np.int64]

LOOKS = {
    "F": Look("forward", "", "forward (F)"),
    "B": Look("backward", "", "backward (B)"),
    "I": Look("backward", "", "backward, input (I)"),
    "W": Look("weight", "", "backward, weights (W)"),
    "inner": Look("communication", "/", "tp, cp, ep collectives"),
    "offload": Look("communication", "+", "host copies"),
    "dp": Look("communication", "\\", "gradient reduction (dp)"),
    "pp": Look("communication", ".", "messages (pp)"),
    "optimizer": Look("optimizer", "", "optimizer"),
    "step": Look("forward", "", "steps"),
    "late": Look("backward", "", "steps that were held up"),
    "lost": Look("over", "x", "lost to a failure"),
    "down": Look("other", "|", "until training goes on"),
    "fetch": Look("communication", "-", "reading data"),
    "prep": Look("recompute", "", "preparing data"),
    "snapshot": Look("weight", "", "snapshot"),
    "persist": Look("optimizer", "/", "writing to storage"),
}
BOTH = Look("backward", "", "backward (B), for the input only (I)")
NAMES = tuple(LOOKS)
OF_KIND = {Kind.REDUCE_GRAD: "dp", Kind.OPTIMIZER: "optimizer"}
LOOK_OF_KIND = np.array([NAMES.index(OF_KIND.get(k, k.name)) for k in Kind])
IDLE = Look("idle", "", "idle")
MAX_BARS = 1_000
BINS = 480
"""Of a raster's row: pixels of a plot in a panel beside its controls. plotly.js leaves out bins under a pixel."""
PALEST = 0.45
"""Share of the full colour that the last group keeps."""
MAX_SHADES = 8
"""Groups beyond this share shades, so that a figure keeps under 30 traces."""
PIXELS = 1_000
"""Width of a plot, about: bars narrower than 4 get no edge, which would hide them."""
WIDTH = 0.85
"""Height of a bar, of its row."""


@dataclass(frozen=True, eq=False)
class Shown:
    """What is drawn: the rows' names, then one entry per bar; `look` counts in `NAMES`, `index` in the timeline.

    Times in ns from the start of the step; the axis runs from `begin` to `finish`. group: of `groups`, which share a
    shade. half: 1 and 2 are the first and the second of a fused pair, which share a bar. words: of the hover, beside
    the kind, the times and the row. path: the critical path as (row, start, end), row -1 where it is out of sight.
    """

    rows: list[str]
    index: Ints
    row: Ints
    rank: Ints
    start: Ints
    end: Ints
    look: Ints
    group: Ints
    half: Ints
    words: list[str]
    groups: int
    begin: int
    finish: int
    path: list[tuple[int, int, int]]

    @property
    def looks(self) -> list[int]:
        """The looks that are drawn, in the legend's order."""
        return sorted(set(self.look.tolist()))


def draw(
    figure: go.Figure, shown: Shown, unit: Unit, theme: Theme, panel: int = 1, legend: list[int] | None = None
) -> None:
    """Add what is shown to the `panel`-th pair of axes of a figure, from the top; a bar each, or a raster of many.

    legend: the looks that it explains (None: no legend).
    """
    axes = {} if panel == 1 else {"xaxis": f"x{panel}", "yaxis": f"y{panel}"}
    if legend:
        _legend(figure, [NAMES[look] for look in legend], theme)
    if shown.path:
        _critical(figure, shown, unit, theme, axes, bool(legend))
    if legend:
        legend_entry(figure, IDLE, theme)
    (_bars if len(shown.start) <= MAX_BARS else _raster)(figure, shown, unit, theme, axes)
    every = -(-len(shown.rows) // (8 if all(r.isdigit() for r in shown.rows) else 40))
    at = np.arange(0, len(shown.rows), every)
    last = "" if panel == 1 else str(panel)
    span = [t * 1e-9 / unit.scale for t in (shown.begin, shown.finish)]
    names = [shown.rows[i] for i in at]
    style = {"range": [len(shown.rows) - 0.5, -0.5], "tickvals": at, "ticktext": names, "showgrid": False}
    figure.layout[f"yaxis{last}"].update(**style)
    figure.layout[f"xaxis{last}"].update(range=span)


def _legend(figure: go.Figure, names: list[str], theme: Theme) -> None:
    """Add an entry for every look; B and I share a colour, and the entry where there are both."""
    for name in names:
        both = name in "BI" and {"B", "I"} <= set(names)
        if not (both and name == "I"):
            legend_entry(figure, BOTH if both else LOOKS[name], theme, name)


def rank_title(rows: int) -> str:
    """Return the title of an axis of pipeline ranks, which must not be longer than the axis."""
    return "pipeline rank" if rows >= 4 else "rank"


def height(*rows: int) -> int:
    """Return the pixels of a figure with so many rows in each panel."""
    return 98 * len(rows) + 22 + min(440 * len(rows), 22 * sum(rows))


def _shades(look: Look, shades: int, theme: Theme) -> list[str]:
    return [mixed(look.colour, theme, s) for s in np.linspace(1.0, PALEST, shades)]


def _bars(figure: go.Figure, shown: Shown, unit: Unit, theme: Theme, axes: dict[str, str]) -> None:
    rows, scale = np.arange(len(shown.rows)), 1e-9 / unit.scale
    shade, shades = _shade(shown)
    for look in shown.looks:
        own, of_look = LOOKS[NAMES[look]], shown.look == look
        for n in np.unique(shade[of_look]).tolist():
            style = marker(own, theme)
            style |= {} if "pattern" in style else {"color": _shades(own, shades, theme)[n]}
            chosen = np.flatnonzero(of_look & (shade == n))
            wide = np.asarray(_wide(shown, shown.start[chosen], shown.end[chosen]), dtype=np.uint8)
            style = style | {"line": style["line"] | {"width": wide}}
            figure.add_bar(**_trace(shown, chosen, NAMES[look], unit), marker=style, **axes)
    figure.add_bar(
        orientation="h",
        x=np.full(len(rows), (shown.finish - shown.begin) * scale),
        base=shown.begin * scale,
        y=rows,
        width=WIDTH,
        showlegend=False,
        hoverinfo="skip",
        marker={"color": colour("idle", theme)},
        zorder=-1,
        **axes,
    )
    figure.update_layout(uniformtext={"mode": "hide", "minsize": 10})


def _wide(shown: Shown, start: Any, end: Any) -> Any:
    """Return whether a bar has more than 4 pixels."""
    return (end - start) * PIXELS > 4 * (shown.finish - shown.begin)


def _shade(shown: Shown) -> tuple[Ints, int]:
    """Return every operation's shade by its group, and how many shades there are."""
    shades = min(shown.groups, MAX_SHADES)
    return shown.group * shades // shown.groups, shades


def _trace(shown: Shown, chosen: Ints, name: str, unit: Unit) -> dict[str, Any]:
    """Return the bars of the operations `chosen`, all of one look; of a pair each takes half of the row."""
    scale, look, half = 1e-9 / unit.scale, LOOKS[name], shown.half[chosen]
    held, place = _named_rows(shown)
    start, end = shown.start[chosen] * scale, shown.end[chosen] * scale
    lines = [
        f"<b>{look.label}</b>",
        "%{customdata[2]}",
        place % "%{customdata[1]}",
        f"from %{{customdata[0]:.4~r}} {unit.name}, lasts %{{x:.3~r}} {unit.name}<extra></extra>",
    ]
    words = np.empty((len(chosen), 3), dtype=object)
    words[:, 0], words[:, 1], words[:, 2] = start, held[shown.row[chosen]], [shown.words[i] for i in chosen.tolist()]
    return {
        "orientation": "h",
        "base": start,
        "x": end - start,
        "y": shown.row[chosen] + np.array([0, -WIDTH / 4, WIDTH / 4])[half],
        "width": np.array([WIDTH, WIDTH / 2, WIDTH / 2])[half],
        "name": look.label,
        "legendgroup": "B" if name == "I" and NAMES.index("B") in shown.look else name,
        "showlegend": False,
        "text": [name] * len(chosen) if len(name) == 1 else None,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "customdata": words,
        "hovertemplate": "<br>".join(lines),
    }


def _raster(figure: go.Figure, shown: Shown, unit: Unit, theme: Theme, axes: dict[str, str]) -> None:
    rows, span = len(shown.rows), shown.finish - shown.begin
    middle = (shown.start + shown.end) // 2
    start = np.where(shown.half == 2, middle, shown.start) - shown.begin
    end = np.where(shown.half == 1, middle, shown.end) - shown.begin
    colours, code = [colour("idle", theme)], np.zeros(len(shown.start), dtype=np.int64)
    shade, shades = _shade(shown)
    for look in shown.looks:
        code[shown.look == look] = len(colours) + shade[shown.look == look]
        colours += _shades(LOOKS[NAMES[look]], shades, theme)
    op = raster(start, end, shown.row, code, rows, BINS, span)
    width = span * 1e-9 / unit.scale / BINS
    held, place = _named_rows(shown)
    figure.add_heatmap(
        z=np.where(op < 0, 0, code[op]).astype(np.uint8),
        zmin=-0.5,
        zmax=len(colours) - 0.5,
        colorscale=_steps(colours),
        showscale=False,
        x0=shown.begin * 1e-9 / unit.scale + width / 2,
        dx=width,
        ygap=2 if rows <= 20 else 0,
        text=np.array([*shown.words, "idle"])[op],  # -1 is the last
        customdata=np.repeat(held[:, None], BINS, axis=1),
        hovertemplate=f"<b>%{{text}}</b><br>{place % '%{customdata}'}<br>at %{{x:.4~r}} {unit.name}<extra></extra>",
        **axes,
    )


def _named_rows(shown: Shown) -> tuple[NDArray[Any], str]:
    """Return what a hover says of each row, and in which words: numbers, which take less room, where all are ranks."""
    first = [r.split()[0] for r in shown.rows]
    if all(name.isdigit() for name in first):
        return np.array([int(name) for name in first], np.int16), "pipeline rank %s"
    return np.array(shown.rows, dtype=object), "%s"


def _steps(colours: list[str]) -> list[tuple[float, str]]:
    n = len(colours)
    return [(i / n, c) for k, c in enumerate(colours) for i in (k, k + 1)]


def _critical(figure: go.Figure, shown: Shown, unit: Unit, theme: Theme, axes: dict[str, str], legend: bool) -> None:
    """Outline the critical path: a frame round each stay on a row, a line from one to the next."""
    stays: list[tuple[int, int, int]] = []
    for row, start, end in shown.path:
        if stays and stays[-1][0] == row and stays[-1][2] == start:
            stays[-1] = (row, stays[-1][1], end)
        else:
            stays.append((row, start, end))
    x: list[float | None] = []
    y: list[float | None] = []
    scale, up = 1e-9 / unit.scale, WIDTH / 2
    for (row, start, end), after in zip(stays, [*stays[1:], (-1, 0, 0)], strict=True):
        if row < 0 or end <= shown.begin or start >= shown.finish:
            continue
        a, b = start * scale, end * scale
        if _wide(shown, start, end):
            x += [a, b, b, a, a, None]
            y += [row - up, row - up, row + up, row + up, row - up, None]
        else:
            x += [a, b, None]
            y += [row, row, None]
        # Short stays that change between neighbouring rows would become a black patch.
        if after[0] >= 0 and (abs(after[0] - row) > 1 or _wide(shown, start, end) or _wide(shown, *after[1:])):
            x += [b, after[1] * scale, None]
            y += [row, after[0], None]
    line = {"color": colour("text", theme), "width": 1.5}
    place = {"mode": "lines", "line": line, "hoverinfo": "skip", "legendgroup": "critical"}
    figure.add_scatter(x=x, y=y, name="critical path", showlegend=legend, **place, **axes)
