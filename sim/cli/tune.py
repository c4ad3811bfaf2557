"""`trainsim tune`: the best plans for a job, ranked and explained."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.progress import Progress
from rich.table import Table

from sim.cli.output import console, plan_data, print_json, progress_console
from sim.plans.files import save_jobs
from sim.specs import InputError, Job
from sim.tuner.tune import Tuned, tune
from sim.units import gigabytes, seconds


def tune_command(
    job: Annotated[Path, typer.Argument(help="Job file (YAML or JSON) with model, cluster and tune (or plan).")],
    out: Annotated[Path | None, typer.Option(help="Folder for report.html and one job file per plan.")] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="Plans to list.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search all plans for the job's devices and rank the best."""
    loaded = Job.load(job)
    if loaded.tune is None and loaded.plan is None:
        raise InputError("tune", None, "required: global_batch, and optionally knobs and objective")
    batch = loaded.tune.global_batch if loaded.tune else loaded.plan.global_batch  # type: ignore[union-attr]
    with Progress(console=progress_console, transient=True) as bar:
        task = bar.add_task("scoring the space")
        found = tune(
            loaded.model,
            loaded.cluster,
            batch,
            loaded.tune.knobs if loaded.tune else None,
            loaded.tune.objective if loaded.tune else "step_time",
            top,
            lambda what, done, of: bar.update(task, description=what, completed=done, total=max(of, done + 1)),
        )
    if out:
        from sim.report.html import save_html  # noqa: PLC0415 - plotly only when asked for

        out.mkdir(parents=True, exist_ok=True)
        save_html(found, out / "report.html")
        save_jobs([(loaded.model, loaded.cluster, r.plan) for r in found.plans], out)
    if as_json:
        print_json(tuned_data(found))
    else:
        _print(found, out)


def tuned_data(found: Tuned) -> dict[str, Any]:
    """Return the JSON object of a search (DESIGN: `trainsim tune`)."""
    base = found.baseline
    return {
        "plans": [
            {
                "plan": plan_data(r.plan),
                "step_time_s": r.step.step_time_s,
                "step_time_interval_s": list(r.step.step_time_interval_s),
                "mfu": r.step.mfu,
                "peak_memory_bytes": r.step.peak_memory_bytes,
                "fits": r.step.fits,
                "usd_per_1e9_tokens": r.step.usd_per_1e9_tokens,
                "p_best": r.p_best,
                "why": list(r.why),
            }
            for r in found.plans
        ],
        "objective": found.objective,
        "evaluated": found.evaluated,
        "feasible": found.feasible,
        "excluded": found.excluded,
        "seconds": dict(found.seconds),
        "gap": found.gap,
        "certified": found.certified,
        "baseline": base and {"plan": plan_data(base.plan), "step_time_s": base.step_time_s},
        "speedup": found.speedup,
        "assumptions": list(found.best.step.assumptions),
    }


def _print(found: Tuned, out: Path | None) -> None:
    title = f"{found.model.name} on {found.cluster.gpus} x {found.cluster.device}, global batch {found.global_batch}"
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("#", "plan", "memory", "step", "80 %", "MFU", "peak", "USD/1e9 tok"):
        table.add_column(heading, justify="left" if heading in ("plan", "memory") else "right", no_wrap=True)
    for n, ranked in enumerate(found.plans, 1):
        step, plan = ranked.step, ranked.plan
        low, high = step.step_time_interval_s
        price = step.usd_per_1e9_tokens
        table.add_row(
            str(n),
            f"tp{plan.tp} pp{plan.pp} v{plan.virtual_stages} dp{step.placed.dp} mb{plan.micro_batch}",
            f"ZeRO-{plan.zero} {plan.recompute}{' sp' if plan.sequence_parallel else ''}",
            seconds(step.step_time_s),
            f"{low:.3g}-{high:.3g}",
            f"{step.mfu:.1%}",
            gigabytes(step.peak_memory_bytes),
            "-" if price is None else f"{price:,.0f}",
        )
    console.print(table)
    for line in found.best.why:
        console.print(f"  {line}")
    base = found.baseline
    if base:
        p = base.plan
        console.print(
            f"textbook plan (tp {p.tp}, pp {p.pp}, ZeRO-{p.zero}, {p.recompute} recompute): "
            f"{seconds(base.step_time_s)}; the best plan is {found.speedup:.2f}x as fast"
        )
    rate = found.evaluated / max(found.seconds["score"], 1e-9)
    proof = "certified" if found.certified else "not certified"
    console.print(
        f"{found.evaluated} plans scored ({rate:,.0f}/s), {found.feasible} fit; {found.seconds['total']:.1f} s in all; "
        f"optimum of the space {proof}"
    )
    if out:
        console.print(f"report: {out / 'report.html'}", highlight=False, soft_wrap=True)
