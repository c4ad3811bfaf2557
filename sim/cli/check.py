"""`trainsim check`: everything that is wrong with a file, and what would be assumed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.kinds import KINDS, recognised
from sim.cli.output import console
from sim.costs.inputs import profiles_of
from sim.engine.step import simulate
from sim.market.job_prices import priced
from sim.plans.plan_file import load_plan
from sim.run.losses import losses_of
from sim.run.whole import whole_run
from sim.specs import InputError, Job, Model
from sim.specs.catalog import check_device
from sim.specs.check import check_job
from sim.specs.fields import check
from sim.specs.files import load_mapping, print_json
from sim.specs.model_file import read_model
from sim.sweep.grid import Grid
from sim.units import gigabytes
from sim.validation.jobs import is_table_of_jobs
from sim.validation.table import is_runs


def check_command(
    file: Annotated[Path, typer.Argument(help="A job, plan, model (also config.json), device, profile or grid file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List every problem of a file; exit code 2 if there is one."""
    kind, problems, warnings, assumptions = checked_file(file)
    if as_json:
        print_json(
            {
                "kind": kind,
                "problems": [{"path": p.path, "value": shown(p.value), "allowed": p.allowed} for p in problems],
                "warnings": warnings,
                "assumptions": list(assumptions),
            }
        )
    else:
        lines = [f"problem: {p}" for p in problems] or [f"no problem found in this {kind.removesuffix('-file')} file"]
        lines += [f"warning: {w}" for w in warnings] + [f"assumed: {a}" for a in assumptions]
        console.print("\n".join(lines), highlight=False, soft_wrap=True)
    if problems:
        raise typer.Exit(2)


Report = tuple[str, list[InputError], list[str], Sequence[str]]


def checked_file(file: Path) -> Report:
    """Return the kind of a file, its problems, warnings and what is assumed beside it."""
    if is_runs(file) or is_table_of_jobs(file):
        allowed = f"a job, plan, model, device, profile or grid file: `trainsim validate {file}` reads such tables"
        return "unreadable", [InputError(str(file), "a table of measured runs", allowed)], [], ()
    try:
        raw = load_mapping(file)
    except InputError as error:
        return "unreadable", [error], [], ()
    if "schema_version" in raw and "order" in raw:
        return "plan-file", *_plan_file(file, raw)
    return _recognised(file, raw)


def _recognised(file: Path, raw: dict[str, Any]) -> Report:
    kind = recognised(raw)
    if kind == "job":
        return kind, *_job(raw, file.parent)
    if kind == "grid":
        return kind, _grid(raw, file.parent), [], ()
    if kind == "config":
        try:
            return kind, [], [], Model.from_hf(file).assumptions
        except InputError as error:
            return kind, [error], [], ()
    if kind == "model":
        model, problems = read_model(raw, file.parent)
        return kind, problems, [], model.assumptions if model else ()
    made, problems = check_device(raw) if kind == "device" else check(KINDS[kind], raw)
    return kind, problems, [], getattr(made, "assumptions", ())


def _grid(raw: dict[str, Any], folder: Path) -> list[InputError]:
    try:
        Grid.read(raw, folder)
    except InputError as error:
        return [error, *error.also]
    return []


def _plan_file(file: Path, raw: dict[str, Any]) -> tuple[list[InputError], list[str], Sequence[str]]:
    problems, warnings, assumptions = _job(raw, file.parent)
    if problems:
        return problems, warnings, assumptions
    try:
        load_plan(file)
    except InputError as error:
        return [error], warnings, assumptions
    return [], warnings, assumptions


def _job(raw: dict[str, Any], folder: Path) -> tuple[list[InputError], list[str], Sequence[str]]:
    job, problems = check_job(raw, folder)
    if job is None:
        return problems, [], ()
    try:
        profiles_of(job.cluster)
        job = replace(job, cluster=priced(job.cluster, job.prices, job.training))
        if job.plan:
            return _planned(job)
    except InputError as error:
        return [error], [], ()
    return [], [], (*job.model.assumptions, *job.cluster.assumptions, *_of_prices(job))


def _of_prices(job: Job) -> tuple[str, ...]:
    """Return what is assumed beside the prices that a job states."""
    return job.prices.assumptions if job.prices else ()


def _planned(job: Job) -> tuple[list[InputError], list[str], Sequence[str]]:
    """Return what simulating the plan of a job shows."""
    assert job.plan
    step = simulate(job.model, job.cluster, job.plan)
    lost = losses_of(step, job.around)
    if job.training:
        whole_run(step, job.training, job.loading, job.checkpointing)  # refuses what leaves nothing of the training
    need, held = gigabytes(step.device_memory_bytes), gigabytes(job.cluster.memory_bytes)
    word = {"no": "does not fit", "close": "may not fit"}
    return (
        [],
        [f"plan {word[step.fits]}: {need} of {held}"] if step.fits in word else [],
        (
            *step.assumptions,
            *(lost.assumptions if lost else ()),
            *_of_prices(job),
        ),
    )


def shown(value: object) -> object:
    """Return a value as JSON can hold it, cut where it is long."""
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    if isinstance(value, str):
        return value if len(value) <= 400 else value[:397] + "..."
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 400 else text[:397] + "..."
