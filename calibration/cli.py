"""`trainsim calibrate`: profiles from measurements, one's own or published ones."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from calibration.errors import summary, table
from calibration.nccl_logs import MOST_BYTES, is_log
from calibration.own_site import site_command
from calibration.published.profiles import DATE, build, write
from calibration.published.run_level import ALL, fit_sets, write_sets
from calibration.published.tables import read_public
from sim.specs.fields import InputError
from sim.specs.files import checked_folder, print_json, text_of
from sim.units import many
from sim.validation.jobs import is_table_of_jobs
from sim.validation.table import is_runs, read_runs
from sim.validation.validate import expressed

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Mode = Literal["kernels", "networks", "trace", "tables", "runs", "links", "against"]
"""What is measured here (kernels, whole networks), or what others measured and is fitted, or compared."""

COUNTS: Mapping[str, tuple[str, tuple[Mode, ...]]] = {
    **dict.fromkeys(
        ("--suite", "--budget", "--seed", "--resume", "--despite-load"), ("--device", ("kernels", "networks"))
    ),
    "--no-check": ("--suite smoke or full", ("kernels",)),
    "--base": ("--trace, --suite tbd, logs of nccl-tests or runs", ("trace", "networks", "links", "runs")),
    **dict.fromkeys(("--size", "--samples"), ("--suite tbd", ("networks",))),
    **dict.fromkeys(("--only", "--date"), ("--from without tables of training runs", ("tables",))),
}
"""Options that count in some modes only: what else is given there, and which they are."""


@app.command()
def calibrate(
    *,
    files: Annotated[list[Path] | None, typer.Argument(help="Further files, after --from.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="Measure this machine: cpu or cuda.")] = None,
    suite: Annotated[
        str | None, typer.Option("--suite", help="Kernels: smoke (default) or full; networks: tbd.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help="Time that it may take, 1s to 24h (300s; full, tbd 8m).")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of order and inputs, from 0 (default).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the session in --out.")] = False,
    despite_load: Annotated[bool, typer.Option("--despite-load", help="Measure on a busy machine, flagged.")] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Predict and run hold-outs after the fit.")] = True,
    first: Annotated[list[Path] | None, typer.Option("--from", help="CSV files or logs of nccl-tests.")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Trace of torch.profiler, record_shapes=True.")] = None,
    base: Annotated[str | None, typer.Option("--base", help="Profile of what traces and logs lack, or tbd's.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Profile folder (--from: their folder).")] = Path("profiles"),
    against: Annotated[
        str | None, typer.Option("--against", help="With --from: fit nothing, but say how far this profile is off.")
    ] = None,
    only: Annotated[str | None, typer.Option("--only", help="With --from: write this device's profile only.")] = None,
    date: Annotated[
        str | None, typer.Option("--date", help=f"With --from: date recorded in the profiles ({DATE}).")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--size", help="With tbd: tiny (default of cpu) or full (of cuda) networks.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", help="With tbd: samples of a step (each network's own).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure this machine's kernels (--device), or fit published measurements (--from) or a trace (--trace).

    What is written is a profile folder, which a job names as cluster.profile.
    With --from, formats are recognised by header; tables of measured training runs give run-level parameters.
    With --base a profile of one's own cluster is written: its collectives by logs of nccl-tests, its run level by runs.
    With --from and --against nothing is written: a profile's errors on these timings are shown (samples.parquet too).
    """
    progress = Console(stderr=True)
    paths = [*(first or []), *(files or [])]
    _check_once(paths)
    checked_folder("--out", out)
    mode = _mode(device, suite, trace, paths, against)
    _check_base(mode, base, paths)
    texts = {"--suite": suite, "--budget": budget, "--base": base, "--only": only, "--date": date, "--size": size}
    flags = {"--resume": resume or None, "--despite-load": despite_load or None, "--no-check": not check or None}
    _check_counts(mode, {**texts, **flags, "--seed": seed, "--samples": samples})
    if trace is not None:
        from calibration.from_trace import trace_command  # noqa: PLC0415 - loads torch

        trace_command(trace, out, base, as_json)
    elif device is not None:
        _measure(device, out, suite, budget, seed, resume, despite_load, check, base, as_json, size, samples)
    elif against is not None:
        _against(against, paths, as_json)
    elif mode == "links":
        from calibration.own_links import links_command  # noqa: PLC0415 - loads torch

        links_command(paths, out, base, as_json)
    elif mode == "runs":
        _run_level(paths, out, base, as_json, progress)
    else:
        _public(paths, out, only, DATE if date is None else date, as_json, progress)


def _mode(device: str | None, suite: str | None, trace: Path | None, paths: list[Path], against: str | None) -> Mode:
    """Return what the options ask for.

    Raises:
        InputError: they name no source, or several.
    """
    if against is not None:
        if device is not None or trace is not None or not paths:
            raise InputError("--against", against, "left out, or with --from and its files alone")
        if any(map(is_log, paths)):
            raise InputError("--against", against, "left out: with logs of nccl-tests --base tells how far one is off")
        return "against"
    if trace is not None:
        if device is not None or paths:
            raise InputError("--trace", str(trace), "one of --device, --from and --trace")
        return "trace"
    if device is not None:
        if paths:
            raise InputError("--from", str(paths[0]), "either --device or --from")
        return "networks" if suite == "tbd" else "kernels"
    if not paths:
        raise InputError(
            "--device",
            None,
            "required: cpu or cuda to measure this machine, or --from with CSV files, or --trace with a profiler trace",
        )
    if samples := [str(path) for path in paths if path.suffix == ".parquet"]:
        raise InputError("--from", samples, "CSV files to fit; samples.parquet of a calibration with --against")
    if logs := [path for path in paths if is_log(path)]:
        if others := [str(path) for path in paths if path not in logs]:
            raise InputError("--from", ", ".join(others), f"logs of nccl-tests alone, as {logs[0]}")
        return "links"
    return "runs" if is_runs(paths[0]) or is_table_of_jobs(paths[0]) else "tables"


def _check_base(mode: Mode, base: str | None, paths: list[Path]) -> None:
    """Refuse files that no --base goes with, or that cannot be read."""
    if mode == "tables" and base is not None:
        text_of(paths[0], MOST_BYTES)
        told = "with --base logs of nccl-tests, or runs: a CSV file with job, step_time_s or the columns of validate"
        raise InputError("--from", str(paths[0]), told)


def _check_once(paths: list[Path]) -> None:
    """Refuse a file that is given twice: its rows would count double."""
    resolved = [path.resolve() for path in paths]
    for n, path in enumerate(paths):
        if resolved[n] in resolved[:n]:
            raise InputError("--from", str(path), "each file once")


def _check_counts(mode: Mode, given: Mapping[str, object]) -> None:
    """Refuse an option that was given (not None) and would change nothing."""
    for option, (words, modes) in COUNTS.items():
        if given[option] is not None and mode not in modes:
            raise InputError(option, given[option], f"left out, or {words}")


def _measure(
    device: str,
    out: Path,
    suite: str | None,
    budget: str | None,
    seed: int | None,
    resume: bool,
    despite_load: bool,
    check: bool,
    base: str | None,
    as_json: bool,
    size: str | None,
    samples: int | None,
) -> None:
    # Only here: torch takes seconds to load, and every command of `trainsim` imports this module.
    from calibration.measuring import WORKLOADS, measure_device  # noqa: PLC0415

    if suite == WORKLOADS:
        from calibration.workloads.cli import measure_workloads  # noqa: PLC0415

        measure_workloads(device, out, budget, seed, resume, despite_load, base, as_json, size, samples)
    else:
        measure_device(device, out, suite or "smoke", budget, seed, resume, despite_load, check, as_json)


def _public(paths: list[Path], out: Path, only: str | None, date: str, as_json: bool, progress: Console) -> None:
    with progress.status("reading"):
        public = read_public(paths)
    for name, why in public.set_aside.items():
        progress.print(f"{name}: not used, {why}", markup=False, soft_wrap=True)
    files = set(public.set_aside)
    with progress.status("fitting"):
        profiles = build(public, only, date)
    for name in (name for name in public.set_aside if name not in files):
        progress.print(f"{name}: not made, {public.set_aside[name]}", markup=False, soft_wrap=True)
    written = write(profiles, out)
    if as_json:
        print_json(summary(profiles, written))
    else:
        Console(markup=False, emoji=False).print(table(profiles))


def _against(name: str, paths: list[Path], as_json: bool) -> None:
    # Only here: what reads samples loads torch.
    from calibration.against import compare, data, table  # noqa: PLC0415

    found = compare(name, paths)
    if as_json:
        print_json(data(*found))
    else:
        Console(markup=False, emoji=False).print(table(*found))


def _run_level(paths: list[Path], out: Path, base: str | None, as_json: bool, progress: Console) -> None:
    if base is not None:
        site_command(paths, out, base, as_json)
        return
    if any(map(is_table_of_jobs, paths)):
        raise InputError("--base", None, "required with tables of jobs: the profile that they ran on")
    cases, refused = expressed([row for path in paths for row in read_runs(path) if "time" in row.uses])
    for reason, runs in Counter(each.reason for each in refused).most_common():
        progress.print(
            f"{runs} of {many(len(cases) + len(refused), 'run')} not used: {reason}", markup=False, soft_wrap=True
        )
    with progress.status("fitting run-level parameters, once without each source"):
        sets = fit_sets(cases)
    written = write_sets(sets, out)
    if as_json:
        skipped = [asdict(each) for each in refused]
        print_json({"path": str(written), "sets": {n: asdict(held) for n, held in sets.items()}, "skipped": skipped})
        return
    names = list(asdict(sets[ALL].parameters))
    made = Table("parameter", *sets, box=box.SIMPLE, padding=(0, 1, 0, 0), caption=f"{written}; without each source")
    for name in names:
        made.add_row(name, *(f"{getattr(held.parameters, name):.3g}" for held in sets.values()))
    made.add_row("spread (log)", *(f"{held.sigma_log:.3g}" for held in sets.values()))
    Console(markup=False, emoji=False).print(made)
