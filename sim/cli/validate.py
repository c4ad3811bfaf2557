"""`trainsim validate`: predictions against a table of measured runs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.progress import Progress, TaskID
from rich.table import Table

from sim.catalog import names
from sim.cli.output import checked_file, console, print_json, progress_console, written
from sim.costs.run_level import RunLevelSet, run_level
from sim.specs import InputError
from sim.units import digits3
from sim.validation.accuracy import accuracy, write_accuracy
from sim.validation.exam import PEERS, examine
from sim.validation.predict import Predictor, analytic, elsewhere, fit_site
from sim.validation.table import Measured, read_runs
from sim.validation.validate import Validation, data, summary, translated, validate

EXAM_HELP = "Predict every table without its own source and by half of its own groups; print both beside the goals."
SITE_HELP = "Earlier runs of the same cluster, to which the run-level parameters are fitted."


def validate_command(
    runs: Annotated[list[Path], typer.Argument(help="Tables of measured runs (CSV with the reference columns).")],
    profile: Annotated[str | None, typer.Option(help="Profile instead of the device column's.")] = None,
    site: Annotated[Path | None, typer.Option(help=SITE_HELP)] = None,
    exam: Annotated[bool, typer.Option("--exam", help=EXAM_HELP)] = False,
    table: Annotated[Path | None, typer.Option(help="Write predictions and ratios as CSV.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict measured runs and report errors, order, regret and coverage beside two trivial baselines."""
    for file in runs if table else ():
        checked_file("--table", table or Path(), file)
    _checked_profile(profile)
    tables = {file: read_runs(file) for file in runs}
    rows = [row for held in tables.values() for row in held]
    _distinct("RUNS", rows)
    if exam:
        _exam(tables, as_json, {"--profile": profile, "--site": site, "--table": table})
        return
    fitted = _site(site, rows, profile)
    predict: Predictor = partial(analytic, level=fitted) if fitted else elsewhere
    levels = {"site": fitted} if fitted else {source: run_level(source) for source in sorted({r.source for r in rows})}
    results: dict[Path, Validation] = {}
    with Progress(console=progress_console, transient=True) as bar:
        for file, held in tables.items():
            results[file] = validate(held, predict, profile, partial(_shown, bar, bar.add_task(file.name)))
    if table:
        with written("--table", table):
            write_accuracy([row for file, found in results.items() for row in accuracy(found, file.stem)], table)
    if as_json:
        print_json(
            data(sum(results.values(), Validation((), (), ())))
            | {"run_level": {name: asdict(held) for name, held in levels.items()}}
        )
    else:
        _print_levels(levels)
        _print({file.stem: found for file, found in results.items()})


def _exam(tables: Mapping[Path, list[Measured]], as_json: bool, others: Mapping[str, object]) -> None:
    """Print both columns of the exam; `others` are the options that mean nothing beside it."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise InputError(given[0], str(others[given[0]]), "nothing beside --exam")
    with progress_console.status("predicting every table twice"):
        entries = list(examine({file.stem: held for file, held in tables.items()}))
    if as_json:
        print_json({"exam": [asdict(entry) for entry in entries], "peers": dict(PEERS)})
        return
    timed = [entry for entry in entries if entry.elsewhere["time"]["n"]]
    shown = _table("step time, by run-level parameters that never saw the source", [*YARDSTICKS, "goal"])
    for entry in timed:
        time, goal = entry.elsewhere["time"], entry.goal
        yardsticks = [_text(b["mape"]) for b in time["baselines"].values()]
        wanted = f"{goal.raw:g} / {goal.debiased:g}" if goal else "-"
        shown.add_row(entry.name, *(_text(time[key]) for key in TIME), *yardsticks, wanted)
    console.print(shown)
    shown = _table("step time, each half of a table by parameters fitted to the other", [*TIME.values(), *SITE])
    for entry in timed:
        if entry.site:
            goal = entry.goal
            wanted = [f"{goal.prototype_site:g}", f"{goal.site:g}"] if goal else ["-", "-"]
            shown.add_row(entry.name, *(_text(entry.site["time"][key]) for key in TIME), *wanted)
    console.print(shown)
    for name, words in PEERS.items():
        console.print(f"{name}: {words}", highlight=False, markup=False)


def _shown(bar: Progress, task: TaskID, done: int, of: int) -> None:
    bar.update(task, completed=done, total=of)


def _checked_profile(profile: str | None) -> None:
    if profile is not None and profile not in names("profiles") and not (Path(profile) / "profile.json").is_file():
        allowed = "a folder with profile.json or one of " + ", ".join(names("profiles"))
        raise InputError("--profile", profile, allowed)


def _distinct(place: str, rows: list[Measured]) -> None:
    twice = [name for name, times in Counter(row.id for row in rows).items() if times > 1]
    if twice:
        raise InputError(place, twice[0], "every run once over all tables")


def _site(site: Path | None, rows: list[Measured], profile: str | None) -> RunLevelSet | None:
    """Return the parameters fitted to the site's runs where there are some; these may not be the rows under test."""
    if site is None:
        return None
    known = read_runs(site)
    _distinct("--site", known + rows)
    return fit_site(translated(known, profile))


def _print_levels(levels: Mapping[str, RunLevelSet]) -> None:
    """Print the run-level parameters in use; sources of one set share a column."""
    if not levels:
        return  # a table without rows
    sets = {held.source: held for held in levels.values()}
    shown = _table("run-level parameters", [str(n + 1) for n in range(len(sets))])
    for name in asdict(next(iter(sets.values())).parameters):
        shown.add_row(name, *(digits3(getattr(held.parameters, name)) for held in sets.values()))
    shown.add_row("spread (log)", *(digits3(held.sigma_log) for held in sets.values()))
    console.print(shown)
    for n, held in enumerate(sets.values()):
        console.print(f"{n + 1}: {held.source}", highlight=False, markup=False)


TIME = {
    "n": "runs",
    "mape": "mean %",
    "mape_debiased": "no bias %",
    "bias": "bias %",
    "p90": "p90 %",
    "pairwise_order": "order",
    "mean_regret": "regret %",
    "coverage80": "in 80 %",
    "median_width": "width %",
}
SITE = ("prototype", "goal")
MEMORY = {"n": "runs", "mape": "mean %", "median": "median %", "max": "max %", "coverage80": "in 80 %"}

YARDSTICKS = [*TIME.values(), "MFU %", "+ bubble %"]
VERDICTS = [*MEMORY.values(), "found", "missed", "false alarms"]


def _print(results: Mapping[str, Validation]) -> None:
    found = {name: summary(result) for name, result in results.items()}
    times = {name: s["time"] for name, s in found.items() if s["time"]["n"] or s["time"]["pairwise_order"] is not None}
    if times:
        shown = _table("step time: absolute errors, and those of the best constant MFU", YARDSTICKS)
        for name, s in times.items():
            yardsticks = [_text(b["mape"]) for b in s["baselines"].values()]
            shown.add_row(name, *(_text(s[key]) for key in TIME), *yardsticks)
        console.print(shown)
    memories = {name: s for name, s in found.items() if s["memory"]["n"]}
    if memories:
        shown = _table(
            "peak memory: absolute errors, and out-of-memory verdicts",
            VERDICTS,
        )
        for name, s in memories.items():
            verdicts = [str(s["oom"][key]) for key in ("tp", "fn", "fp")]
            shown.add_row(name, *(_text(s["memory"][key]) for key in MEMORY), *verdicts)
        console.print(shown)
    for name, result in results.items():
        console.print(
            f"{name}: {len(result.outcomes)} predicted, {len(result.skipped)} skipped, {len(result.not_scored)} not "
            "for scoring",
            highlight=False,
            markup=False,
        )
        for reason, times_seen in Counter(r.reason for r in result.skipped).most_common(5):
            console.print(f"  {times_seen} x {reason}", highlight=False, markup=False)


def _table(title: str, headings: list[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("table", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else digits3(value) if value >= 0 else f"-{digits3(-value)}"
