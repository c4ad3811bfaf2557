"""A shared cluster: completion times by load and by policy, their distribution, shares and devices over time."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from sim.cluster.results import Simulated
from sim.cluster.state import Floats, Ints
from sim.report.theme import HEIGHT, MARGIN, STYLES, Theme, colour, frame, mixed, safe
from sim.specs.arguments import checked, numbers
from sim.specs.fields import InputError
from sim.units import HOUR_S, digits3

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MANY = 40
"""Devices from which on a row need not be one device."""
BINS = 600
"""Columns of the picture of devices."""

Measure = Literal["average_jct_s", "makespan_s", "fairness", "cost_usd"]
MEASURES: Mapping[Measure, str] = {
    "average_jct_s": "average completion time (h)",
    "makespan_s": "makespan (h)",
    "fairness": "finish-time fairness rho (below 1: sooner than on an equal share)",
    "cost_usd": "cost of the device time (USD)",
}


def _line(number: int, theme: Theme) -> dict[str, object]:
    """Return how the curve of that number is drawn: colours in turn, then another dash."""
    return {"color": colour(STYLES[number % 7][0], theme), "dash": DASHES[number // 7 % len(DASHES)], "width": 2}


@checked
def cluster_load(
    found: Mapping[str, Mapping[float, float]],
    published: Mapping[str, Mapping[float, float]] | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Return average completion times (h) over jobs an hour by policy, and published ones as open circles.

    Raises:
        InputError: there are no curves.
    """
    if not found:
        raise InputError("found", {}, "one curve or more")
    figure = frame(theme, HEIGHT + 120, "jobs an hour", "average completion time (h)")
    for number, (name, curve) in enumerate(found.items()):
        line = _line(number, theme)
        figure.add_scatter(
            x=list(curve),
            y=list(curve.values()),
            name=safe(name),
            legendgroup=name,
            mode="lines+markers",
            line=line,
            marker={"color": line["color"], "size": 6, "symbol": STYLES[number % 7][1]},
            hovertemplate=f"<b>{safe(name)}</b><br>%{{x:g}} jobs an hour: %{{y:.1f}} h<extra></extra>",
        )
        for x, y in (published or {}).get(name, {}).items():
            figure.add_scatter(
                x=[x],
                y=[y],
                legendgroup=name,
                showlegend=False,
                mode="markers",
                marker={"color": line["color"], "size": 9, "symbol": "circle-open", "line": {"width": 2}},
                hovertemplate=f"<b>{safe(name)}</b>, published<br>%{{x:g}} jobs an hour: %{{y:.1f}} h<extra></extra>",
            )
    if published:
        look = {"color": colour("secondary", theme), "size": 9, "symbol": "circle-open", "line": {"width": 2}}
        figure.add_scatter(x=[None], y=[None], name="published", mode="markers", marker=look)
    return figure.update_yaxes(rangemode="tozero")


@checked
def cluster_completion(runs: Mapping[str, Simulated], theme: Theme = "light") -> go.Figure:
    """Return the share of jobs (%) that have ended within a time of their arrival (h), by policy.

    Raises:
        InputError: there are no runs.
    """
    if not runs:
        raise InputError("runs", {}, "one simulation or more")
    figure = frame(theme, HEIGHT + 80, "completion time (h)", "share of the jobs (%)")
    for number, (name, run) in enumerate(runs.items()):
        jct = np.sort(run.jct_s[run.counted.start : run.counted.stop]) / HOUR_S
        jct = jct[~np.isnan(jct)]
        figure.add_scatter(
            x=jct,
            y=100 * np.arange(1, len(jct) + 1) / max(1, len(jct)),
            name=safe(name),
            mode="lines",
            line=_line(number, theme) | {"shape": "hv"},
            hovertemplate=f"<b>{safe(name)}</b><br>%{{y:.0f}} % within %{{x:.3~g}} h<extra></extra>",
        )
    figure.update_xaxes(type="log", dtick=1, minor={"ticks": "inside", "nticks": 9})
    return figure.update_yaxes(range=[0, 101])


@checked
def cluster_policies(
    runs: Mapping[str, Simulated], measure: Measure = "average_jct_s", theme: Theme = "light"
) -> go.Figure:
    """Return a bar for every run, the best one first.

    Raises:
        InputError: there are no runs, or one of them has no such number.
    """
    if not runs:
        raise InputError("runs", {}, "one simulation or more")
    values = {name: _value(run, measure) for name, run in runs.items()}
    order = sorted(values, key=lambda name: values[name])
    figure = frame(theme, 110 + 30 * len(order), MEASURES[measure], "", margin=MARGIN | {"t": 16}, bargap=0.3)
    figure.add_bar(
        orientation="h",
        x=[values[name] for name in order],
        y=list(map(safe, order)),
        text=[digits3(values[name]) for name in order],
        marker={"color": colour("forward", theme)},
        hovertemplate="<b>%{y}</b>: %{x:.4~g}<extra></extra>",
    )
    return figure.update_yaxes(autorange="reversed", tickmode="linear", dtick=1, showgrid=False)


def _value(run: Simulated, measure: Measure) -> float:
    if measure == "fairness":
        return run.mean_fairness
    value: float | None = getattr(run, measure)
    if value is None:
        raise InputError("runs", run.policy, "simulations with usd_per_hour")
    return value / HOUR_S if measure.endswith("_s") else value


@checked
def cluster_fairness(levels: Mapping[str, Sequence[float]], theme: Theme = "light") -> go.Figure:
    """Return what every entity gets over time, stacked: sums of its jobs' normalised effective throughputs.

    Raises:
        InputError: there are no entities, or one of them has no list of numbers.
    """
    if not levels:
        raise InputError("levels", {}, "one entity or more")
    figure = frame(theme, HEIGHT + 60, "time (steps)", "sum of effective throughputs (normalised)")
    for number, (name, given) in enumerate(levels.items()):
        values = numbers(f"levels.{name}", given)
        figure.add_scatter(
            x=list(range(len(values))),
            y=values,
            name=safe(name),
            mode="lines",
            stackgroup="all",
            line={"color": colour(STYLES[number % 7][0], theme), "shape": "hv", "width": 1},
            fillcolor=mixed(STYLES[number % 7][0], theme, 0.5),
            hovertemplate=f"<b>{safe(name)}</b><br>step %{{x}}: %{{y:.2f}}<extra></extra>",
        )
    return figure


@checked
def cluster_devices(run: Simulated, until_h: float | None = None, theme: Theme = "light") -> go.Figure:
    """Return which job held which device when, from the first arrival to the end or `until_h` after it.

    Two that share a device have the first's colour. Of more than 40 devices, neighbours that hold the same jobs all the
    while are one row.

    Raises:
        InputError: the rounds were not recorded, or `until_h` is not above 0.
    """
    if not run.entries:
        raise InputError("run.entries", [], "a simulation with record=True")
    hours = run.makespan_s / HOUR_S if until_h is None else until_h
    if not hours > 0:
        raise InputError("until_h", until_h, "a number of hours above 0")
    jobs, rows = _pixels(run, hours * HOUR_S), _device_names(run)
    if len(rows) > MANY:
        jobs, rows = _alike(jobs, rows)
    shades = [colour("idle", theme), *(mixed(name, theme, s) for s in (0.95, 0.6, 0.35) for name, _ in STYLES[:6])]
    code = np.where(jobs[..., 0] < 0, 0, 1 + jobs[..., 0] % (len(shades) - 1))
    names = np.array([*(f"job {n}: {safe(job.job_type)}" for n, job in enumerate(run.jobs)), ""], dtype=object)
    text = np.where(jobs[..., 1] >= 0, names[jobs[..., 0]] + " and " + names[jobs[..., 1]], names[jobs[..., 0]])
    figure = frame(theme, 110 + max(160, 14 * len(rows)), "time (h)", "", margin=MARGIN | {"t": 16})
    steps = [(k / len(shades), shade) for k, shade in enumerate(shades) for k in (k, k + 1)]
    figure.add_heatmap(
        z=code.astype(np.uint8),
        y=rows,
        x0=hours / BINS / 2,
        dx=hours / BINS,
        zmin=-0.5,
        zmax=len(shades) - 0.5,
        colorscale=steps,
        showscale=False,
        ygap=1 if len(rows) <= MANY else 0,
        text=text,
        hovertemplate="<b>%{y}</b> at %{x:.3~g} h<br>%{text}<extra></extra>",
    )
    return figure.update_yaxes(showgrid=False, type="category")


def _pixels(run: Simulated, until_s: float) -> Ints:
    """Return the jobs (W, BINS, 2) on each device in the middle of every column."""
    at = run.begin_s + (np.arange(BINS) + 0.5) * until_s / BINS
    begin: Floats = np.array([entry.start_s for entry in run.entries])
    last = np.array([entry.start_s + entry.length_s * entry.repeats for entry in run.entries])
    index = np.searchsorted(begin, at, side="right") - 1
    held = np.stack([entry.held for entry in run.entries])[np.maximum(index, 0)]
    held[(index < 0) | (at > last[np.maximum(index, 0)])] = -1
    ended = np.append(np.nan_to_num(run.end_s, nan=np.inf), np.inf)
    held[ended[held] < at[:, None, None]] = -1  # the rest of a round in which a job ended
    return held.transpose(1, 0, 2)


def _alike(jobs: Ints, rows: list[str]) -> tuple[Ints, list[str]]:
    """Return one row for neighbours (of one type) with the same jobs in every column."""
    kinds, numbers = zip(*(row.rsplit(" ", 1) for row in rows), strict=True)
    same = (jobs[1:] == jobs[:-1]).all(axis=(1, 2)) & (np.array(kinds[1:]) == np.array(kinds[:-1]))
    first = np.flatnonzero(np.append(True, ~same))
    last = np.append(first[1:], len(rows)) - 1
    ends = zip(first.tolist(), last.tolist(), strict=True)
    return jobs[first], [rows[a] if a == b else f"{rows[a]}–{numbers[b]}" for a, b in ends]


def _device_names(run: Simulated) -> list[str]:
    """Return the names of devices in their order: by the names of their types."""
    counts = dict(zip(run.types, run.devices.tolist(), strict=True))
    return [f"{safe(name)} {n}" for name in sorted(counts) for n in range(counts[name])]
