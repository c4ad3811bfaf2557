"""Every configuration of a search by two objectives, with the front of the best trade-offs."""

from collections.abc import Callable, Mapping
from math import ceil, floor, log10
from typing import Any, Literal, NamedTuple

import numpy as np
import plotly.graph_objects as go

from sim.engine.step import Step, most_allocated
from sim.report.numbers import byte_unit, time_unit
from sim.report.theme import HEIGHT, Theme, colour, frame, label
from sim.specs import InputError, Plan
from sim.specs.arguments import checked
from sim.specs.plan import RECOMPUTE
from sim.tuner.front import Floats, Front, Ints, pareto
from sim.tuner.objectives import MEASURES, Measured, Setting
from sim.tuner.tune import Tuned
from sim.units import digits3, grouped

GROUPS = (
    ("1", 1, 1, "forward", "circle"),
    ("2–4", 2, 4, "weight", "square"),
    ("5–16", 5, 16, "backward", "diamond"),
    ("> 16", 17, 10**9, "communication", "triangle-up"),
)
"""Legend text, degrees from, to, colour, symbol: the symbol tells the groups apart without colour."""

Degree = Literal["pp", "tp", "dp", "micro_batch"]

MOST_TICKS = 8


class Axis(NamedTuple):
    """One objective as an axis: its title, shown number = SI value / `scale`, whether logarithmic and the values.

    Free memory is drawn as the peak that leaves it. of: the value of a step; losses: of every configuration, less is
    better.
    """

    title: str
    scale: float
    unit: str
    log: bool
    values: Floats
    losses: Floats
    of: Callable[[Step], float]


def _axis(tuned: Tuned, objective: Measured) -> Axis:
    time, peak = tuned.scores.step_time_s.ravel(), tuned.scores.peak_memory_bytes.ravel()
    if objective == "memory_headroom":
        unit = byte_unit(tuned.cluster.memory_bytes)
        title = f"peak allocated memory ({unit.name})"
        return Axis(title, unit.scale, f"{unit.name} allocated", False, peak, peak, lambda step: step.peak_memory_bytes)
    if objective == "step_time":
        unit = time_unit(tuned.best.step.step_time_s)
        title = f"step time ({unit.name}), log scale"
        return Axis(title, unit.scale, f"{unit.name} a step", True, time, time, lambda step: step.step_time_s)
    setting, measure = Setting(tuned.model, tuned.cluster, tuned.global_batch), MEASURES[objective]
    values = np.asarray(measure.value(setting, time, peak))

    def of(step: Step) -> float:
        return float(measure.value(setting, step.step_time_s, step.peak_memory_bytes))

    words, scale = {"cost": ("USD per 1e9 tokens", 1.0), "tokens_per_usd": ("million tokens per USD", 1e6)}[objective]
    return Axis(f"{words}, log scale", scale, words, True, values, -values if measure.more else values, of)


@checked
def front(
    tuned: Tuned,
    theme: Theme = "light",
    max_points: int = 5_000,
    webgl: bool = True,
    x: Measured = "memory_headroom",
    y: Measured = "step_time",
    confirmed: Front | None = None,
    misfits: bool = True,
    compared: Mapping[str, Step] | None = None,
    by: Degree = "pp",
) -> go.Figure:
    """Return two objectives of all scored configurations, by default step time against allocated peak memory.

    At most `max_points` points, thinned evenly; configurations that do not fit are grey. The line is the
    front by the closed forms: nothing that fits is better in both. `confirmed` (`sim.front`, of the same objectives)
    marks the front's plans as the engine has them. misfits: False leaves those that do not fit to a click on their
    entry of the legend, which counts them. The axes show what fits; a double click shows everything. webgl:
    False draws vector points, which print well and need no graphics driver. compared: plans by name that are marked
    too, the first by an open circle. by: the degree that colours tell apart.

    Raises:
        InputError: an objective needs a price that is not known, `confirmed` is of other objectives, or `max_points` is
            not above 0.
    """
    if max_points < 1:
        raise InputError("max_points", max_points, "a whole number from 1")
    scores, space = tuned.scores, tuned.space
    fits = np.flatnonzero((space.allowed & scores.fits).ravel())
    others = np.flatnonzero((space.allowed & ~scores.fits).ravel())
    axes = _axis(tuned, x), _axis(tuned, y)
    figure = frame(theme, HEIGHT + 120, *(axis.title for axis in axes))
    most = max(max_points - len(others), round(0.8 * max_points))
    chosen = _thinned(fits, most)
    add = figure.add_scattergl if webgl else figure.add_scatter
    name = f"does not fit ({grouped(len(others))})"
    grey = _points(tuned, _thinned(others, max_points - len(chosen)), axes, (name, "other", "x-thin"), theme)
    add(**grey, visible=None if misfits else "legendonly")
    degrees = space.rows[by][np.unravel_index(chosen, space.allowed.shape)[0]]
    for text, low, high, shade, symbol in GROUPS:
        part = chosen[(degrees >= low) & (degrees <= high)]
        if len(part):
            add(**_points(tuned, part, axes, (f"{by.replace('_', '-')} {text}", shade, symbol), theme))
    edge = fits[pareto(*(axis.losses[fits] for axis in axes))]
    figure.add_scatter(
        **{key: axis.values[edge] / axis.scale for key, axis in zip("xy", axes, strict=True)},
        name="front",
        hoverinfo="skip",
        mode="lines",
        line={"color": colour("text", theme), "width": 1.5, "shape": "hv"},
    )
    if confirmed:
        _confirmed(figure, confirmed, axes, (x, y), theme)
    named = {"best": tuned.best.step, "baseline": tuned.baseline, **(compared or {})}
    marks = {name: step for name, step in named.items() if step}
    _marked(figure, marks, axes, theme)
    for key, axis in zip("xy", axes, strict=True):
        marked = [axis.of(step) for step in marks.values()]  # of unequal stages, maybe, or too large
        if axis.log:
            _logarithmic(figure, key, np.append(axis.values[fits], marked) / axis.scale)
        else:
            _to_the_limit(figure, key, axis, tuned.best.step, max(marked), theme)
    return figure


def _words(plan: Plan) -> str:
    if plan.stages:
        return f"pp {plan.pp}, unequal stages of<br>{', '.join(map(str, plan.split_stages))} layers"
    return (
        f"tp {plan.tp}, pp {plan.pp}, virtual stages {plan.virtual_stages}, "
        f"micro-batch {plan.micro_batch}<br>ZeRO-{plan.zero}, recompute {plan.recompute}"
    )


def _confirmed(figure: go.Figure, found: Front, axes: tuple[Axis, Axis], asked: tuple[str, str], theme: Theme) -> None:
    if (found.x, found.y) != asked:
        raise InputError("confirmed", (found.x, found.y), f"a front of {asked[0]} and {asked[1]}")
    held = {"step_time": "step_time_s", "memory_headroom": "peak_memory_bytes"}
    columns = [
        [getattr(plan, held.get(name, key)) / axis.scale for plan in found.plans]
        for key, name, axis in zip("xy", asked, axes, strict=True)
    ]
    figure.add_scatter(
        x=columns[0],
        y=columns[1],
        name="front, simulated" if found.certified else "front, simulated so far",
        mode="markers",
        marker={"symbol": "circle-open", "size": 10, "color": colour("text", theme), "line": {"width": 1.5}},
        text=[_words(p.plan) for p in found.plans],
        hovertemplate=f"<b>%{{text}}</b><br>%{{y:.3~r}} {axes[1].unit}<br>%{{x:.3~r}} {axes[0].unit}<extra></extra>",
    )


def _thinned(indices: Ints, most: int) -> Ints:
    """Return at most `most` of the indices, spread evenly."""
    if len(indices) <= most:
        return indices
    return indices[np.linspace(0, len(indices) - 1, most).round().astype(np.int64)]


def _points(
    tuned: Tuned, flat: Ints, axes: tuple[Axis, Axis], look: tuple[str, str, str], theme: Theme
) -> dict[str, Any]:
    """Return the trace of one group of configurations, each with its plan in the hover and, last, its flat index."""
    space, (across, up) = tuned.space, axes
    row, again, zero, parallel = np.unravel_index(flat, space.allowed.shape)
    columns = [space.rows[k][row] for k in ("tp", "pp", "virtual_stages", "dp", "micro_batch")]
    details = np.stack([*columns, space.zero[zero], flat], axis=1).astype(np.int32)
    name, shade, symbol = look
    style = {"symbol": symbol, "size": 5, "color": colour(shade, theme), "opacity": 0.75}
    thin = {"line": {"width": 1, "color": style["color"]}} if symbol.endswith("thin") else {}
    lines = [
        "<b>tp %{customdata[0]}, pp %{customdata[1]}, virtual stages %{customdata[2]}, dp %{customdata[3]}</b>",
        "micro-batch %{customdata[4]}, ZeRO-%{customdata[5]}",
        "recompute %{text}",
        f"%{{y:.3~r}} {up.unit}",
        f"%{{x:.3~r}} {across.unit}<extra></extra>",
    ]
    return {
        "x": across.values[flat] / across.scale,
        "y": up.values[flat] / up.scale,
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


def _marked(figure: go.Figure, marks: Mapping[str, Step], axes: tuple[Axis, Axis], theme: Theme) -> None:
    looks = {"best": ("star", "backward", 16), "baseline": ("diamond", "page", 11)}
    others = [name for name in marks if name not in looks]
    looks |= {name: ("circle" if n else "circle-open", "text", 13) for n, name in enumerate(others)}
    # The legend has no room for more.
    written = {"mode": "markers+text", "textposition": "top center", "showlegend": False}
    for name, step in marks.items():
        symbol, fill, size = looks[name]
        figure.add_scatter(
            x=[axes[0].of(step) / axes[0].scale],
            y=[axes[1].of(step) / axes[1].scale],
            name=name,
            **(written | {"text": [name]} if name in others else {"mode": "markers"}),
            marker={
                "symbol": symbol,
                "size": size,
                "color": colour(fill, theme),
                "line": {"width": 1.5, "color": colour("text", theme)},
            },
            hovertemplate=f"<b>{name}</b>: tp {step.plan.tp}, pp {step.plan.pp}, dp {step.placed.dp}"
            + "".join(f"<br>{digits3(axis.of(step) / axis.scale)} {axis.unit}" for axis in axes[::-1])
            + "<extra></extra>",
        )


def _to_the_limit(figure: go.Figure, key: str, axis: Axis, step: Step, most: float, theme: Theme) -> None:
    """Draw where memory ends: the allocated bytes whose 80 % interval still fits. most: of what is marked, bytes."""
    capacity = step.cluster.memory_bytes
    limit = most_allocated(step.profile, step.cluster) / axis.scale
    text = f"fits up to {limit:.3g} of {byte_unit(capacity).text(capacity)}"
    add = {"x": figure.add_vline, "y": figure.add_hline}[key]
    add(
        **{key: limit},
        line={"dash": "dash", "width": 1, "color": colour("text", theme)},
        annotation=label(text, theme) | {"xanchor": "right"},
        annotation_position="top left" if key == "x" else "top right",
    )
    figure.update_layout({f"{key}axis": {"range": [0, max(1.25 * limit, 1.05 * most / axis.scale)]}})


def _logarithmic(figure: go.Figure, key: str, shown: Floats) -> None:
    low, high = log10(float(shown.min()) * 0.9), log10(float(shown.max()) * 1.1)
    ticks = _ticks(low, high)
    words = [digits3(t) for t in ticks]
    figure.update_layout({f"{key}axis": {"type": "log", "range": [low, high], "tickvals": ticks, "ticktext": words}})


def _ticks(low: float, high: float) -> list[float]:
    """Return at most eight round numbers between two powers of ten, over all of the axis: best plans are at its end."""
    marks: list[float] = []
    for digits in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        every = (n * 10.0**k for k in range(floor(low), ceil(high) + 1) for n in digits)
        marks = [t for t in every if low <= log10(t) <= high]
        if len(marks) <= MOST_TICKS:
            break
    return marks[:: -(-len(marks) // MOST_TICKS) or 1]
