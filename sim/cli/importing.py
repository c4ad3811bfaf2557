"""`trainsim import`: another framework's settings as a plan."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.output import checked_files, console, progress_console, written
from sim.plans.files import job_data, plain
from sim.plans.flags import MAX_TEXT
from sim.plans.importing import SOURCES, read_plan
from sim.plans.plan_file import load_plan
from sim.specs import InputError, Job
from sim.specs.files import print_json, text_of, write_json


def import_command(
    file: Annotated[Path, typer.Argument(help="Megatron-LM's arguments, torchtitan's flags or DeepSpeed's JSON.")],
    source: Annotated[str, typer.Option("--from", help="One of " + ", ".join(SOURCES) + ".")],
    job: Annotated[
        Path | None, typer.Option(help="Job file that gives model and cluster; the plan then makes a whole job.")
    ] = None,
    order: Annotated[Path | None, typer.Option(help="The schedule CSV that torchtitan's flags name.")] = None,
    out: Annotated[Path | None, typer.Option(help="Job file to write (with --job).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read the plan in another framework's settings; what is not read is listed."""
    if source not in SOURCES:
        raise InputError("--from", source, "one of " + ", ".join(SOURCES))
    if out is not None and job is None:
        raise InputError("--job", None, "required with --out: model and cluster of the job that is written")
    checked_files({"--out": out}, *(path for path in (file, job, order) if path))
    like = load_plan(job).job if job else None
    csv = text_of(order, MAX_TEXT) if order else None
    found = read_plan(
        text_of(file, MAX_TEXT),
        source,  # type: ignore[arg-type]
        model=like.model if like else None,
        gpus=like.cluster.gpus if like else None,
        order=csv,
    )
    whole = _job(like, found.plan) if like else None
    if out is not None:
        with written("--out", out):
            write_json(out, whole)
    if as_json:
        data = {"plan": plain(found.plan), "not_read": list(found.not_read), "notes": list(found.notes)}
        print_json(data | {"path": str(out) if out else None, "assumptions": list(found.plan.assumptions)})
        return
    for line in (*(f"not read: {word}" for word in found.not_read), *(f"note: {note}" for note in found.notes)):
        progress_console.print(line, highlight=False, soft_wrap=True)
    if out is not None:
        console.print(str(out), highlight=False, soft_wrap=True)
    else:
        print_json(whole or {"plan": plain(found.plan)})


def _job(like: Job, plan: Any) -> dict[str, Any]:
    """Return the job with the plan, which has to be legal there."""
    plan.on(like.model, like.cluster)
    return job_data(like.model, like.cluster, plan, like.around)
