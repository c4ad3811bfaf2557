"""Plans that were executed: what was predicted beside what was measured, a row a plan."""

from collections.abc import Sequence
from math import floor, log10
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sim.report.numbers import byte_unit, seconds_interval, signed, time_unit
from sim.report.theme import Theme, colour, frame, safe, whiskers
from sim.specs import InputError
from sim.specs.arguments import checked
from sim.validation.executed import Executed

ROW = 21
"""Pixels of a plan."""

PLAIN, SHARED = "measured", "measured, shared cores"


@checked
def executed_times(plans: Sequence[Executed], theme: Theme = "light") -> go.Figure:
    """Return the predicted step time of every plan with its 80 % interval, and the measured one.

    A filled diamond: a core for every process; an open one: processes share cores, which no prediction is of.

    Raises:
        InputError: no plan.
    """
    _any(plans)
    unit = time_unit(max(one.measured.step_time_s for one in plans))
    value, low, high = (
        np.array([[one.predicted.step_time_s, *one.predicted.interval_s] for one in plans]).T / unit.scale
    )
    figure = _rows(plans, f"time of a step ({unit.name}), logarithmic", theme)
    said = [seconds_interval(one.predicted.step_time_s, _pair(one.predicted.interval_s)) for one in plans]
    style = _marker("circle", "forward", theme)
    _add(figure, "predicted, 80 % interval", plans, value, said, style, error_x=whiskers(value, low, high, theme))
    for shared in (False, True):
        part = [one for one in plans if one.shares_cores is shared]
        took = [one.measured.step_time_s / unit.scale for one in part]
        words = [f"{unit.text(one.measured.step_time_s)}; predicted {signed(100 * one.error, 1)} %" for one in part]
        style = _marker("diamond-open" if shared else "diamond", "text" if shared else "backward", theme)
        if part:
            _add(figure, SHARED if shared else PLAIN, part, took, words, style)
    ends = (
        log10(float(low.min())),
        log10(max(float(high.max()), *(one.measured.step_time_s / unit.scale for one in plans))),
    )
    steps = (1, 2, 5) if ends[1] - ends[0] > 1 else range(1, 10)
    ticks = [n * 10.0**k for k in range(floor(ends[0]), floor(ends[1]) + 1) for n in steps]
    span = [ends[0] - 0.05, ends[1] + 0.05]
    return figure.update_xaxes(type="log", range=span, tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])


@checked
def executed_memory(plans: Sequence[Executed], theme: Theme = "light") -> go.Figure:
    """Return the predicted and the measured peak of every process, those of one plan on its row.

    Raises:
        InputError: no plan.
    """
    _any(plans)
    rows = [(one, n) for one in plans for n in range(one.processes)]
    told = np.array([one.predicted.peak_memory_bytes[n] for one, n in rows])
    seen = np.array([one.measured.peak_memory_bytes[n] for one, n in rows])
    unit = byte_unit(float(seen.max()))
    figure = _rows(plans, f"peak of a process' tensors ({unit.name})", theme)
    owners = [one for one, _ in rows]
    words = [f"process {n}: {unit.text(t)}" for (_, n), t in zip(rows, told, strict=True)]
    _add(figure, "predicted", owners, told / unit.scale, words, _marker("circle", "forward", theme))
    off = 100 * (told / seen - 1)
    words = [
        f"process {n}: {unit.text(s)}; predicted {signed(e, 2)} %" for (_, n), s, e in zip(rows, seen, off, strict=True)
    ]
    _add(figure, PLAIN, owners, seen / unit.scale, words, _marker("diamond-open", "text", theme) | {"size": 12})
    return figure.update_xaxes(rangemode="tozero")


def _any(plans: Sequence[Executed]) -> None:
    if not plans:
        raise InputError("plans", [], "one executed plan or more")


def _pair(ends: Sequence[float]) -> tuple[float, float]:
    low, high = ends
    return low, high


def _rows(plans: Sequence[Executed], x_title: str, theme: Theme) -> go.Figure:
    names = [safe(one.name) for one in plans]
    figure = frame(theme, 130 + ROW * max(4, len(names)), x_title, "", margin={"l": 12, "r": 24, "t": 64, "b": 44})
    ends = [len(names) - 0.5, -0.5]
    return figure.update_yaxes(categoryorder="array", categoryarray=names, range=ends, dtick=1)


def _marker(symbol: str, shade: str, theme: Theme) -> dict[str, Any]:
    edge = {"width": 1.5 if symbol.endswith("open") else 0.5, "color": colour("text", theme)}
    return {"symbol": symbol, "color": colour(shade, theme), "size": 9, "line": edge}


def _add(
    figure: go.Figure,
    name: str,
    plans: Sequence[Executed],
    x: Any,
    words: Sequence[str],
    marker: dict[str, Any],
    **more: Any,
) -> None:
    figure.add_scatter(
        x=x,
        y=[safe(one.name) for one in plans],
        name=name,
        mode="markers",
        marker=marker,
        text=list(words),
        hovertemplate=f"<b>%{{y}}</b><br>{name}: %{{text}}<extra></extra>",
        **more,
    )
