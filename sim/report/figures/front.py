"""Every configuration of a search: step time against peak memory, with the front of the best trade-offs."""

from math import ceil, floor, log10
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from sim.costs.inputs import RECOMPUTE
from sim.engine.step import most_allocated
from sim.report.numbers import Unit, byte_unit, time_unit
from sim.report.theme import HEIGHT, Theme, colour, frame, label
from sim.specs.arguments import checked
from sim.tuner.tune import Tuned
from sim.units import THIN_SPACE, digits3

Ints = NDArray[np.int64]
GROUPS = (
    ("pp 1", 1, 1, "forward", "circle"),
    ("pp 2–4", 2, 4, "weight", "square"),
    ("pp 5–16", 5, 16, "backward", "diamond"),
    ("pp > 16", 17, 10**9, "communication", "triangle-up"),
)
"""Legend text, pp from, to, colour, symbol: the symbol tells the groups apart without colour."""


@checked
def front(tuned: Tuned, theme: Theme = "light", max_points: int = 5_000, webgl: bool = True) -> go.Figure:
    """Return step time against allocated peak memory of all scored configurations.

    At most `max_points` points, thinned evenly; configurations that do not fit are grey. The line is the
    front: nothing that fits is both faster and smaller. The axes show what fits; a double click shows
    everything. webgl: False draws vector points, which print well and need no graphics driver.
    """
    scores, space = tuned.scores, tuned.space
    fits = np.flatnonzero((space.allowed & scores.fits).ravel())
    misfits = np.flatnonzero((space.allowed & ~scores.fits).ravel())
    time, memory = scores.step_time_s.ravel(), scores.peak_memory_bytes.ravel()
    best = tuned.best.step
    units = time_unit(best.step_time_s), byte_unit(best.cluster.memory_bytes)
    figure = frame(
        theme, HEIGHT + 120, f"peak allocated memory ({units[1].name})", f"step time ({units[0].name}), log scale"
    )
    most = max(max_points - len(misfits), round(0.8 * max_points))
    chosen = _thinned(fits, most)
    add = figure.add_scattergl if webgl else figure.add_scatter
    name = f"does not fit ({len(misfits):,})".replace(",", THIN_SPACE)
    add(**_points(tuned, _thinned(misfits, max_points - len(chosen)), units, (name, "other", "x-thin"), theme))
    pp = np.broadcast_to(space.rows["pp"][:, None, None, None], space.allowed.shape).ravel()
    for text, low, high, shade, symbol in GROUPS:
        part = chosen[(pp[chosen] >= low) & (pp[chosen] <= high)]
        if len(part):
            add(**_points(tuned, part, units, (text, shade, symbol), theme))
    edge = pareto(memory[fits], time[fits])
    figure.add_scatter(
        x=memory[fits][edge] / units[1].scale,
        y=time[fits][edge] / units[0].scale,
        name="front",
        hoverinfo="skip",
        mode="lines",
        line={"color": colour("text", theme), "width": 1.5, "shape": "hv"},
    )
    _marked(figure, tuned, units, theme)
    _axes(figure, tuned, float(time[fits].max()), units, theme)
    return figure


def pareto(x: NDArray[np.float64], y: NDArray[np.float64]) -> Ints:
    """Return indices of the points with no other point below in both `x` and `y`, by rising x."""
    order = np.lexsort((y, x))
    falling = np.minimum.accumulate(y[order])
    return order[np.flatnonzero(np.diff(falling, prepend=np.inf) < 0)]


def _thinned(indices: Ints, most: int) -> Ints:
    """Return at most `most` of the indices, spread evenly."""
    if len(indices) <= most:
        return indices
    return indices[np.linspace(0, len(indices) - 1, most).round().astype(np.int64)]


def _points(
    tuned: Tuned, flat: Ints, units: tuple[Unit, Unit], look: tuple[str, str, str], theme: Theme
) -> dict[str, Any]:
    """Return the trace of one group of configurations, each with its plan in the hover."""
    space, (time, size) = tuned.space, units
    row, again, zero, parallel = np.unravel_index(flat, space.allowed.shape)
    columns = [space.rows[k][row] for k in ("tp", "pp", "virtual_stages", "dp", "micro_batch")]
    details = np.stack([*columns, space.zero[zero]], axis=1).astype(np.int32)
    name, shade, symbol = look
    style = {"symbol": symbol, "size": 5, "color": colour(shade, theme), "opacity": 0.75}
    thin = {"line": {"width": 1, "color": style["color"]}} if symbol.endswith("thin") else {}
    lines = [
        "<b>tp %{customdata[0]}, pp %{customdata[1]}, virtual stages %{customdata[2]}, dp %{customdata[3]}</b>",
        "micro-batch %{customdata[4]}, ZeRO-%{customdata[5]}",
        "recompute %{text}",
        f"%{{y:.3~r}} {time.name} a step",
        f"%{{x:.3~r}} {size.name} allocated<extra></extra>",
    ]
    return {
        "x": tuned.scores.peak_memory_bytes.ravel()[flat] / size.scale,
        "y": tuned.scores.step_time_s.ravel()[flat] / time.scale,
        "mode": "markers",
        "name": name,
        "customdata": details,
        "text": [
            f"{RECOMPUTE[int(i)]}, sequence parallel {'on' if on else 'off'}"
            for i, on in zip(space.recompute[again], space.sequence_parallel[parallel], strict=True)
        ],
        "marker": style | thin,
        "hovertemplate": "<br>".join(lines),
    }


def _marked(figure: go.Figure, tuned: Tuned, units: tuple[Unit, Unit], theme: Theme) -> None:
    marks = [("best", tuned.best.step, "star", "backward", 16)]
    if tuned.baseline:
        marks.append(("baseline", tuned.baseline, "diamond", "page", 11))
    for name, step, symbol, fill, size in marks:
        figure.add_scatter(
            x=[step.peak_memory_bytes / units[1].scale],
            y=[step.step_time_s / units[0].scale],
            name=name,
            mode="markers",
            marker={
                "symbol": symbol,
                "size": size,
                "color": colour(fill, theme),
                "line": {"width": 1.5, "color": colour("text", theme)},
            },
            hovertemplate=f"<b>{name}</b>: tp {step.plan.tp}, pp {step.plan.pp}, dp {step.placed.dp}"
            f"<br>{units[0].text(step.step_time_s)} a step"
            f"<br>{units[1].text(step.peak_memory_bytes)} allocated<extra></extra>",
        )


def _axes(figure: go.Figure, tuned: Tuned, slowest_s: float, units: tuple[Unit, Unit], theme: Theme) -> None:
    """Draw where memory ends: the allocated bytes whose 80 % interval still fits the device."""
    step = tuned.best.step
    capacity = step.cluster.memory_bytes
    limit = most_allocated(step.profile, step.cluster) / units[1].scale
    text = f"fits up to {limit:.3g} of {units[1].text(capacity)}"
    figure.add_vline(
        x=limit,
        line={"dash": "dash", "width": 1, "color": colour("text", theme)},
        annotation=label(text, theme) | {"xanchor": "right"},
        annotation_position="top left",
    )
    low, high = log10(step.step_time_s / units[0].scale * 0.9), log10(slowest_s / units[0].scale * 1.1)
    figure.update_xaxes(range=[0, 1.25 * limit])
    ticks = [n * 10.0**k for k in range(floor(low), ceil(high) + 1) for n in (1, 2, 3, 5, 7)]
    ticks = [t for t in ticks if low <= log10(t) <= high][-8:]
    figure.update_yaxes(type="log", range=[low, high], tickvals=ticks, ticktext=[digits3(t) for t in ticks])
