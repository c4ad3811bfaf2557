"""`trainsim emit`: a plan as the files with which another framework runs it."""

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.output import checked_file, console, progress_console, written
from sim.engine.step import simulate
from sim.plans import EXPORTERS, emitted, placed, stem_of
from sim.plans.notes import notes
from sim.plans.plan_file import load_plan
from sim.report.text import memory_verdict
from sim.specs import InputError
from sim.specs.files import checked_folder, none_left_empty, print_json, write_all


def emit_command(
    plan: Annotated[Path, typer.Argument(help="Plan or job file (YAML or JSON) with model, cluster and plan.")],
    to: Annotated[str, typer.Option("--to", help="One of " + ", ".join(EXPORTERS) + ".")],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, its folder made; what belongs to it gets the same name and another suffix."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a plan for another framework, or say what of it that framework cannot run."""
    if to not in EXPORTERS:
        raise InputError("--to", to, "one of " + ", ".join(EXPORTERS))
    if out is not None and not out.parent.exists():
        checked_folder("--out", out.parent)
    elif out is not None:
        checked_file("--out", out, plan)
    job = load_plan(plan).job
    if job.plan is None:
        raise InputError("plan", None, "required: tp, pp, global_batch, ...")
    step = simulate(job.model, job.cluster, job.plan)
    files = emitted(step, to, stem_of(out) if out else "plan")
    paths: list[Path] = []
    if out is not None:
        with written("--out", out), none_left_empty(out.parent):
            out.parent.mkdir(parents=True, exist_ok=True)
            by_path = placed(files, out)
            paths = list(by_path)
            for other in paths[1:]:
                checked_file("--out", other, plan)
            write_all(by_path)
    texts, told = list(files.values()), list(notes(step, EXPORTERS[to].target))
    told += [memory_verdict(step)] if step.fits != "yes" else []
    if as_json:
        shown: list[str | None] = [str(path) for path in paths] or [None] * len(texts)
        each = [{"name": n, "path": p, "content": text} for n, p, text in zip(files, shown, texts, strict=True)]
        print_json({"target": to, "path": shown[0], "content": texts[0], "files": each, "notes": told})
        return
    if paths:
        console.print("\n".join(map(str, paths)), highlight=False, soft_wrap=True)
    else:
        typer.echo(texts[0], nl=False)
        told += [f"not printed: {', '.join(list(files)[1:])}; --out writes every file"] if len(files) > 1 else []
    for note in told:
        progress_console.print(f"note: {note}", highlight=False, soft_wrap=True)
