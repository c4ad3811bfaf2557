"""`trainsim compare`: what the search is worth beside others', and without each of its ideas."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isclose
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from sim.cli.output import checked_files, console, progress_console, written
from sim.engine.step import simulate
from sim.specs import InputError, Job, Plan
from sim.specs.files import print_json
from sim.specs.job import Tune
from sim.tuner.space import KEPT
from sim.tuner.ways import IDEAS, RIVALS, SEARCHED, compared, kept
from sim.tuner.ways_table import ComparedRow, read_compared, write_compared
from sim.units import grouped, percent, seconds

ROUNDED = 1e-5
"""Relative difference of a time from the same time in the table."""


def compare_command(
    jobs: Annotated[list[Path], typer.Argument(help="Job files with model, cluster and tune (or plan).")],
    out: Annotated[
        Path | None, typer.Option(help="CSV table to write; what it already has is not searched again.")
    ] = None,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="Our search without each of its ideas instead of others'.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search jobs also as earlier tuners do, and simulate the plan that every search finds.

    Every search has a space of its own, for any framework, and keeps what of `plan` none of them searches (precision,
    overlaps, kernels, ...); of `tune` only global_batch is read.
    """
    checked_files({"--out": out}, *jobs)
    for n, path in enumerate(jobs):
        if path.stem in {earlier.stem for earlier in jobs[:n]}:
            raise InputError("JOBS", str(path), "files of different names, by which the rows are told apart")
    rows = read_compared(out) if out and out.exists() else []
    asked = list(IDEAS if ablation else RIVALS)
    for path, (job, batch) in {path: _read(path) for path in jobs}.items():
        have = [row for row in rows if row.job == path.stem]
        for row in _rows(path, job, batch, have, asked):
            rows.append(row)
            if out:
                with written("--out", out):
                    write_compared([*rows, *_others(rows, out)], out)
    shown = [row for path in jobs for way in asked for row in rows if (row.job, row.way) == (path.stem, way)]
    if as_json:
        print_json({"rows": [asdict(row) for row in shown]})
    else:
        _print(shown)
        if out:
            console.print(f"written: {out}", highlight=False, soft_wrap=True)


def _read(path: Path) -> tuple[Job, int]:
    """Return the job in a file and its global batch."""
    job = Job.load(path)
    batch = job.tune.global_batch if job.tune else job.plan.global_batch if job.plan else None
    if batch is None:
        raise InputError("tune", None, "required: global_batch")
    return job, batch


def _others(rows: Sequence[ComparedRow], out: Path) -> list[ComparedRow]:
    """Return the rows of a table that another command has written into it meanwhile."""
    own = {(row.job, row.way) for row in rows}
    return [row for row in read_compared(out) if (row.job, row.way) not in own] if out.exists() else []


def _rows(path: Path, job: Job, batch: int, have: Sequence[ComparedRow], asked: Sequence[str]) -> Iterator[ComparedRow]:
    """Yield what the searches find that are asked for and not had yet; what is had has to be of the same job."""
    if unread := [*_unsearched(job.plan), *_unread(job.tune)]:
        words = f"{path.stem}: not read, as every search has a space of its own: {', '.join(unread)}"
        progress_console.print(words, highlight=False, soft_wrap=True)
    device, gpus = str(job.cluster.device), job.cluster.gpus
    for row in have:
        if (row.device, row.gpus, row.global_batch) != (device, gpus, batch):
            held = f"{row.job} with global_batch {row.global_batch} on {row.gpus} {row.device}"
            raise InputError("--out", held, f"another file: {path} has global_batch {batch} on {gpus} {device}")
        _check_same(job, row)
    for way in (way for way in asked if way not in {row.way for row in have}):
        progress_console.print(f"{path.stem}: {way}", highlight=False)
        for found in compared(job.model, job.cluster, batch, [way], job.plan):
            if found.why:
                progress_console.print(f"{path.stem}: {way}: {found.why}", highlight=False, soft_wrap=True)
            yield ComparedRow.of(path.stem, device, gpus, batch, found)


def _unsearched(plan: Plan | None) -> list[str]:
    """Return what a job's plan states that every search chooses anew."""
    usual = plan and Plan(global_batch=plan.global_batch)
    own = [name for name in SEARCHED if plan and name not in plan.derived]
    return [f"plan.{name}" for name in own if getattr(plan, name) != getattr(usual, name)]


def _unread(tune: Tune | None) -> list[str]:
    """Return what a job asks of the tuner that `compared` has no use for, as far as it would change the best plan."""
    if tune is None:
        return []
    usual = Tune(global_batch=tune.global_batch)
    stated = [name for name in ("objective", "target") if getattr(tune, name) not in (getattr(usual, name), "any")]
    return [*(f"tune.knobs.{name}" for name in tune.knobs), *(f"tune.{name}" for name in stated)]


def _check_same(job: Job, row: ComparedRow) -> None:
    """Refuse a row whose plan is not of the job's settings, or takes another time on what the job says now: the others'
    would not be comparable."""
    plan = row.parsed()
    if plan is None or row.step_time_s is None:
        return
    own = kept(job.plan or Plan(global_batch=1), job.cluster)
    asked = Plan(global_batch=1, **own).suited(job.cluster)
    for name in (name for name in KEPT if name not in SEARCHED):
        has, wants = getattr(plan.suited(job.cluster), name), getattr(asked, name)
        if has != wants:
            held = f"{row.job}, {row.way}: plan.{name} {str(has).lower()}"
            raise InputError("--out", held, f"another file: the job has {str(wants).lower()} now")
    held = f"{row.job}, {row.way}: {row.step_time_s:.6g} s a step"
    try:
        now = simulate(job.model, job.cluster, plan, "events").step_time_s
    except InputError as error:
        raise InputError("--out", held, f"another file: its plan is refused now, {error}") from None
    if not isclose(now, row.step_time_s, rel_tol=ROUNDED):
        raise InputError("--out", held, f"another file: it takes {now:.6g} s now")


def _print(rows: Sequence[ComparedRow]) -> None:
    table = Table("job", "search", box=box.SIMPLE)
    for heading in ("step time", "over best", "options", "search took"):
        table.add_column(heading, justify="right")
    for row in rows:
        times = [other.step_time_s for other in rows if other.job == row.job and other.step_time_s is not None]
        if row.step_time_s is None:
            time, over = "no plan", "-"
        else:
            time, over = seconds(row.step_time_s), f"+{percent(row.step_time_s / min(times) - 1)}"
        table.add_row(row.job, row.way, time, over, grouped(row.evaluated), seconds(row.seconds))
    console.print(table)
