"""Checkpoints: what saving and failures take by interval and by size, what happens beside training, and recovery."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
import simpy

from sim.checkpointing import Advice, Checkpointer, Fleet, Times, Trainer, plan
from sim.checkpointing.advice import Odds, goodput
from sim.checkpointing.laws import costs
from sim.report.figures.throughput import styled
from sim.report.theme import HEIGHT, MARGIN, Look, Theme, colour, frame, label, marker, safe
from sim.specs import Checkpointing
from sim.specs.arguments import checked
from sim.units import YEAR_S, grouped, seconds

PICKS = {"stated": "stated", "checkfreq": "CheckFreq", "young": "Young", "daly": "Daly", "best": "best"}
POINTS = 160
LOST = {
    "all": ("all of it (100 % − goodput)", "forward", "solid"),
    "saving": ("to saving", "backward", "dash"),
    "failures": ("to failures: work, restarts, repairs", "weight", "dot"),
}
LOOKS = {
    "step": Look("forward", "", "training"),
    "update": Look("optimizer", "", "weight update"),
    "wait": Look("idle", "/", "training waits"),
    "snapshot": Look("backward", "", "snapshot"),
    "persist": Look("communication", "\\", "writing"),
}
STEP = ("wait", "step", "wait", "update")
"""What a step is made of, from the end of the one before."""
RECOVERY = {
    "lost_work_s": Look("forward", "", "work that is lost"),
    "reload_s": Look("communication", "\\", "reading the state"),
    "restart_s": Look("idle", "/", "restarting"),
}
SIDES = ({"ax": 20, "xanchor": "left"}, {"ax": -20, "xanchor": "right"}, {"ax": 0, "xanchor": "center"})
"""Of the labels of picks in turn, from the lowest."""


@checked
def checkpoint_interval(
    times: Times,
    checkpointing: Checkpointing | None = None,
    mtbf_s: float = 1e5,
    fleet: Fleet | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Return the share of the time (%) that saving and failures take over the steps between checkpoints.

    The policies' picks, and that of `every`, are marked on the sum.
    """
    given = checkpointing or Checkpointing()
    advice = plan(times, given, mtbf_s, fleet)
    odds = Odds.of(times, given.failures, mtbf_s, fleet)
    marked = [row for row in advice.policies if row.policy in PICKS or row.policy == given.every]
    ends = [row.steps_between for row in marked]
    k = np.unique(np.geomspace(max(1, min(ends) / 8), 12 * max(ends), POINTS).round())
    overhead = costs()(times.values | {"steps_between": k})["overhead_fraction"]
    everything = 1 - goodput(times, k, odds)
    saving = (1 - everything) * overhead  # beside what is kept, as the losses of a whole run: the rest failures take
    lines = {"all": everything, "saving": saving, "failures": everything - saving}
    figure = frame(theme, HEIGHT + 120, "steps between two checkpoints", "share of the time (%)")
    for name, (text, shade, dash) in LOST.items():
        figure.add_scatter(
            x=k,
            y=100 * lines[name],
            name=text,
            line={"color": colour(shade, theme), "dash": dash, "width": 2.5 if name == "all" else 1.8},
            hovertemplate=f"every %{{x:.0f}} steps: %{{y:.3~g}} % {safe(text)}<extra></extra>",
        )
    together: dict[int, list[str]] = {}
    for row in marked:
        together.setdefault(row.steps_between, []).append(PICKS.get(row.policy, row.policy))
    for n, (steps, names) in enumerate(sorted(together.items(), reverse=True)):
        value = 100 * (1 - next(row.goodput for row in marked if row.steps_between == steps))
        figure.add_annotation(
            x=float(np.log10(steps)),
            y=value,
            **SIDES[n % len(SIDES)],  # no arrow to a pick beside another crosses the label of that one
            ay=-30 - 26 * n,
            **label(f"{', '.join(names)}: {grouped(steps)}", theme),
            arrowcolor=colour("text", theme),
        )
    top = 100 * max(1.6 * max(1 - row.goodput for row in marked), 1.25 * float(everything.min()))
    figure.update_xaxes(type="log", nticks=6, dtick=1)
    return figure.update_yaxes(range=[0, min(105.0, top)])


@checked
def checkpoint_scale(
    times: Times,
    checkpointing: Checkpointing | None = None,
    gpus: Sequence[int] = (256, 1_024, 4_096, 16_384, 65_536, 262_144),
    years: Sequence[float] = (0.5, 1.0, 5.784, 20.0),
    theme: Theme = "light",
) -> go.Figure:
    """Return goodput (%) over the number of GPUs, a curve for every mean time between failures of one GPU in years.

    Saving takes what `times` say at any size (every GPU has its own share of the state and of storage), and nodes never
    run out: what remains is lost work, restarts and reading.
    """
    given = checkpointing or Checkpointing()
    unending = replace(given, failures=replace(given.failures, repair_s=0.0))
    figure = frame(theme, HEIGHT + 60, "GPUs", "goodput (%)")
    names = {f"a failure of a GPU in {year:.3g} year{'s' * (year != 1)}": year for year in years}
    for (name, year), (shade, symbol, dash) in styled(names):
        means = [year * YEAR_S / n for n in gpus]
        kept = [100 * plan(times, unending, mean).goodput for mean in means]
        figure.add_scatter(
            x=list(gpus),
            y=kept,
            name=name,
            mode="lines+markers",
            line={"color": colour(shade, theme), "dash": dash, "width": 2},
            marker={"color": colour(shade, theme), "symbol": symbol, "size": 8},
            hovertemplate=f"%{{x:,}} GPUs, {name}: %{{y:.3~g}} %<extra></extra>",
        )
    ticks = list(gpus)
    figure.update_xaxes(type="log", tickmode="array", tickvals=ticks, ticktext=[grouped(n) for n in ticks])
    return figure.update_yaxes(range=[0, 102])


@checked
def checkpoint_timeline(
    cases: Mapping[str, Times], steps_between: int = 3, steps: int = 8, theme: Theme = "light"
) -> go.Figure:
    """Return steps, snapshots and writing as bars over time, of each case by name: every checkpoint as it happens."""
    rows = [row for name in cases for row in (f"{safe(name)}: steps", "snapshots", "writing")]
    figure = frame(theme, 110 + 34 * len(rows), "seconds", "", barmode="overlay", bargap=0.25)
    found = [
        (kind, 3 * n + row, start, end)
        for n, times in enumerate(cases.values())
        for kind, row, start, end in _bars(times, steps_between, steps)
    ]
    for kind, look in LOOKS.items():
        held = [bar for bar in found if bar[0] == kind]
        figure.add_bar(
            orientation="h",
            base=[start for *_, start, _ in held],
            x=[end - start for *_, start, end in held],
            y=[row for _, row, *_ in held],
            width=0.8,
            name=look.label,
            marker=marker(look, theme),
            customdata=[end for *_, end in held],
            hovertemplate=f"{look.label}: %{{base:.3~g}} to %{{customdata:.3~g}} s<extra></extra>",
        )
    figure.update_yaxes(
        tickmode="array", tickvals=list(range(len(rows))), ticktext=rows, autorange="reversed", showgrid=False,
    )  # fmt: skip
    return figure.update_xaxes(rangemode="tozero")


Bar = tuple[str, int, float, float]
"""What, in which of a case's rows, from when to when in seconds."""


def _bars(times: Times, steps_between: int, steps: int) -> list[Bar]:
    env = simpy.Environment()
    checkpointer = Checkpointer(env, times, steps_between)
    trainer = Trainer(env, checkpointer)
    env.process(trainer.run(steps))
    env.run()
    found, before = list[Bar](), 0
    for step in trainer.trained:
        marks = (before, *step)
        for kind, (start, end) in zip(STEP, pairwise(marks), strict=True):
            found += [(kind, 0, start * 1e-9, end * 1e-9)] if end > start else []
        before = step.end
    rows = {"snapshot": 1, "persist": 2}
    found += [(span.kind, rows[span.kind], span.start_ns * 1e-9, span.end_ns * 1e-9) for span in checkpointer.spans]
    return found


@checked
def checkpoint_recovery(advices: Mapping[str, Advice], restart_s: float = 0.0, theme: Theme = "light") -> go.Figure:
    """Return what a failure takes in the mean, a bar for every advice by name (of several storages, say)."""
    figure = frame(
        theme, 130 + 34 * len(advices), "seconds after a failure", "", barmode="stack", bargap=0.35,
        margin=MARGIN | {"r": 60},
    )  # fmt: skip
    names = [safe(f"{name} (every {grouped(a.steps_between)})") for name, a in advices.items()]
    parts = {
        "lost_work_s": [a.lost_work_s for a in advices.values()],
        "reload_s": [a.recovery_s - a.lost_work_s for a in advices.values()],
        "restart_s": [restart_s] * len(advices),
    }
    for part, values in parts.items():
        if any(values):
            figure.add_bar(
                orientation="h",
                x=values,
                y=names,
                name=RECOVERY[part].label,
                marker=marker(RECOVERY[part], theme),
                hovertemplate=f"<b>%{{y}}</b><br>{RECOVERY[part].label}: %{{x:.3~s}} s<extra></extra>",
            )
    for name, *held in zip(names, *parts.values(), strict=True):
        end = sum(held)
        figure.add_annotation(x=end, y=name, text=seconds(end), xanchor="left", showarrow=False)
    return figure.update_yaxes(autorange="reversed", showgrid=False, tickmode="linear", dtick=1)
