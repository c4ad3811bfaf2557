"""`report.html` of a profile folder: what was measured, how well the forms fit it, and how far to trust them.

One self-contained file like the simulator's reports. Every string from a file is escaped: by `markup` in text and
tables, by `safe` in figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from calibration.fit import predict
from calibration.fitted import Family
from calibration.samples import Floats
from calibration.whole import Whole
from sim.costs.fitted import LEVELS, USES, Errors, KernelModel
from sim.costs.profile import Profile
from sim.report import markup as m
from sim.report.figures.compared import measured
from sim.report.html import document
from sim.report.numbers import signed
from sim.report.theme import MARGIN, STYLES, Theme, colour, frame, mixed, safe
from sim.specs.files import write_atomically
from sim.units import many, percent, seconds, si
from sim.validation.traces import Joined


def _style(n: int) -> tuple[str, str]:
    """Return the colour and symbol of the n-th kernel: after one round, each colour takes the next symbol."""
    return STYLES[n % len(STYLES)][0], STYLES[(n + n // len(STYLES)) % len(STYLES)][1]


MOST_FLAGGED = 200
MOST_PERCENT = 200.0
LEGEND_ROW = 19
"""Pixels of a row of the legend, of which a figure of 500 pixels holds at most three entries side by side."""


def write_report(
    path: Path,
    profile: Profile,
    families: Sequence[Family],
    flagged: Sequence[Mapping[str, Any]],
    whole: Sequence[Whole] = (),
) -> None:
    """Write the report to `path`, whole or not at all."""
    write_atomically(path, page(profile, families, flagged, whole))


def page(
    profile: Profile, families: Sequence[Family], flagged: Sequence[Mapping[str, Any]], whole: Sequence[Whole] = ()
) -> str:
    """Return the report as text; `whole`: blocks and steps of the session."""
    title = f"Calibration of {profile.name}"
    n = sum(len(family.samples) for family in families)
    held = sum(len(samples) for family in families for samples in family.others.values())
    facts = f"{profile.date}; {many(n, 'kernel shape')} fitted, {held} held out, {len(flagged)} flagged and left out"
    facts += f"; {profile.disturbed_words}" if profile.disturbed_words else ""
    body = [
        f"<header><h1>{escape(title)}</h1>{m.paragraph(facts, 'facts')}{m.paragraph(verdict(families), 'answer')}"
        "</header>\n",
        m.section(
            "Errors by kernel",
            m.paragraph(
                "Mean absolute error in percent. Fit: five-fold cross-validation by shape family on the fitted shapes; "
                "random and larger shapes were never fitted.",
                "words",
            ),
            errors_table(families),
        ),
        whole_section(whole),
        m.section(
            "Roofline",
            m.pair(
                m.figure("roofline", lambda t: roofline(families, t), ROOFLINE),
                m.figure("bandwidth", lambda t: bandwidths(families, t), BANDWIDTH),
            ),
        ),
        m.section("Residuals by size", _residuals(families)),
        m.section(
            "Do the intervals hold?",
            m.figure("coverage", lambda t: coverage_figure(families, t), COVERAGE, _coverage_table(families)),
        ),
        flagged_section(flagged),
        device_section(profile),
    ]
    return document(title, "".join(body))


ROOFLINE = (
    "Measured rate of every fitted matrix product and attention kernel against its arithmetic intensity; lines: the "
    "highest fitted rate and bandwidth."
)
BANDWIDTH = "Measured bandwidth of every fitted memory-bound kernel against the bytes that it moves."
COVERAGE = (
    "Share of held-out samples inside their interval against the nominal level; the line is what it should be. A "
    "family of few samples moves in large steps."
)


def verdict(families: Sequence[Family]) -> str:
    """Return the answer in one sentence: of products, those whose models come first, which predictions read."""
    every = [f.model for f in families if f.model.op == "gemm"]
    read = [model.cross_validation for model in every if model.implementation == every[0].implementation]
    products = [errors for errors in read if errors]
    if not products:
        return "No matrix product had samples enough to be fitted."
    total = sum(e.n for e in products)
    mean, middle = (sum(getattr(e, name) * e.n for e in products) / total for name in ("mape", "median"))
    inside = sum(e.coverage90 * e.n for e in products) / total
    return (
        f"Matrix products of shapes that the fit had not seen are predicted to {mean:.1f} % on average "
        f"(median {middle:.1f} %); {percent(inside)} of them lie inside their 90 % interval."
    )


def errors_table(families: Sequence[Family]) -> str:
    """Return the errors of every kernel by use."""
    heads = [
        ("kernel", ""),
        ("fitted", "shapes"),
        ("flagged", "samples that the drift guard or the check set aside"),
        ("fit", "mean absolute error, cross-validated"),
        ("median", "median absolute error, cross-validated"),
        ("p90", "90 % of the cross-validated errors are below"),
        ("bias", "mean signed error, cross-validated"),
        *((use, f"mean absolute error of {use} shapes, and how many") for use in USES),
    ]
    return m.table(heads, [_error_row(family) for family in families])


def _error_row(family: Family) -> list[str]:
    model = family.model
    found = model.cross_validation
    numbers = (
        [f"{found.mape:.1f}", f"{found.median:.1f}", f"{found.p90:.1f}", signed(found.bias, 1)] if found else ["–"] * 4
    )
    held = [_held_out(model.held_out.get(use)) for use in USES]
    return [family.name, str(model.n_train), str(model.n_flagged), *numbers, *held]


def whole_section(whole: Sequence[Whole]) -> str:
    """Return what the profile says of the session's blocks and steps beside what they took."""
    if not whole:
        return ""
    heads = [("block or step", ""), ("predicted", ""), ("80 % interval", ""), ("measured", ""), ("error", "%")]
    rows = [
        [
            w.name,
            seconds(w.predicted_s),
            " to ".join(seconds(end) for end in w.interval_s),
            seconds(w.measured_s),
            signed(100 * w.error, 1),
        ]
        for w in whole
    ]
    inside = sum(w.inside for w in whole)
    mean = sum(abs(w.error) for w in whole) / len(whole)
    words = (
        "One layer forward and backward, and whole training steps with the optimizer's, measured in this session and "
        f"never fitted: {percent(mean)} off on average, {inside} of {len(whole)} inside their interval."
    )
    return m.section("Blocks and steps", m.paragraph(words, "words"), m.table(heads, rows))


def _held_out(found: Errors | None) -> str:
    return f"{found.mape:.1f} ({found.n})" if found else "–"


def roofline(families: Sequence[Family], theme: Theme) -> go.Figure:
    """Return achieved FLOP/s against FLOP per byte, both logarithmic, with the fitted roofs."""
    figure = frame(theme, 420, "arithmetic intensity (FLOP/byte)", "measured rate (FLOP/s)")
    kept = [f for f in families if np.any((f.flop > 0) & (f.bytes > 0)) and "rate" in f.model.parameters]
    if not kept:
        return figure.update_layout(title_text="no kernel with FLOP and bytes")
    for n, family in enumerate(kept):
        work = (family.flop > 0) & (family.bytes > 0)
        x, took = family.flop[work] / family.bytes[work], family.samples.seconds[work]
        _dots(figure, n, family.name, x, family.flop[work] / took, theme)
    intensity = np.concatenate([f.flop[f.bytes > 0] / f.bytes[f.bytes > 0] for f in kept])
    rate = max(f.model.parameters["rate"] for f in kept)
    widths = [
        f.model.parameters["bandwidth"] for f in families if f.model.op != "gemm" and "bandwidth" in f.model.parameters
    ]
    if widths:
        x = np.geomspace(max(intensity.min(), 1e-3) / 2, intensity.max() * 2, 100)
        line = {"color": colour("text", theme), "width": 1.5}
        roof = np.minimum(rate, x * max(widths))
        figure.add_scatter(
            x=x, y=roof, mode="lines", name="highest fitted rate, bandwidth", line=line, hoverinfo="skip"
        )
    return _logarithmic(figure)


def bandwidths(families: Sequence[Family], theme: Theme) -> go.Figure:
    """Return achieved bytes/s of memory-bound kernels against bytes, both logarithmic."""
    figure = frame(theme, 420, "bytes moved", "measured bandwidth (bytes/s)")
    kept = [f for f in families if f.model.size == "bytes"]
    if not kept:
        return figure.update_layout(title_text="no memory-bound kernel")
    for n, op in enumerate(dict.fromkeys(f.model.op for f in kept)):
        some = [f for f in kept if f.model.op == op]
        x = np.concatenate([f.samples.inputs["bytes"] for f in some])
        _dots(figure, n, op, x, x / np.concatenate([f.samples.seconds for f in some]), theme)
    return _logarithmic(figure)


def _dots(figure: go.Figure, n: int, name: str, x: Floats, y: Floats, theme: Theme, **more: Any) -> None:
    shade, symbol = _style(n)
    edge = {"width": 0.5, "color": colour("edge", theme)}
    figure.add_scatter(
        x=x,
        y=y,
        name=safe(name),
        mode="markers",
        marker={"symbol": symbol, "size": 6, "opacity": 0.75, "color": colour(shade, theme), "line": edge},
        hovertemplate="%{x:.3s}: %{y:.3s}<extra>" + safe(name) + "</extra>",
        **more,
    )


def _decades(values: Floats) -> dict[str, Any]:
    """Return what makes an axis logarithmic: a tick for each power of ten, among few of them also at 2 and 5."""
    few = len(values) and values.max() < 100 * values.min()
    return {"type": "log", "exponentformat": "power", "dtick": "D2" if few else 1}


def _below_legend(figure: go.Figure) -> go.Figure:
    """Leave the room above the plot that the rows of the legend need."""
    shown = sum(trace.showlegend is not False for trace in figure.data)
    return figure.update_layout(margin_t=MARGIN["t"] + LEGEND_ROW * ((shown - 1) // 3))


def _logarithmic(figure: go.Figure) -> go.Figure:
    x, y = (np.concatenate([np.asarray(trace[axis], float) for trace in figure.data]) for axis in "xy")
    return _below_legend(figure.update_xaxes(**_decades(x)).update_yaxes(**_decades(y)))


def _residuals(families: Sequence[Family]) -> str:
    ops = list(dict.fromkeys(f.model.op for f in families))
    parts = [
        m.figure(
            f"residuals-{n}",
            lambda t, some=[f for f in families if f.model.op == op]: residuals(some, t),  # type: ignore[misc]
            f"{op}: measured over predicted time less one, by size (drawn up to {MOST_PERCENT:.0f} %); fitted shapes "
            "by the folds that had not seen them, larger symbols: never fitted. Band: 80 % interval of the first one.",
        )
        for n, op in enumerate(ops)
    ]
    rows = [m.pair(parts[i], parts[i + 1] if i + 1 < len(parts) else "") for i in range(0, len(parts), 2)]
    return "".join(rows)


def residuals(families: Sequence[Family], theme: Theme) -> go.Figure:
    """Return residuals in percent by size, with the conformal band of the first family."""
    unit = families[0].model.size
    title = f"{families[0].model.op}: {'FLOP' if unit == 'flop' else 'bytes'} of one kernel"
    figure = frame(theme, 360, safe(title), "measured / predicted - 1 (%)")
    first = families[0]
    _band(figure, first, theme)
    for n, family in enumerate(families):
        y = _percent(family.samples.seconds, family.fit.predicted)
        _dots(figure, n, family.name, family.samples.size, y, theme, legendgroup=str(n))
        for samples in family.others.values():
            expected = predict(family.fit.form, samples.inputs, family.fit.solution.parameters)
            shade, symbol = _style(n)
            look = {"symbol": f"{symbol}-open", "size": 10, "color": colour(shade, theme)}
            y = _percent(samples.seconds, expected)
            figure.add_scatter(
                x=samples.size, y=y, mode="markers", marker=look, legendgroup=str(n), showlegend=False,
                hovertemplate="%{x:.3s}: %{y:.1f} %, never fitted<extra>" + safe(family.name) + "</extra>",
            )  # fmt: skip
    figure.add_hline(y=0, line={"color": colour("text", theme), "width": 1})
    sizes = [part.size for family in families for part in (family.samples, *family.others.values())]
    return _below_legend(figure.update_xaxes(**_decades(np.concatenate(sizes))))


def _percent(measured: Floats, predicted: Floats) -> Floats:
    return np.clip(100 * (measured / predicted - 1), -MOST_PERCENT, MOST_PERCENT)


def _band(figure: go.Figure, family: Family, theme: Theme) -> None:
    bins = family.model.bins
    if not bins:
        return
    most = float(family.samples.size.max())
    starts = [b.from_size for b in bins]
    ends = [*starts[1:], max(most, starts[-1])]
    x = [v for pair in zip(starts, ends, strict=True) for v in pair]
    half = [b.half_widths["0.8"] for b in bins for _ in range(2)]
    high, low = (100 * (np.exp(sign * np.array(half)) - 1) for sign in (1, -1))
    shape = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    figure.add_scatter(x=x, y=np.minimum(low, MOST_PERCENT), **shape)
    fill = mixed("idle", theme, 0.8)
    figure.add_scatter(x=x, y=np.minimum(high, MOST_PERCENT), fill="tonexty", fillcolor=fill, **shape)


def coverage_figure(families: Sequence[Family], theme: Theme) -> go.Figure:
    """Return the share of samples inside their interval against the nominal level, a line per kernel."""
    figure = frame(theme, 420, "nominal level (%)", "share inside (%)")
    levels = [100 * float(level) for level in LEVELS]
    figure.add_scatter(
        x=levels, y=levels, mode="lines", name="as it should be", line={"color": colour("text", theme), "width": 1.5}
    )
    for n, op in enumerate(dict.fromkeys(f.model.op for f in families)):
        some = [f for f in families if f.model.op == op]
        total = sum(len(f.samples) for f in some)
        y = [100 * sum(f.coverage[level] * len(f.samples) for f in some) / total for level in LEVELS]
        _dots(figure, n, f"{op} ({total})", np.array(levels), np.array(y), theme)
        shade, _ = _style(n)
        figure.data[-1].update(mode="lines+markers", line={"color": colour(shade, theme), "width": 1})
    return _below_legend(figure.update_yaxes(range=[0, 103]))


def _coverage_table(families: Sequence[Family]) -> str:
    heads = [("kernel", ""), ("samples", ""), *((f"{100 * float(level):g} %", "") for level in LEVELS)]
    rows = [[f.name, str(len(f.samples)), *(percent(f.coverage[level]) for level in LEVELS)] for f in families]
    return m.table(heads, rows)


def flagged_section(flagged: Sequence[Mapping[str, Any]]) -> str:
    """Return the samples that were set aside."""
    if not flagged:
        return m.section("Flagged samples", m.paragraph("None.", "words"))
    shown = [[str(row["id"]), f"{row['t_s']:.4g} s"] for row in flagged[:MOST_FLAGGED]]
    words = f"{len(flagged)} samples were flagged when they were measured, and take part in no fit."
    if len(flagged) > MOST_FLAGGED:
        words += f" The first {MOST_FLAGGED} of them:"
    table = m.table([("sample", ""), ("time", "per call")], shown)
    return m.section("Flagged samples", m.paragraph(words, "words"), m.folded("Samples", table))


def device_section(profile: Profile) -> str:
    """Return who was measured, with what software, and the parameters that were found."""
    held = asdict(profile.fingerprint) if profile.fingerprint else {}
    units = {"l2_bytes": "B", "memory_bytes": "B", "power_cap_w": "W"}
    flat = {k: si(v, units[k]) if k in units and v else v for k, v in held.items() if not isinstance(v, dict)}
    flat |= {f"{k}.{name}": value for k, v in held.items() if isinstance(v, dict) for name, value in v.items()}
    words = {
        "session": profile.session,
        "base": f"{profile.base}: the device and software below are of it" if profile.base else "",
        "method": profile.method,
        "data type": profile.dtype,
        "speed": profile.product_words,
    }
    facts = words | flat
    rows = [
        [str(name), f"{value:g}" if isinstance(value, float) else str(value)] for name, value in facts.items() if value
    ]
    parameters = [
        [model.name, name, f"{value:.5g}", _error(model, name)]
        for model in profile.models
        for name, value in model.parameters.items()
    ]
    heads = [("kernel", ""), ("parameter", ""), ("value", "SI units"), ("standard error", "")]
    return m.section(
        "Device and session",
        m.table([("", ""), ("", "")], rows),
        m.folded("Fitted parameters", m.table(heads, parameters)),
        m.folded("Which terms were tried", m.bullets(f"{' '.join(x.key)}: {x.source}" for x in profile.models)),
    )


def _error(model: KernelModel, name: str) -> str:
    found = model.standard_errors.get(name)
    return "given" if found is None else f"{found:.2g}"


def laid_over(joined: Joined) -> str:
    """Return the page of a measured step over the simulated one: the figure, and errors by kind of action."""
    rows = [
        [e.kind, str(e.n), f"{signed(e.bias_percent, 3)} %", f"{e.mape:.3g} %", si(e.median_start_error_s, "s")]
        for e in joined.errors()
    ]
    headings = ("action", ""), ("measured", ""), ("simulated sum over measured", ""), ("mean error", ""), ("start", "")
    title = f"Measured over simulated: {joined.timeline.schedule.name}"
    shown = m.figure("timelines", lambda theme: measured(joined, theme=theme), LAID_OVER, m.table(headings, rows))
    return document(title, f"<header><h1>{escape(title)}</h1></header>\n{m.section('Step', shown)}")


LAID_OVER = (
    "The simulated step above, the measured one below, action by action as PyTorch's runtime recorded them (its ranges "
    "PP:). Clocks of processes differ: of each the median difference of starts is taken off."
)
