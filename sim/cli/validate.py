"""`trainsim validate`: predictions against a table of measured runs."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import Progress, TaskID

from sim.catalog import names
from sim.cli.exam import WORDS, YARDSTICKS, examined, print_reasons, shown_number, table_of, times_of
from sim.cli.output import checked_files, console, progress_console, written
from sim.costs.run_level import SITE, RunLevelSet, level_of, on_own_links, read_site, run_level, site_runs
from sim.specs import InputError
from sim.specs.files import is_folder, print_json
from sim.units import digits3, many
from sim.validation.accuracy import accuracy, write_accuracy
from sim.validation.jobs import SOURCE, distinct, is_table_of_jobs, read_cases, read_jobs
from sim.validation.metrics import mape
from sim.validation.predict import UNLIKELY, Predictor, analytic, as_simulated, by_halves, elsewhere, fit_site
from sim.validation.table import REQUIRED, Measured, read_runs
from sim.validation.translate import Case
from sim.validation.validate import Validation, data, predicted, summary, translated, validate

EXAM_HELP = "Predict every table without its own source and by half of its own groups; print both beside the goals."
ABLATION_HELP = "Write the errors of every source without each cost term in turn as a CSV file."
SITE_HELP = "Earlier runs of the same cluster, to which the run-level parameters are fitted."


def validate_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="CSV tables of measured runs, as notebooks/data/ptdp.csv; required columns: "
            + ", ".join(REQUIRED)
            + "; or job, step_time_s"
        ),
    ],
    profile: Annotated[
        str | None, typer.Option(help="Catalog profile or profile folder, instead of that of the device column.")
    ] = None,
    site: Annotated[Path | None, typer.Option(help=SITE_HELP)] = None,
    exam: Annotated[bool, typer.Option("--exam", help=EXAM_HELP)] = False,
    without: Annotated[Path | None, typer.Option("--ablation", help=ABLATION_HELP)] = None,
    table: Annotated[
        Path | None, typer.Option("--csv", "--table", help="Write predictions and ratios as a CSV file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict measured runs: errors, order, regret and coverage beside two trivial baselines."""
    checked_files({"--csv": table, "--ablation": without}, *runs, *([site] if site else []))
    _checked_profile(profile)
    own = {} if exam or without else {file: read_jobs(file, profile) for file in runs if is_table_of_jobs(file)}
    tables = {file: [c.row for c in own[file]] if file in own else read_runs(file) for file in runs}
    rows = [row for held in tables.values() for row in held]
    distinct("RUNS", rows)
    named = _names(tables)
    if exam or without:
        for option, value in {"--profile": profile, "--site": site, "--csv": table}.items():
            if value is not None:
                raise InputError(option, str(value), f"nothing beside {'--exam' if exam else '--ablation'}")
        examined({named[file]: held for file, held in tables.items()}, exam, without, as_json)
        return
    fitted = _site(site, tables, own, profile)
    by_site: Predictor | None = partial(analytic, level=fitted) if fitted else None
    levels = {"site": fitted} if fitted else _levels(rows, [case for held in own.values() for case in held], profile)
    results: dict[Path, Validation] = {}
    with Progress(console=progress_console, transient=True) as bar:
        for file, held in tables.items():
            shown = partial(_shown, bar, bar.add_task(file.name))
            results[file] = (
                Validation(predicted(own[file], by_site or as_simulated, shown), (), ())
                if file in own
                else validate(held, by_site or elsewhere, profile, shown)
            )
    if fitted:
        _tell_others("--site" if site else "--profile", fitted, results.values())
    if table:
        with written("--csv", table):
            write_accuracy([row for file, found in results.items() for row in accuracy(found, named[file])], table)
    seen = [] if site else _fitted_to(results.values())
    if as_json:
        of_levels = {"run_level": {name: asdict(held) for name, held in levels.items()}}
        of_seen = {"fitted_to": [asdict(each) for each in seen]} if seen else {}
        print_json(data(sum(results.values(), Validation((), (), ()))) | of_levels | of_seen)
    else:
        _print_levels(levels)
        _print({named[file]: found for file, found in results.items()})
        for each in seen:
            console.print(str(each), highlight=False)
        told = f"written: {table}" if table else "--csv FILE writes them run by run"
        console.print(told, highlight=False, soft_wrap=True)
    if (left := sum(len(found.skipped) for found in results.values())) == len(rows) > 0:
        raise InputError("RUNS", f"{left} of {many(left, 'row')} skipped", "at least one run that can be predicted")


def _shown(bar: Progress, task: TaskID, done: int, of: int) -> None:
    bar.update(task, completed=done, total=of)


def _checked_profile(profile: str | None) -> None:
    held = Path(profile or "")
    if (
        profile is not None
        and profile not in names("profiles")
        and not (is_folder(held) and (held / "profile.json").is_file())
    ):
        allowed = "a folder with profile.json or one of " + ", ".join(names("profiles"))
        raise InputError("--profile", profile, allowed)


def _names(files: Collection[Path]) -> dict[Path, str]:
    """Return what tables are called: the file's stem, or its whole path where another has the same stem."""
    times = Counter(file.stem for file in files)
    return {file: file.stem if times[file.stem] == 1 else str(file) for file in files}


def _site(
    site: Path | None, tables: Mapping[Path, list[Measured]], own: Mapping[Path, list[Case]], profile: str | None
) -> RunLevelSet | None:
    """Return the parameters fitted to the site's runs, or those that lie in the profile; None without either.

    Raises:
        InputError: a run of the site is one under test, by its id or by what ran and how long.
    """
    if site is None:
        return read_site(profile) if profile else None
    cases, skipped = read_cases([site], profile)
    rows = [row for held in tables.values() for row in held]
    ids = "ids that no run of RUNS has: what is predicted must not have been fitted to"
    distinct("--site", [case.row for case in cases] + rows, ids)
    known = {case.digest: case.row.id for case in cases if "time" in case.row.uses}
    tested = [case for held in own.values() for case in held]
    tested += translated([row for file, held in tables.items() if file not in own for row in held], profile)
    if twice := next((case for case in tested if case.digest in known), None):
        same = f"{twice.row.id} of RUNS is of the same device, network, plan and time"
        allowed = f"runs that are not in RUNS, as {same}: what is predicted must not have been fitted to"
        raise InputError("--site", known[twice.digest], allowed)
    if skipped:
        progress_console.print(
            f"--site: {len(skipped)} of {many(len(cases) + len(skipped), 'row')} skipped", highlight=False
        )
        print_reasons(skipped, progress_console)
    return fit_site(cases)


def _levels(rows: Sequence[Measured], own: Sequence[Case], profile: str | None) -> dict[str, RunLevelSet]:
    """Return the parameters in use without a site of all: by source, and of jobs by their cluster's profile."""
    sources, links = sorted({row.source for row in rows} - {SOURCE}), [profile] if profile else []
    of_sources = {source: on_own_links(run_level(source), links) for source in sources}
    return of_sources | {case.cluster.profile: level_of(case.cluster) for case in own}


def _tell_others(option: str, fitted: RunLevelSet, results: Collection[Validation]) -> None:
    """Say which devices under test are none of the site's."""
    tested = {outcome.case.cluster.hardware.name for found in results for outcome in found.outcomes}
    if others := sorted(tested - set(fitted.devices)):
        words = f"{option}: its runs are of {', '.join(fitted.devices)}, none of {', '.join(others)}"
        progress_console.print(words, highlight=False, markup=False)


@dataclass(frozen=True)
class Seen:
    """Runs under test that a profile's site was fitted to, of how many that it predicts.

    other_half_mape: their mean absolute error (percent), each half predicted by parameters fitted to the other; None
    where they are of one group.
    """

    path: str
    runs: int
    of: int
    other_half_mape: float | None

    def __str__(self) -> str:
        told = f"{self.path} was fitted to {self.runs} of these {many(self.of, 'run')}: their errors are no evidence"
        if self.other_half_mape is None:
            return f"{told}; --site EARLIER.csv predicts runs by others"
        half = f"each half by parameters fitted to the other, they are {self.other_half_mape:.1f} % off"
        return f"{told}; {half} (--site EARLIER.csv predicts runs by others)"


def _fitted_to(results: Collection[Validation]) -> list[Seen]:
    """Return by profile which of the runs its site was fitted to."""
    timed = [o.case for found in results for o in found.outcomes if o.scores("time")]
    told = []
    for profile in dict.fromkeys(case.cluster.profile for case in timed):
        mine = [case for case in timed if case.cluster.profile == profile]
        fitted = site_runs(profile)
        if known := [case for case in mine if case.digest in fitted]:
            ratios = np.exp(np.concatenate([*by_halves(known), np.zeros(0)]))
            told.append(Seen(str(Path(profile) / SITE), len(known), len(mine), mape(ratios, np.ones(len(ratios)))))
    return told


def _print_levels(levels: Mapping[str, RunLevelSet]) -> None:
    """Print the run-level parameters in use; sources of one set share a column."""
    if not levels:
        return  # a table without rows
    sets = {held.source: held for held in levels.values()}
    shown = table_of("run-level parameters", [str(n + 1) for n in range(len(sets))])
    for name in asdict(next(iter(sets.values())).parameters):
        shown.add_row(name, *(digits3(getattr(held.parameters, name)) for held in sets.values()))
    shown.add_row("spread (log)", *(digits3(held.sigma_log) for held in sets.values()))
    console.print(shown)
    for n, held in enumerate(sets.values()):
        console.print(f"{n + 1}: {held.source}", highlight=False)


MEMORY = {"n": "runs", "mape": "mean %", "median": "median %", "max": "max %", "coverage80": "in 80 %"}

VERDICTS = [*MEMORY.values(), "found", "missed", "false alarms"]


def _print(results: Mapping[str, Validation]) -> None:
    found = {name: summary(result) for name, result in results.items()}
    times = {name: s["time"] for name, s in found.items() if s["time"]["n"] or s["time"]["pairwise_order"] is not None}
    if times:
        shown = table_of("step time: absolute errors, and those of the best constant MFU", YARDSTICKS)
        for name, s in times.items():
            shown.add_row(name, *times_of(s))
        console.print(shown)
        console.print(WORDS, highlight=False)
    memories = {name: s for name, s in found.items() if s["memory"]["n"] or any(s["oom"].values())}
    if memories:
        shown = table_of(
            "peak memory: absolute errors, and out-of-memory verdicts "
            "(of runs, and of devices 10 % smaller and larger than measured peaks)",
            VERDICTS,
        )
        for name, s in memories.items():
            verdicts = [str(s["oom"][key]) for key in ("tp", "fn", "fp")]
            shown.add_row(name, *(shown_number(s["memory"][key]) for key in MEMORY), *verdicts)
        console.print(shown)
    for name, result in results.items():
        full = sum(outcome.predicted_oom for outcome in result.outcomes)
        console.print(
            f"{name}: {len(result.outcomes)} predicted{f' ({full} out of memory)' if full else ''}, "
            f"{len(result.skipped)} skipped, {len(result.not_scored)} not for scoring",
            highlight=False,
        )
        bias = found[name]["time"]["bias"]
        if bias is not None and not 1 / UNLIKELY < 1 + bias / 100 < UNLIKELY:
            console.print(
                f"  predicted times are {digits3(1 + bias / 100)} of those measured: is step_time_s in seconds?"
            )
        print_reasons((*result.skipped, *result.not_scored))
