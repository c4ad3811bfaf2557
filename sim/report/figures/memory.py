"""Memory: of one rank over time, and every rank's peak, both against the device's capacity."""

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from sim.engine.memory import MemoryTimeline
from sim.engine.step import Step, device_memory, memory_sigma
from sim.report.decimation import decimate, lasting
from sim.report.numbers import Unit, byte_unit, bytes_interval, time_unit
from sim.report.theme import (
    CATEGORIES,
    HEIGHT,
    MARGIN,
    OUTSIDE,
    TRANSPARENT,
    Theme,
    capacity_line,
    colour,
    frame,
    label,
    legend_entry,
    marker,
    mixed,
    outline,
    overflow_pattern,
    pattern,
    whiskers,
)
from sim.schedules.ir import in_flight
from sim.specs.arguments import checked
from sim.specs.fields import InputError
from sim.specs.plan import PlacedPlan
from sim.units import GIB, percent

Floats = NDArray[np.float64]
POINTS = 400
STRIP, GAP = 40, 14
"""Pixels of the microbatches in flight, and between them and the curve above."""

SHARDED_FROM = {"parameters": 3, "gradients": 2, "optimizer": 1}
"""The first stage of ZeRO that shards a category (arXiv 1910.02054)."""


@checked
def memory(step: Step, stage: int | None = None, theme: Theme = "light", reference: Step | None = None) -> go.Figure:
    """Return the memory of one pipeline rank over a step: bytes by category, stacked, as steps; below, on the same time
    axis, how many microbatches of its chunks are in flight.

    stage: the pipeline rank; None is the fullest one. The dashed level is what the device must hold (the
    allocator's reserve and the context included); what of it lies over the capacity is hatched. reference: another plan
    whose allocated bytes (of the same rank, or its fullest) are drawn as a line.

    Raises:
        InputError: no such rank.
    """
    if stage is not None and not 0 <= stage < len(step.memory):
        raise InputError("stage", stage, f"a pipeline rank, 0 to {len(step.memory) - 1}")
    held = step.fullest if stage is None else step.memory[stage]
    at_s, by_category = _curves(step, held)
    placed = step.placed.at(held.rank)
    device = device_memory(held.peak_bytes, step.profile)
    time, size = time_unit(step.step_time_s), byte_unit(max(device, step.cluster.memory_bytes))
    figure = frame(theme, HEIGHT + STRIP + GAP, f"time ({time.name})", f"memory of rank {held.rank} ({size.name})")
    for name, look in CATEGORIES.items():
        values = by_category[name]
        if not values.any():
            continue
        legend_entry(figure, look, theme, name)
        figure.add_scatter(
            x=at_s / time.scale,
            y=values / size.scale,
            name=look.label,
            mode="lines",
            stackgroup="memory",
            line={"shape": "hv", "width": 0.5, "color": colour("edge", theme)},
            fillcolor=colour(look.colour, theme),
            fillpattern=pattern(look, theme) if look.hatch else None,
            customdata=values / GIB,
            legendgroup=name,
            showlegend=False,
            hovertemplate=f"<b>{look.label}</b><br>%{{y:.3~r}} {size.name} (%{{customdata:.3~r}} GiB)"
            f"<br>from %{{x:.4~r}} {time.name} on{_divided(step, placed, name)}<extra></extra>",
        )
    end, top = step.step_time_s / time.scale, device
    if reference:
        end = max(end, reference.step_time_s / time.scale)
        other = reference.memory[held.rank] if held.rank < len(reference.memory) else reference.fullest
        at_s, by_category = _curves(reference, other)
        total = np.sum(list(by_category.values()), axis=0)
        _outlined(figure, at_s / time.scale, total, other.rank, size, theme)
        top = max(top, float(total.max()))
    _device_level(figure, end, device, step, size, theme)
    _capacity(figure, step, device, size, theme, top)
    figure.update_xaxes(range=[0, end])
    _in_flight(figure, step, held, time, theme)
    return figure


def _in_flight(figure: go.Figure, step: Step, held: MemoryTimeline, time: Unit, theme: Theme) -> None:
    """Draw below the curve how many (stage, microbatch) activations are alive, as steps."""
    alive = np.fromiter(in_flight(held.actions), dtype=np.int64, count=len(held.actions))
    change = np.diff(alive, prepend=0)
    at = np.where(change > 0, held.at_ns[::2], held.at_ns[1::2])  # from the forward's start to the backward's end
    moves = np.flatnonzero(change)
    kept = moves[decimate(alive[moves], POINTS - 2)]
    at_s = (at[kept] - step.timeline.zero) * 1e-9
    inside = HEIGHT + STRIP + GAP - MARGIN["t"] - MARGIN["b"]
    figure.add_scatter(
        x=np.concatenate([[0.0], at_s, [step.step_time_s]]) / time.scale,
        y=np.concatenate([[0], alive[kept], [0]]),
        yaxis="y2",
        name="microbatches in flight",
        mode="lines",
        line={"shape": "hv", "width": 1, "color": colour("text", theme)},
        fill="tozeroy",
        fillcolor=mixed("secondary", theme, 0.4),
        showlegend=False,
        hovertemplate=f"<b>%{{y}} microbatches in flight</b><br>from %{{x:.4~r}} {time.name} on<br>"
        "of each chunk of the model those that went<br>forward and have not come back<extra></extra>",
    )
    figure.update_layout(
        xaxis_anchor="y2",
        yaxis_domain=[(STRIP + GAP) / inside, 1],
        yaxis2={"domain": [0, STRIP / inside], "anchor": "x", "nticks": 3, "rangemode": "tozero"},
        yaxis2_title_text="in flight",
    )


def _curves(step: Step, held: MemoryTimeline) -> tuple[Floats, dict[str, Floats]]:
    """Return the instants (s) and the bytes by category from each on, at most `POINTS` of them."""
    kept = lasting(held, POINTS - 2)
    at = held.at_ns[kept] - step.timeline.zero
    at_s = np.concatenate([[0.0], at * 1e-9, [step.step_time_s]])
    moving = {"activations": held.activations, "temporaries": held.temporaries}
    curves = {name: np.concatenate([[0.0], values[kept], values[kept[-1:]]]) for name, values in moving.items()}
    fixed = {name: np.full(len(at_s), float(held.fixed.get(name, 0.0))) for name in CATEGORIES if name not in moving}
    return at_s, fixed | curves


def _outlined(figure: go.Figure, at: Floats, total: Floats, rank: int, size: Unit, theme: Theme) -> None:
    """Draw the allocated bytes of the plan that is compared with. at: axis units, total: bytes."""
    figure.add_scatter(
        x=at,
        y=total / size.scale,
        mode="lines",
        name=f"A, pipeline rank {rank}",
        line={"shape": "hv", "width": 2, "dash": "dot", "color": colour("text", theme)},
        hovertemplate=f"<b>A</b><br>%{{y:.3~r}} {size.name} allocated<extra></extra>",
    )


def _device_level(figure: go.Figure, end: float, device: float, step: Step, size: Unit, theme: Theme) -> None:
    capacity, level = step.cluster.memory_bytes / size.scale, device / size.scale
    figure.add_scatter(
        x=[0, end],
        y=[level, level],
        mode="lines",
        name="with " + OUTSIDE.label,
        line={"dash": "dash", "width": 1.5, "color": colour("secondary", theme)},
        hovertemplate=f"<b>device memory</b><br>{size.text(device)} ({device / GIB:.3g} GiB)"
        "<br>tensors, allocator's reserve,<br>communicators and context<extra></extra>",
    )
    if level > capacity:
        figure.add_scatter(
            x=[0, end, end, 0],
            y=[capacity, capacity, level, level],
            fill="toself",
            mode="none",
            name="over capacity",
            fillpattern=overflow_pattern(theme),
            hoverinfo="skip",
        )


def _capacity(figure: go.Figure, step: Step, device: float, size: Unit, theme: Theme, top: float) -> None:
    """Draw the capacity line with its label, and the amount that is missing above `top` (B)."""
    capacity = step.cluster.memory_bytes
    capacity_line(figure, capacity / size.scale, f"capacity {size.text(capacity)}", theme)
    if device > capacity:
        low, high = step.profile.interval80(device, memory_sigma(step.profile))
        over = f"over by {bytes_interval(device - capacity, (low - capacity, high - capacity))}"
        # Of an interval that reaches below the capacity nobody can tell by how much it is exceeded.
        text = label(over if low > capacity else f"close: {bytes_interval(device, (low, high))}", theme, "over")
        place = {"xref": "paper", "x": 0, "y": top / size.scale, "xanchor": "left", "yanchor": "bottom"}
        figure.add_annotation(**text, **place, showarrow=False)
    figure.update_yaxes(range=[0, 1.16 * max(capacity, top) / size.scale])


@checked
def memory_peaks(step: Step, theme: Theme = "light", reference: Step | None = None) -> go.Figure:
    """Return every pipeline rank's peak by category as stacked bars, with the 80 % interval of device memory.

    On top of the tensors lies what the device must hold beside them; what exceeds the capacity is hatched. reference:
    another plan whose device memory is drawn as outlines.
    """
    peaks = np.array([m.peak_bytes for m in step.memory])
    device = np.asarray(device_memory(peaks, step.profile), dtype=np.float64)
    size = byte_unit(max(float(device.max()), step.cluster.memory_bytes))
    figure = frame(theme, HEIGHT, "pipeline rank", f"peak memory ({size.name})", barmode="stack")
    figure.update_layout(bargap=1 - 0.7 * min(1.0, len(peaks) / 4))
    ranks, capacity = np.arange(len(peaks)), step.cluster.memory_bytes
    parts, places = [m.composition() for m in step.memory], [step.placed.at(m.rank) for m in step.memory]
    held = [(name, look, np.array([p[name] for p in parts])) for name, look in CATEGORIES.items()]
    for name, look, values in [*held, ("", OUTSIDE, device - peaks)]:
        if values.any():
            figure.add_bar(
                x=ranks,
                y=values / size.scale,
                name=look.label,
                marker=marker(look, theme),
                customdata=values / GIB,
                text=[_divided(step, placed, name) for placed in places],
                textposition="none",
                hovertemplate=_hover(look.label, size),
            )
    _, factor = step.profile.interval80(1.0, memory_sigma(step.profile))
    error = whiskers(device / size.scale, device / factor / size.scale, device * factor / size.scale, theme)
    figure.data[-1].update(error_y=error)
    if device.max() > capacity:
        _overflow(figure, device, capacity, size, theme)
    top = float(device.max()) * factor
    if reference:
        top = max(top, _outlines(figure, reference, size, theme))
        ranks = np.arange(max(len(ranks), len(reference.memory)))
    _capacity(figure, step, float(device.max()), size, theme, top)
    figure.update_xaxes(showgrid=False, tick0=0, dtick=max(1, -(-len(ranks) // 8)), range=[-0.5, len(ranks) - 0.5])
    return figure


def _outlines(figure: go.Figure, reference: Step, size: Unit, theme: Theme) -> float:
    """Draw every rank's device memory of the plan that is compared with, and return the largest (B)."""
    held = np.array([device_memory(m.peak_bytes, reference.profile) for m in reference.memory], dtype=np.float64)
    figure.add_bar(
        x=np.arange(len(held)),
        y=held / size.scale,
        base=0,
        name="A",
        marker=outline(theme),
        hovertemplate=f"<b>A</b><br>pipeline rank %{{x}}<br>%{{y:.3~r}} {size.name} of device memory<extra></extra>",
    )
    return float(held.max())


def _overflow(figure: go.Figure, device: Floats, capacity: float, size: Unit, theme: Theme) -> None:
    """Hatch what lies over the capacity."""
    over = np.flatnonzero(device > capacity)
    edge = {"width": 1, "color": colour("over", theme)}
    figure.add_bar(
        x=over,
        y=(device[over] - capacity) / size.scale,
        base=capacity / size.scale,
        name="over capacity",
        marker={"color": TRANSPARENT, "pattern": overflow_pattern(theme), "line": edge},
        hovertemplate=f"<b>over capacity</b><br>pipeline rank %{{x}}: over by %{{y:.3~r}} {size.name}<extra></extra>",
    )


def _hover(label: str, size: Unit) -> str:
    return (
        f"<b>{label}</b><br>pipeline rank %{{x}}<br>%{{y:.3~r}} {size.name} (%{{customdata:.3~r}} GiB)%{{text}}"
        "<extra></extra>"
    )


def _divided(step: Step, placed: PlacedPlan, category: str) -> str:
    """Return the line of a hover that says by what a pipeline rank's bytes are divided; none of what is not.

    placed: what a uniform plan would be that treats every rank like this one.
    """
    plan, schedule = placed.plan, step.timeline.schedule
    tp = f"tp {plan.tp}"
    notes = []
    if category in SHARDED_FROM:
        shares = [tp, f"pp {plan.pp}{', unevenly' if plan.stage_layers else ''}"]
        if plan.zero >= SHARDED_FROM[category] and placed.shard > 1:
            shares.append(f"{placed.shard} ranks by ZeRO-{plan.zero}")
        notes += [f"experts by ep {plan.ep} x etp {plan.etp} instead of tp"] if step.model.experts else []
        notes += ["two copies"] if category == "parameters" and schedule.pipelines > 1 else []
    elif category in ("activations", "temporaries"):
        shares = [tp if plan.sequence_parallel or plan.tp == 1 else f"{tp} in part", f"cp {plan.cp}"]
        notes += [f"micro-batch {plan.micro_batch}", f"recompute {plan.recompute}"]
    else:
        return ""
    host = getattr(plan.offload, {"parameters": "weights"}.get(category, category), 0.0)
    notes += [f"{percent(host)} on the host"] if host else []
    return "; ".join((f"<br>divided by {' x '.join(shares)}", *notes))
