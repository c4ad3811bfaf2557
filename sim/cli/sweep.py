"""`trainsim sweep`: all configurations of a grid, into a store that another run resumes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from sim.cli.output import console, progress_console
from sim.report.swept import axis_label, glimpse
from sim.specs.fields import short
from sim.specs.files import print_json
from sim.sweep.grid import Grid
from sim.sweep.outcome import BETTER, OUTCOMES, measured
from sim.sweep.run import Progress, SweepStopped, sweep
from sim.sweep.store import Counts, Store
from sim.units import digits3, grouped, many, percent, seconds

LOG_EVERY_S = 10.0
"""Where there is no terminal for a bar, lines in a log."""

MOST_REASONS = 3
MOST_BLOCKS = 256
"""Blocks of a store that are looked at: all of those of most sweeps, and a second's work at most."""


def sweep_command(
    grid: Annotated[Path, typer.Argument(help="Grid file (YAML or JSON): a job, axes, filters, a sample.")],
    store: Annotated[Path, typer.Option(help="SQLite file that takes the results.")],
    runner: Annotated[
        str, typer.Option(help="Who computes: pool (processes of this machine), ray (a cluster) or here.")
    ] = "pool",
    address: Annotated[
        str | None, typer.Option(help="Ray cluster (with --runner ray); auto: the one that runs on this machine.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Workers, from 1 (default: one a core).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a store that has results of this grid.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict every configuration of a grid, into a store that another run resumes.

    Ctrl-C ends a running sweep with exit status 1; what was done is in the store, and --resume goes on.
    """
    loaded = Grid.load(grid)
    columns = (BarColumn(), TextColumn("{task.description}"))
    drawn = progress_console.is_terminal
    with Bar(*columns, console=progress_console, transient=True, disable=not drawn) as bar:
        task, told = bar.add_task("starting workers", total=loaded.size), 0.0

        def show(now: Progress) -> None:
            nonlocal told
            bar.update(task, completed=now.counts.done, description=line(now, loaded.ranked_by))
            if not drawn and now.seconds - told >= LOG_EVERY_S:
                told = now.seconds
                sys.stderr.write(line(now, loaded.ranked_by) + "\n")

        try:
            found = sweep(loaded, store, runner, workers, address, resume, show)
        except SweepStopped as error:
            bar.stop()
            sys.stderr.write(f"stopped: {error}\n")
            raise typer.Exit(1) from None
    if as_json:
        print_json(sweep_data(found, loaded))
        return
    console.print(f"{words(found.counts)}; {found.seconds:.1f} s, {digits3(found.rate)} a second", highlight=False)
    with Store(store) as held:
        for words_ in found_words(held):
            console.print(words_, highlight=False, soft_wrap=True)
    console.print(f"store: {store}", highlight=False, soft_wrap=True)


def line(now: Progress, objective: str) -> str:
    """Return how far a sweep is: done, rate, time left and the best so far."""
    left = "" if now.left_s is None else f", {seconds(now.left_s)} left"
    best = f", best {measured(now.counts.best[1], objective)}" if now.counts.best else ""
    return f"{grouped(now.counts.done)} of {grouped(now.counts.total)}, {digits3(now.rate)}/s{left}{best}"


def words(counts: Counts) -> str:
    """Return the counts as text."""
    each = ", ".join(
        f"{grouped(getattr(counts, name))} {name}" for name in OUTCOMES if name == "ok" or getattr(counts, name)
    )
    total = many(counts.total, "configuration")
    return f"{grouped(counts.done)} of {total} done ({each}), {grouped(counts.left)} left"


def found_words(store: Store) -> Iterator[str]:
    """Yield the best configuration of a store, and the most frequent reasons why others have no prediction.

    Of a large store the reasons come from blocks spread evenly over it, and go without their numbers.
    """
    seen = glimpse(store, most=MOST_BLOCKS)
    if best := seen.counts.best:
        held = store.configuration(best[0])
        named = ", ".join(f"{path} {short(axis_label(value, 4), 40)}" for path, value in held.items())
        yield f"best: {measured(best[1], seen.objective)} with {named}"
    elif seen.counts.ok:
        yield "best: none, as no predicted configuration fits the memory of its devices"
    looked_at = len(seen.points["fits"])
    if best and seen.misfits:
        all_seen = looked_at == seen.counts.ok
        share = grouped(seen.misfits) if all_seen else f"about {percent(seen.misfits / looked_at)}"
        yield f"{share} of the predicted configurations do not surely fit"
    whole = sum(seen.reasons.values()) == seen.counts.impossible + seen.counts.failed
    ordered = sorted(seen.reasons.items(), key=lambda item: (-item[1], item[0]))
    for (outcome, reason), times in ordered[:MOST_REASONS]:
        yield f"{outcome}: {f'{grouped(times)} x ' if whole else ''}{reason}"
    if len(ordered) > MOST_REASONS:
        yield f"and {grouped(len(ordered) - MOST_REASONS)} more reasons: trainsim report --html lists them"


def sweep_data(found: Progress, grid: Grid) -> dict[str, Any]:
    """Return the JSON object of a sweep (DESIGN: `trainsim sweep`)."""
    counts = found.counts
    best = counts.best and {
        "number": counts.best[0],
        BETTER[grid.ranked_by][0]: counts.best[1],
        "configuration": {
            path: c.values[int(c.index[0])]
            for path, c in grid.numbering.columns(counts.best[0], counts.best[0] + 1).items()
        },
    }
    return {
        "total": counts.total, "done": counts.done, "left": counts.left,
        **{name: getattr(counts, name) for name in OUTCOMES},
        "seconds": found.seconds, "rate_per_s": found.rate, "engine": grid.engine, "objective": grid.ranked_by,
        "best": best,
    }  # fmt: skip
