"""Decentralised training: accuracy against traffic, theta by skew and bandwidth, a run over time, and its exchanges."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal, TypeVar

import plotly.graph_objects as go

from sim.decentralized import AccuracyModel, ShortRun, Simulated, WhatIf
from sim.decentralized.processes import Part
from sim.decentralized.what_if import Axis
from sim.engine.clock import TICK_S
from sim.report.figures.grid import cells
from sim.report.figures.labels import Point, placed
from sim.report.figures.throughput import curves, styled
from sim.report.numbers import byte_unit
from sim.report.theme import HEIGHT, MARGIN, Look, Theme, colour, frame, marker, mixed, safe, whiskers
from sim.specs.arguments import checked
from sim.specs.fields import InputError
from sim.units import HOUR_S, si

AXES: Mapping[Axis, tuple[str, str]] = {
    "bandwidth": ("bandwidth of a link", "B/s"),
    "partitions": ("partitions", ""),
    "skew": ("skew", ""),
    "model_bytes": ("size of the model", "B"),
}
LOOKS: Mapping[Part, Look] = {
    "compute": Look("forward", "", "compute"),
    "exchange": Look("communication", "\\", "sending"),
    "waiting": Look("idle", "/", "waiting for others"),
    "travel": Look("backward", "", "models travel, are evaluated"),
    "timeout": Look("over", "x", "nobody answers"),
}
Found = TypeVar("Found")
Fitted = Literal["accuracy", "accuracy_loss"]
FITTED: Mapping[Fitted, str] = {
    "accuracy": "accuracy of the run's end (%)",
    "accuracy_loss": "accuracy lost away from home (%)",
}
KILO = 1e3
LOG = {"type": "log", "nticks": 3, "tickformat": "~g"}
"""An axis with 1, 2 and 5 of each decade, written out: without a format plotly.js writes 20 as 2."""
Asked = Literal["hours", "traffic"]
SHIFT = 0.09
"""Of each skew's points beside the next one's (thetas apart), so that whiskers do not cover each other."""
MOST = 0.6
"""Share of the colour in the fullest cells; numbers stay readable on it."""


@checked
def decentralized_front(found: Sequence[Simulated], theme: Theme = "light") -> go.Figure:
    """Return accuracy (%, with its 80 % interval) against traffic, a point for every training.

    Points are labelled with the theta that they end with, where there is room for it; those of one algorithm and
    controller are joined, in a style of their own.

    Raises:
        InputError: a training has no accuracy, or there is none.
    """
    groups: dict[str, list[Simulated]] = {}
    for one in _some(found):
        if one.accuracy is None:
            raise InputError("found", one.setting.algorithm, "trainings simulated with short runs, which say accuracy")
        name = one.setting.algorithm + (f", {one.setting.controller}" if one.setting.adapts else "")
        groups.setdefault(name, []).append(one)
    unit = byte_unit(max(one.traffic_bytes for one in found))
    figure = frame(theme, HEIGHT + 80, f"traffic ({unit.name})", "accuracy (%)")
    lines = {}
    for name, held in groups.items():
        rows = [(one.traffic_bytes / unit.scale, one.final_theta, one.accuracy) for one in held]
        lines[name] = sorted(Point(x, e.value, e.low, e.high, f"{theta:g}") for x, theta, e in rows if e)
    return _labelled(figure, lines, f" {unit.name}", theme)


@checked
def decentralized_runs(found: Sequence[ShortRun], theme: Theme = "light") -> go.Figure:
    """Return the accuracy (%) of short runs against what one partition sends to one other for a minibatch (kB).

    A point for every theta of an algorithm, labelled with it where there is room: the mean over runs, whiskers to the
    least and the most.

    Raises:
        InputError: there is no run.
    """
    groups: dict[str, dict[float, list[ShortRun]]] = {}
    for run in _some(found, "short runs (sim.decentralized.read_runs)"):
        groups.setdefault(run.algorithm, {}).setdefault(run.theta, []).append(run)
    figure = frame(theme, HEIGHT + 80, "sent from one partition to one other for a minibatch (kB)", "accuracy (%)")
    lines = {}
    for name, thetas in groups.items():
        points = []
        for theta, runs in thetas.items():
            each = [run.accuracy for run in runs]
            sent = fmean(run.sent_bytes for run in runs) / KILO
            points.append(Point(sent, fmean(each), min(each), max(each), f"{theta:g}"))
        lines[name] = sorted(points)
    return _labelled(figure, lines, " kB", theme)


@checked
def decentralized_loss(model: AccuracyModel, quantity: Fitted = "accuracy_loss", theme: Theme = "light") -> go.Figure:
    """Return a quantity (%) over the thetas that were measured, a line for every skew, with 80 % intervals.

    Circles without a line are the short runs themselves.
    """
    thetas = sorted({run.theta for run in model.runs})
    figure = frame(theme, HEIGHT + 80, f"theta of {model.algorithm}", FITTED[quantity])
    lines = {f"skew {skew:g}": skew for skew in sorted({run.skew for run in model.runs})}
    for n, ((name, skew), style) in enumerate(styled(lines)):
        shift = SHIFT * (n - (len(lines) - 1) / 2)
        found = [getattr(model, quantity)(theta, skew) for theta in thetas]
        points = [Point(at + shift, e.value, e.low, e.high, "") for at, e in enumerate(found)]
        _line(figure, name, points, "", style, theme)
        runs = [run for run in model.runs if run.skew == skew]
        figure.add_scatter(
            x=[thetas.index(run.theta) + shift for run in runs],
            y=[100 * getattr(run, quantity) for run in runs],
            mode="markers",
            showlegend=False,
            marker={"color": colour(style[0], theme), "symbol": "circle-open", "size": 5},
            hovertemplate=f"a short run, {name}: %{{y:.3~g}} %<extra></extra>",
        )
    return figure.update_xaxes(
        tickmode="array", tickvals=list(range(len(thetas))), ticktext=[f"{theta:g}" for theta in thetas]
    )


@checked
def decentralized_what_if(
    rows: Mapping[str, Sequence[WhatIf]], shown: Asked = "hours", theme: Theme = "light"
) -> go.Figure:
    """Return how long trainings take, or what they send, over the values of an axis of `sim.decentralized.what_if`.

    A line for every name; the same axis in all.

    Raises:
        InputError: there is no row, or axes differ.
    """
    axes = {row.axis for line in rows.values() for row in line}
    if len(axes) != 1:
        raise InputError("rows", sorted(axes), "rows of one axis")
    (axis,) = axes
    title, unit = AXES[axis]
    scale = byte_unit(max(row.traffic_bytes for line in rows.values() for row in line))
    lines = {
        name: {
            si(row.value, unit) if unit else f"{row.value:g}": row.seconds / HOUR_S
            if shown == "hours"
            else row.traffic_bytes / scale.scale
            for row in line
        }
        for name, line in rows.items()
    }
    figure = curves(lines, title, "hours" if shown == "hours" else f"traffic ({scale.name})", theme)
    return figure.update_yaxes(type="log", tickformat="~g", rangemode="normal")


def _labelled(figure: go.Figure, lines: Mapping[str, Sequence[Point]], unit: str, theme: Theme) -> go.Figure:
    """Add lines of fractions (%) over a logarithmic axis, with labels where they cover nothing."""
    for ((name, points), style), places in zip(styled(lines), placed(list(lines.values())), strict=True):
        _line(figure, name, points, unit, style, theme)
        figure.data[-1].update(
            text=[point.text if place else "" for point, place in zip(points, places, strict=True)],
            textposition=[place or "top right" for place in places],
            textfont={"color": colour(style[0], theme)},
            mode="lines+markers+text",
        )
    return figure.update_xaxes(**LOG)


def _line(
    figure: go.Figure, name: str, points: Sequence[Point], unit: str, style: tuple[str, str, str], theme: Theme
) -> None:
    """Add a line of fractions (%), with whiskers."""
    shade, symbol, dash = style
    values, lows, highs = ([100 * getattr(point, end) for point in points] for end in ("value", "low", "high"))
    bars = [whiskers(*ends, theme) for ends in zip(values, lows, highs, strict=True)]
    labelled = any(point.text for point in points)
    where = f", theta %{{customdata}}: %{{x:.3~g}}{unit}, " if labelled else ": "
    figure.add_scatter(
        x=[point.x for point in points],
        y=values,
        error_y=bars[0] | {key: [bar[key] for bar in bars] for key in ("array", "arrayminus")},
        customdata=[point.text for point in points] if labelled else None,
        mode="lines+markers",
        name=name,
        line={"color": colour(shade, theme), "dash": dash, "width": 1.5},
        marker={"color": colour(shade, theme), "symbol": symbol, "size": 9},
        hovertemplate=f"{name}{where}%{{y:.3~g}} %<extra></extra>",
    )


@checked
def decentralized_map(found: Sequence[Simulated], theme: Theme = "light") -> go.Figure:
    """Return the theta that trainings end with by skew (rows) and bandwidth of the links (columns).

    Cells are the darker the more times as long BSP takes. A theta does not depend on bandwidth as long as controllers
    weigh bytes; what it is worth does.

    Raises:
        InputError: there is no training, or links differ.
    """
    by_place = {}
    for one in _some(found):
        bandwidth = one.setting.wan.bytes_per_s
        if isinstance(bandwidth, tuple):
            raise InputError("found", "a matrix of bandwidths", "trainings whose links are alike")
        by_place[one.setting.skew, bandwidth] = one
    skews, widths = (sorted({place[n] for place in by_place}) for n in (0, 1))
    rows = [[by_place.get((skew, width)) for width in widths] for skew in skews]
    times = [[one.bsp_seconds / one.seconds if one else None for one in row] for row in rows]
    figure = frame(theme, 120 + 34 * len(skews), "bandwidth of a link", "skew", margin=MARGIN | {"t": 24})
    hover = "skew %{y}, links of %{x}: BSP takes %{z:.2f} times as long<extra></extra>"
    shades = [colour("page", theme), mixed("forward", theme, MOST)]
    most = max((time for row in times for time in row if time), default=1.0)
    columns, names = [si(width, "B/s") for width in widths], [f"{skew:g}" for skew in skews]
    cells(figure, columns, names, times, (0.0, most), shades, "%{text}", hover, theme)
    texts = [["" if one is None else f"{one.final_theta:g}" for one in row] for row in rows]
    return figure.update_traces(text=texts)


@checked
def decentralized_theta(found: Simulated, theme: Theme = "light") -> go.Figure:
    """Return theta over minibatches as steps, and beside it the objective that every travel showed (right axis)."""
    figure = frame(theme, HEIGHT + 60, "minibatches", "theta", margin=MARGIN | {"r": 64})
    figure.add_scatter(
        x=[since.step for since in found.thetas] + [found.steps],
        y=[since.theta for since in found.thetas] + [found.thetas[-1].theta],
        name="theta",
        mode="lines",
        line={"shape": "hv", "color": colour("forward", theme), "width": 2.5},
        hovertemplate="from minibatch %{x}: theta %{y}<extra></extra>",
    )
    seen = [travel for travel in found.travels if travel.objective is not None]
    figure.add_scatter(
        x=[travel.step for travel in seen],
        y=[travel.objective for travel in seen],
        customdata=[100 * (travel.accuracy_loss or 0.0) for travel in seen],
        name="objective",
        yaxis="y2",
        mode="lines+markers",
        line={"color": colour("backward", theme), "dash": "dot", "width": 1.5},
        marker={"color": colour("backward", theme), "symbol": "square", "size": 7},
        hovertemplate="minibatch %{x}: objective %{y:.3~g}, accuracy loss %{customdata:.2f} %<extra></extra>",
    )
    figure.update_yaxes(type="log", tickvals=list(found.setting.thetas))
    most = max((travel.objective or 0.0 for travel in seen), default=0.0) or 1.0
    right = {"overlaying": "y", "side": "right", "title": {"text": "objective"}, "showgrid": False}
    return figure.update_layout(yaxis2=right | {"range": [-0.04 * most, 1.08 * most], "tickmode": "auto", "nticks": 6})


@checked
def decentralized_timeline(found: Simulated, until_s: float | None = None, theme: Theme = "light") -> go.Figure:
    """Return what each partition does over time as bars, from the begin until `until_s` or as far as it is kept."""
    count = found.setting.partitions
    figure = frame(theme, 110 + 34 * count, "seconds", "", barmode="overlay", bargap=0.25)
    shown = [span for span in found.spans if until_s is None or span.start_ns * TICK_S < until_s]
    for kind, look in LOOKS.items():
        bars = [span for span in shown if span.kind == kind]
        if bars:
            figure.add_bar(
                orientation="h",
                base=[span.start_ns * TICK_S for span in bars],
                x=[(span.end_ns - span.start_ns) * TICK_S for span in bars],
                y=[span.partition for span in bars],
                width=0.8,
                name=look.label,
                marker=marker(look, theme),
                customdata=[span.end_ns * TICK_S for span in bars],
                hovertemplate=f"{safe(look.label)}: %{{base:.4~g}} to %{{customdata:.4~g}} s<extra></extra>",
            )
    names = [f"partition {n}" for n in range(count)]
    figure.update_yaxes(
        tickmode="array", tickvals=list(range(count)), ticktext=names, autorange="reversed", showgrid=False,
    )  # fmt: skip
    return figure.update_xaxes(rangemode="tozero", range=None if until_s is None else [0, until_s])


def _some(found: Sequence[Found], of: str = "trainings (sim.decentralized.simulate)") -> Sequence[Found]:
    if not found:
        raise InputError("found", [], f"one or more {of}")
    return found
