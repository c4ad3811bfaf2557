"""What bounds each kernel: achieved rate against arithmetic intensity, under the roofs of its device."""

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Literal, NamedTuple

import numpy as np
import plotly.graph_objects as go

from sim.costs.operations import Operation
from sim.engine.step import Step
from sim.report.numbers import time_unit
from sim.report.theme import HEIGHT, MARGIN, Theme, colour, frame, label, safe
from sim.specs import InputError
from sim.specs.arguments import checked
from sim.specs.catalog import precision
from sim.specs.device import Rate
from sim.units import digits3, percent, si

FAMILIES = (
    ("product, forward", "forward", "circle"),
    ("product, input gradient", "backward", "square"),
    ("product, weight gradient", "weight", "diamond"),
    ("attention", "communication", "triangle-up"),
    ("norm, softmax, loss", "recompute", "cross"),
    ("element-wise", "optimizer", "x"),
)
"""Legend text, colour, symbol: the symbol tells the families apart without colour."""

SMALLEST, LARGEST = 6.0, 34.0
"""Pixels of a marker: of nothing, and of the longest operation; the area between grows with the time."""

Level = Literal["device", "profile", "host"]
"""What holds the operands: device memory at its data sheet's rate, the same as the profile has it, or host memory."""

A_ROOF = "A's roof"
ROUNDING = 1e-6
"""Relative excess over a roof that is none."""


class Roofs(NamedTuple):
    """Peaks of one device, times the cluster's what-if multipliers: data-sheet FLOP/s at the plan's precision and in 16
    bit, bytes/s of a memory, and which memory, by what source."""

    rate: Rate
    flop_per_s: float
    plain_flop_per_s: float
    bytes_per_s: float
    memory: str

    def over(self, intensity: float, by_recipe: bool) -> tuple[float, str]:
        """Return the most that can be computed at so many FLOP per byte (FLOP/s), at the plan's precision or as no
        recipe touches it, and what bounds it."""
        peak = self.flop_per_s if by_recipe else self.plain_flop_per_s
        if intensity * self.bytes_per_s <= peak:
            return intensity * self.bytes_per_s, self.memory
        return peak, f"{self.rate if peak == self.flop_per_s else '16-bit'}, data sheet"


class Point(NamedTuple):
    """One operation in the figure: FLOP per byte, FLOP/s, the roof above it (FLOP/s) and where that is from, share of
    the passes' time."""

    operation: Operation
    family: int
    intensity: float
    rate: float
    roof: float
    under: str
    share: float

    @property
    def above(self) -> bool:
        """Whether it is faster than the data sheet allows."""
        return self.rate > self.roof * (1 + ROUNDING)


@checked
def roofline(step: Step, theme: Theme = "light", reference: Step | None = None, level: Level = "device") -> go.Figure:
    """Return every kernel of a forward and a backward pass as FLOP/s against FLOP per byte, both axes logarithmic.

    A marker's area shows the share of the time of all layers; recompute, optimizer and collectives are left out.
    In 8 and 4 bit what the recipe leaves alone, attention and the head, is below the 16-bit roof.
    Kernels that memory bounds have no FLOP in the cost model: one per element is drawn, which moves a point along the
    roof and not towards it. The roofs are the data sheet's; a point above its roof is marked, and said to be wrong.
    reference: another plan, A, whose kernels are drawn as open markers, and its roof, where it has another, dashed.
    level: the memory whose roof is drawn: the device's by its data sheet ("device"), the same as the profile has it of
    element-wise kernels ("profile"), or the host's over the link that offloading uses ("host"); the points stay those
    of the step, so that some may lie above the latter two.

    Raises:
        InputError: the host level of a device that states no host link.
    """
    (roofs, points), (other, before) = _of(step, level), _of(reference, level) if reference else (None, [])
    scale, name = (1e12, "TFLOP/s") if roofs.flop_per_s >= 1e12 else (1e9, "GFLOP/s")
    figure = frame(
        theme, HEIGHT + 120, "arithmetic intensity (FLOP per byte), log scale", f"achieved rate ({name}), log scale",
        margin=MARGIN | {"t": 84},
    )  # fmt: skip
    every, peaks = [*points, *before], [r for r in (roofs, other) if r]
    span = _decades([p.intensity for p in every] + [r.flop_per_s / r.bytes_per_s for r in peaks], 1.5)
    heights = _decades([p.rate / scale for p in every] + [r.flop_per_s / scale for r in peaks], 1.6)
    ends = 10 ** span[0], 10 ** span[1]
    _draw_roofs(figure, roofs, ends, scale, theme)
    differs = other is not None and other != roofs
    if other and differs:
        _line(figure, other, other.flop_per_s, (A_ROOF, "dash"), ends, scale, theme)
    longest = max(p.share for p in every)
    _markers(figure, points, longest, scale, theme)
    _markers(figure, before, longest, scale, theme, f"A{', its roof dashed' if differs else ''}")
    if level == "device":
        _warn(figure, [p for p in points if p.above], scale, theme)
    for key, ends in (("x", span), ("y", heights)):
        powers = [10.0**k for k in range(ceil(ends[0]), floor(ends[1]) + 1)]
        ticks = powers[:: ceil(len(powers) / 8)]
        words = [digits3(t) if t < 1 else f"{t:g}" for t in ticks]
        figure.update_layout({f"{key}axis": {"type": "log", "range": ends, "tickvals": ticks, "ticktext": words}})
    return figure


def roofline_words(step: Step, level: Level = "device") -> str:
    """Return what share of both passes' time the memory bounds, and how near to their roof the kernels are; of host
    memory, how many times as long they would take at least with their operands there.

    Raises:
        InputError: as `roofline`.
    """
    roofs, points = _of(step, level)
    bound = sum(p.share for p in points if p.under == roofs.memory)
    begin = f"In {step.plan.precision}, at {si(roofs.bytes_per_s, 'B/s')} ({roofs.memory}),"
    if level == "host":
        longer = sum(p.share * max(1.0, p.rate / p.roof) for p in points)
        return f"{begin} both passes would take {digits3(longer)} times as long or more with all operands there."
    reached = sum(p.share * p.rate / p.roof for p in points)
    return (
        f"{begin} memory bounds {percent(bound)} of both passes' time; weighted by time, kernels reach "
        f"{percent(reached)} of their roof."
    )


def _of(step: Step, level: Level) -> tuple[Roofs, list[Point]]:
    """Return the roofs of a step's device and its kernels below them."""
    kinds = precision(step.plan.precision)
    roofs = _roofs(step, kinds.gemm.forward, level)
    return roofs, _points(step.operations, roofs, kinds.activation_bytes.value)


def _markers(
    figure: go.Figure, points: Sequence[Point], longest: float, scale: float, theme: Theme, of_a: str = ""
) -> None:
    """Add the markers of every family; those of A are open, with an entry of the legend together, `of_a`."""
    for number, (text, shade, symbol) in enumerate(FAMILIES):
        part = [p for p in points if p.family == number]
        if not part:
            continue
        filled = {"opacity": 0.8, "line": {"width": 1, "color": colour("edge", theme)}}
        figure.add_scatter(
            x=[p.intensity for p in part],
            y=[p.rate / scale for p in part],
            name=of_a or text,
            mode="markers",
            legendgroup=of_a or None,
            showlegend=not of_a or figure.data[-1].name != of_a,
            marker={
                "symbol": f"{symbol}-open" if of_a else symbol,
                "size": [SMALLEST + (LARGEST - SMALLEST) * (p.share / longest) ** 0.5 for p in part],
                "color": colour("text" if of_a else shade, theme),
                **({"line": {"width": 1.5}} if of_a else filled),
            },
            text=[f"<b>A:</b> {_hover(p)}" if of_a else _hover(p) for p in part],
            hovertemplate="%{text}<extra></extra>",
        )


def _roofs(step: Step, rate: Rate, level: Level) -> Roofs:
    device, by = step.member.hardware, step.member.multipliers
    low = {"fp8": device.peak_fp8_flop_per_s, "fp4": device.peak_fp4_flop_per_s}.get(rate)
    plain = device.peak_flop_per_s("fp32" if rate == "fp32" else "bf16")
    peak = low.value if low else plain
    return Roofs(rate, peak * by.clock, plain * by.clock, *_memory(step, level))


def _memory(step: Step, level: Level) -> tuple[float, str]:
    """Return a memory's rate in bytes/s, and which it is, by what source."""
    member = step.member
    if level == "host":
        rate = member.host_bytes_per_s
        if rate is None:
            raise InputError("level", level, f"device or profile: {member.device} states no host link")
        return rate, f"host memory, {'as stated' if member.links.host_bytes_per_s else 'assumed'}"
    by = member.multipliers.memory_rate
    if level == "device":
        return member.hardware.memory_bytes_per_s.value * by, "memory, data sheet"
    streamed = step.profile.read["elementwise", "any"]
    return streamed.parameters["bandwidth"] * by, f"memory, {streamed.status} by profile"


def _family(one: Operation) -> int:
    if one.flop:
        products = ("forward", "backward_input", "backward_weight")
        return 3 if one.name.endswith(("attention forward", "attention backward")) else products.index(one.phase)
    return 4 if any(word in one.name for word in ("norm", "softmax", "entropy")) else 5


def _points(found: Sequence[Operation], roofs: Roofs, element_bytes: float) -> list[Point]:
    whole = sum(one.count * one.seconds for one in found)
    points = []
    for one in found:
        flop = one.flop or one.bytes / element_bytes
        intensity, share = flop / one.bytes, one.count * one.seconds / whole
        roof, under = roofs.over(intensity, one.by_recipe)
        points.append(Point(one, _family(one), intensity, flop / one.seconds, roof, under, share))
    return points


def _hover(point: Point) -> str:
    """Return at most six lines."""
    one = point.operation
    where = f"{one.count} layers" if one.count > 1 else "once"
    counted = "" if one.flop else " (1 per element, assumed)"
    return "<br>".join((
        f"<b>{safe(one.name)}</b>, {where}",
        f"{time_unit(one.seconds).text(one.seconds)} each, {percent(point.share)} of both passes",
        f"{si(point.rate, 'FLOP/s')}, {percent(point.rate / point.roof)} of its roof",
        f"{si(one.bytes / one.seconds, 'B/s')} read and written ({si(one.bytes, 'B')})",
        f"{digits3(point.intensity)} FLOP per byte{counted}",
        f"time: model of the profile; roof: {point.under}",
    ))  # fmt: skip


def _draw_roofs(figure: go.Figure, roofs: Roofs, span: tuple[float, float], scale: float, theme: Theme) -> None:
    lower = roofs.plain_flop_per_s
    peaks = [(roofs.flop_per_s, "roof", "solid")]
    if lower != roofs.flop_per_s:
        peaks.append((lower, f"16-bit roof, {si(lower, 'FLOP/s')}", "dot"))
    for peak, *named in peaks:
        _line(figure, roofs, peak, named, span, scale, theme)
    figure.add_annotation(
        **label(f"{si(roofs.flop_per_s, 'FLOP/s')} ({roofs.rate}, data sheet)", theme), x=log10(span[1]),
        y=log10(roofs.flop_per_s / scale), showarrow=False, xanchor="right", yanchor="bottom", yshift=3,
    )  # fmt: skip
    middle = (span[0] * roofs.flop_per_s / roofs.bytes_per_s) ** 0.5
    figure.add_annotation(
        **label(f"{si(roofs.bytes_per_s, 'B/s')} ({roofs.memory})", theme), x=log10(middle),
        y=log10(middle * roofs.bytes_per_s / scale), showarrow=False, xanchor="left", yanchor="top", xshift=8,
    )  # fmt: skip


def _line(
    figure: go.Figure,
    roofs: Roofs,
    peak: float,
    named: Sequence[str],
    span: tuple[float, float],
    scale: float,
    theme: Theme,
) -> None:
    """Add a roof with its peak in FLOP/s; named: its text in the legend, and its dash."""
    figure.add_scatter(
        x=[span[0], peak / roofs.bytes_per_s, span[1]],
        y=[span[0] * roofs.bytes_per_s / scale, peak / scale, peak / scale],
        name=named[0],
        mode="lines",
        showlegend=named[0] != A_ROOF,
        hoverinfo="skip",
        line={"color": colour("text", theme), "width": 1.5, "dash": named[1]},
    )  # fmt: skip


def _decades(values: Sequence[float], room: float) -> tuple[float, float]:
    """Return the ends of a logarithmic axis as powers of ten, with `room` times as much on both sides."""
    return log10(float(np.min(values)) / room), log10(float(np.max(values)) * room)


def _warn(figure: go.Figure, above: Sequence[Point], scale: float, theme: Theme) -> None:
    if not above:
        return
    figure.add_scatter(
        x=[p.intensity for p in above],
        y=[p.rate / scale for p in above],
        mode="markers",
        showlegend=False,
        hoverinfo="skip",
        marker={"symbol": "circle-open", "size": LARGEST, "color": colour("over", theme), "line": {"width": 2}},
    )
    names = ", ".join(dict.fromkeys(safe(p.operation.name) for p in above[:3])) + (" ..." if len(above) > 3 else "")
    figure.add_annotation(
        **label(f"Warning: {names} above the roof: wrong units or count, or served from a cache", theme, "over"),
        xref="paper", yref="paper", x=0, y=1, xanchor="left", yanchor="bottom", showarrow=False,
    )  # fmt: skip
