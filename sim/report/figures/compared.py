"""Two timelines on one time axis: two plans or runs, or a simulation and its measurement."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from sim.engine.compare import Comparison, compare
from sim.engine.critical import critical_path
from sim.engine.step import Step
from sim.engine.timeline import Timeline
from sim.report.figures.gantt import MAX_BARS, Ints, Shown, draw, height, rank_title
from sim.report.figures.timeline import Shading, after_note, of_actions, shade_note, spread, timeline_of
from sim.report.numbers import signed, time_unit
from sim.report.text import comparison_words
from sim.report.theme import NARROW, Theme, colour, frame, safe, wrapped
from sim.specs.arguments import checked
from sim.validation.traces import Joined, measured_times


@checked
def timeline_difference(
    step: Step | Timeline,
    reference: Step | Timeline,
    ranks: int = 8,
    theme: Theme = "light",
    window: tuple[float, float] | None = None,
    critical: bool = True,
    shade: Shading = "chunk",
) -> go.Figure:
    """Return two timelines on one time axis: `reference` above, `step` below.

    Where both have the same actions on the same ranks the lower one's hover says how each moved. The title says how
    much longer it takes and what of the critical path that is due to. ranks: rows of each at most; window: the part
    shown, in seconds from the start (None: all); critical, shade: of both, as `timeline` has them.

    Raises:
        InputError: a window that does not end after it begins.
    """
    after, before = timeline_of(step), timeline_of(reference)
    found = compare(after, before)
    span = window or (0.0, max(t.makespan for t in (after, before)) * 1e-9)
    panels = [
        of_actions(t, ranks, span, critical_path(t.run) if critical else None, shade=shade) for t in (before, after)
    ]
    if found.same_actions:
        panels[1] = _moved(panels[1], found, span)
    names = [_name(x) for x in (reference, step)]
    return _panels(
        panels,
        [f"{n}: {t}" for n, t in zip("AB", names, strict=True)],
        comparison_words(found),
        shade_note(before.schedule, shade) or shade_note(after.schedule, shade),
        theme,
    )


@checked
def measured(joined: Joined, ranks: int = 8, theme: Theme = "light") -> go.Figure:
    """Return a simulated timeline above its measurement, on one time axis; hovers below hold the simulated times."""
    run = joined.timeline
    start, end, known = measured_times(joined)
    span = min(0, int(start[known].min())) * 1e-9, max(run.makespan, int(end.max())) * 1e-9
    simulated = of_actions(run, ranks, span, critical_path(run.run))
    seen = np.flatnonzero(known & np.isin(run.graph.rank, spread(run.schedule.ranks, ranks)) & (end > start))
    moved = replace(run, start=start + run.zero, end=end + run.zero)
    below = _of_measured(moved, seen, simulated, ranks)
    late = np.array([p.start_error_s for p in joined.pairs])
    words = f"{len(joined.pairs)} actions measured; median error of a start {_time(float(np.median(abs(late))))}"
    return _panels([simulated, below], ["simulated", "measured"], words, shade_note(run.schedule), theme)


def _of_measured(run: Timeline, seen: Ints, simulated: Shown, ranks: int) -> Shown:
    """Return the measured actions, without a critical path: what held them was not measured."""
    span = (simulated.begin * 1e-9, simulated.finish * 1e-9)
    held = np.zeros(len(run.start), dtype=bool)
    held[seen] = True
    blank = replace(run, end=np.where(held, run.end, run.start))
    return of_actions(blank, ranks, span, waits=False)


def _moved(shown: Shown, found: Comparison, span: tuple[float, float]) -> Shown:
    """Return the bars with their shifts in the hover (a raster has no room for them)."""
    if len(shown.words) > MAX_BARS:
        return shown
    unit = time_unit(span[1])
    texts = [
        f"{words}<br>starts {signed(found.moved[i] * 1e-9 / unit.scale, 3)}, "
        f"lasts {signed(found.longer[i] * 1e-9 / unit.scale, 3)} {unit.name} against A"
        for words, i in zip(shown.words, shown.index.tolist(), strict=True)
    ]
    return replace(shown, words=texts)


def _name(step: Step | Timeline) -> str:
    if isinstance(step, Timeline):
        return safe(f"{step.schedule.name}, {_time(step.makespan * 1e-9)}")
    plan = step.plan
    lasts = _time(step.timeline.makespan * 1e-9)
    return safe(f"tp {plan.tp}, pp {plan.pp}, {plan.schedule}, {lasts}") + after_note(step)


def _time(value_s: float) -> str:
    return time_unit(value_s).text(value_s)


def _panels(shown: Sequence[Shown], titles: Sequence[str], words: str, shades: str, theme: Theme) -> go.Figure:
    """Return two panels, one above the other, on one time axis with one legend. shades: what paler colours mean."""
    unit = time_unit(max(s.finish for s in shown) * 1e-9)
    note, more = wrapped(words, NARROW)
    heads = [wrapped(text, NARROW) for text in titles]
    tall = height(*(len(s.rows) for s in shown)) + sum(room for _, room in heads)
    above, below = (rank_title(len(s.rows)) for s in shown)
    figure = frame(theme, tall + more, "", above, barmode="overlay", bargap=0.15)
    inside = max(60, tall - 124)
    # Room for a title above each panel, below the legend.
    head, gap = 1 - (16 + heads[0][1]) / inside, (28 + heads[1][1]) / inside
    first = len(shown[0].rows) / sum(len(s.rows) for s in shown) * (head - gap)
    figure.update_layout(
        title={"text": note, "x": 0.01, "y": (more + 6) / (tall + more), "yanchor": "bottom", "font": {"size": 12}},
        margin={"t": 60, "b": 64 + more},
        yaxis={"domain": [head - first, head]},
        yaxis2={"domain": [0, head - first - gap], "title": {"text": below}},
        xaxis={"anchor": "y", "showticklabels": False, "matches": "x2"},
        xaxis2={"anchor": "y2", "title": {"text": f"time ({unit.name}){shades}"}},
    )
    kinds = sorted({k for s in shown for k in s.looks})
    for n, each in enumerate(shown, 1):
        draw(figure, each, unit, theme, n, kinds if n == 1 else None)
        top = figure.layout[f"yaxis{'' if n == 1 else n}"].domain[1]
        figure.add_annotation(
            xref="paper", yref="paper", x=0, y=top, yanchor="bottom", xanchor="left", showarrow=False,
            text=heads[n - 1][0], align="left", font={"color": colour("secondary", theme)},
        )  # fmt: skip
    return figure
