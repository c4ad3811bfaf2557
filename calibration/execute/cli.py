"""`trainsim execute`: a plan run for real on this machine, beside its prediction."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from calibration.execute.busy import Busy, idle, nobody, others
from calibration.execute.holdout import Case, Row, table
from calibration.execute.limits import Device, as_executed, executable
from calibration.execute.measure import LEAST_STEPS, measure
from calibration.execute.predict import predict
from calibration.execute.processes import ExecutionError
from sim.specs import InputError, Job

app = typer.Typer(help="Execute a plan.", add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True, context_settings={"allow_interspersed_args": True})
def execute_command(
    job: Annotated[Path, typer.Argument(help="Job or plan file with model, cluster and plan.")],
    *,
    device: Annotated[Literal["cpu", "cuda"], typer.Option("--device", help="Where it runs.")] = "cpu",
    steps: Annotated[int, typer.Option("--steps", help="Steps that are measured, after 3 of warm-up.")] = LEAST_STEPS,
    seed: Annotated[int, typer.Option("--seed", help="Of weights and data.")] = 0,
    despite_load: Annotated[bool, typer.Option("--despite-load", help="Run on a busy machine too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict a small network's training step, run it, and compare times, memory, messages and gradients.

    So far without pipeline and tensor parallelism: one process, or on the CPU two that share the batch.
    """
    progress = Console(stderr=True)
    try:
        row = execute(Job.load(job), device, steps, seed, nobody if despite_load else others)
    except ExecutionError as error:
        progress.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(data(row)))
    else:
        Console().print(table([row]))


def execute(job: Job, device: Device, steps: int = LEAST_STEPS, seed: int = 0, busy: Busy = nobody) -> Row:
    """Return the prediction of a job's plan and what it then took.

    Raises:
        InputError: something in the job cannot be executed here.
        ExecutionError: the machine is busy, or a process failed.
    """
    if job.plan is None:
        raise InputError("plan", None, "required: global_batch, micro_batch, ...")
    plan = as_executed(job.plan.suited(job.cluster))
    placed = executable(job.model, job.cluster, plan, device)
    plan = plan.but(dp=placed.dp)
    predicted = predict(job.model, job.cluster, plan, device)
    idle(busy)
    return Row(Case(job.model.name, "step", job.model, plan), predicted, measure(job.model, plan, device, steps, seed))


def data(row: Row) -> dict[str, Any]:
    """Return the command's JSON: predicted and measured figures, and relative errors of the predicted ones."""
    predicted, measured = asdict(row.predicted), asdict(row.measured)
    predicted["max_gradient_error"] = 0.0
    errors = {
        name: [p / m - 1 if m else p - m for p, m in zip(predicted[name], measured[name], strict=True)]
        for name in ("peak_memory_bytes", "bytes_sent")
    }
    return {
        "predicted": predicted,
        "measured": measured,
        "errors": {"step_time_s": row.error, "inside_interval": row.inside, **errors},
        "executed_as": {n: getattr(row.case.plan, n) for n in ("framework", "cross_entropy", "fused_wgrad", "dp")},
    }
