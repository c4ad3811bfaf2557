"""Two plans compared: which term of the step time makes the difference."""

from math import floor, log10

import numpy as np
import plotly.graph_objects as go

from sim.engine.step import Step
from sim.report.figures.breakdown import NOTHING
from sim.report.numbers import signed, time_unit
from sim.report.theme import HEIGHT, TERMS, Look, Theme, colour, frame, marker, whiskers
from sim.specs.arguments import checked

TOTAL = Look("other", "|", "total")
ONE_LINE = 7
"""Names that fit beside each other below the narrowest figure; of more every second stands a line lower."""


@checked
def difference(step: Step, reference: Step, theme: Theme = "light") -> go.Figure:
    """Return a waterfall of the step time of `step` less that of `reference`, by term (s, negative: faster).

    The terms add up to the last bar, the whole difference. Its whisker is the 80 % interval if both plans
    share the same relative error.
    """
    change = {t: step.breakdown_s[t] - reference.breakdown_s[t] for t in TERMS}
    change = {t: v for t, v in change.items() if abs(v) > NOTHING * step.step_time_s}
    total = step.step_time_s - reference.step_time_s
    before = np.concatenate([[0.0], np.cumsum(list(change.values()))])
    largest = max(abs(total), *(abs(before)))
    unit = time_unit(largest)
    # The same decimals on every bar, so that the numbers add up before the reader's eyes.
    shown = unit.name, max(0, 2 - floor(log10(largest / unit.scale))) if largest else 0
    figure = frame(theme, HEIGHT, "", f"change of step time ({unit.name})", showlegend=False, bargap=0.35)
    for (term, value), base in zip(change.items(), before, strict=False):
        _bar(figure, _short(term), value / unit.scale, base / unit.scale, TERMS[term], shown, theme)
    _bar(figure, "total", total / unit.scale, 0.0, TOTAL, shown, theme)
    ends = sorted(total / f for f in (step.step_time_s / b for b in step.step_time_interval_s))
    error = whiskers(total / unit.scale, ends[0] / unit.scale, ends[1] / unit.scale, theme)
    figure.data[-1].update(error_y={**error, "array": [error["array"]], "arrayminus": [error["arrayminus"]]})
    figure.layout.annotations[-1].y = max(0.0, ends[1] / unit.scale)  # above the whisker
    low, high = min(ends[0], before.min()) / unit.scale, max(ends[1], before.max(), 0.0) / unit.scale
    room = 0.14 * (high - low)
    figure.update_yaxes(range=[low - room, high + room], zeroline=True, zerolinecolor=colour("secondary", theme))
    names = [*map(_short, change), "total"]
    figure.update_xaxes(showgrid=False, tickvals=names, ticktext=names, tickangle=0)
    if len(names) > ONE_LINE:
        figure.update_xaxes(ticktext=[f"{'<br>' * (n % 2)}{name}" for n, name in enumerate(names)])
        figure.update_annotations(font_size=10)
    return figure


def _short(term: str) -> str:
    return {"bubble": "idle", "optimizer": "optim."}.get(term, term)


def _bar(
    figure: go.Figure, name: str, value: float, base: float, look: Look, unit: tuple[str, int], theme: Theme
) -> None:
    """Add one bar from `base` with its number above; unit: name and decimals."""
    text = signed(value, unit[1])
    figure.add_bar(
        x=[name],
        y=[value],
        base=[base],
        name=look.label,
        marker=marker(look, theme),
        width=0.6,
        hovertemplate=f"<b>{look.label}</b><br>{text} {unit[0]}<extra></extra>",
    )
    figure.add_annotation(
        x=name,
        y=max(base, base + value),
        yanchor="bottom",
        text=text,
        showarrow=False,
        yshift=2,
    )
