"""`trainsim execute`: a plan run for real on this machine, beside its prediction."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from calibration.execute.busy import Busy, beside, idle, nobody, others
from calibration.execute.holdout import Case, Row, table
from calibration.execute.learn import learn, target
from calibration.execute.limits import Device, as_executed, executable
from calibration.execute.measure import (
    LEAST_STEPS,
    MOST_SEED,
    MOST_STEPS,
    MOST_TIMEOUT_S,
    Measured,
    Run,
    Setting,
    measure_all,
    prepare,
    processes,
)
from calibration.execute.predict import Predicted, assumptions, pipeline_ranks, predict
from calibration.execute.processes import ExecutionError
from calibration.execute.versions import check_torch
from calibration.folder import alone, made
from calibration.instruments import usable_cores
from sim.plans.plan_file import load_plan
from sim.schedules import Schedule
from sim.schedules.custom import read_order
from sim.specs import InputError, Job, PlacedPlan
from sim.specs.files import checked_folder, none_left_empty, print_json, write_all
from sim.units import many, si
from sim.validation.traces import join

if TYPE_CHECKING:
    from calibration.spot_check import SpotCheck

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

STEPS = typer.Option(min=LEAST_STEPS, max=MOST_STEPS, help="Steps measured after 3 of warm-up.")
TIMEOUT = typer.Option(
    "--timeout-s", "--timeout", min=0, max=MOST_TIMEOUT_S, help="Seconds until a run is ended (0: 60, and 10 a step)."
)


@app.command()
def execute_command(
    job: Annotated[Path, typer.Argument(help="Job or plan file; model: as GPT-2, at most 500 million parameters.")],
    *,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option("--device", help="Where it runs, on at most 8 ranks.")
    ] = "cpu",
    steps: Annotated[int, STEPS] = LEAST_STEPS,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="Seed of weights and data.")] = 0,
    order: Annotated[
        Path | None, typer.Option("--order", help="CSV of another order for the pipeline, in PyTorch's format.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--processes", min=1, help="Most processes that may be started (default: any).")
    ] = None,
    timeout_s: Annotated[float, TIMEOUT] = 0.0,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of 127.0.0.1 to meet at (0: any).")] = 0,
    traces: Annotated[Path | None, typer.Option(help="Folder for traces, and measured beside simulated.")] = None,
    task: Annotated[Path | None, typer.Option(help="Folder for what torchrun's workers read; none is run.")] = None,
    despite_load: Annotated[
        bool, typer.Option("--despite-load", help="Run on a busy machine too; the result says how busy.")
    ] = False,
    learning: Annotated[
        bool, typer.Option("--learn", help="Let the job's own profile folder learn from this run.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict a small network's training step, run it on a process per rank, and compare.

    Compared are times, memory, messages, gradients and, of a pipeline, the order of its passes: PyTorch's runtime runs
    the plan's own order, or another one for the same stages and microbatches.
    """
    progress = Console(stderr=True)
    for option, folder in (("--traces", traces), ("--task", task)):
        checked_folder(option, folder)
    setting = Setting(device, steps, seed, timeout_s, port, traces)
    other = read_order(order) if order else None
    held = load_plan(job).job
    if task and learning:
        raise InputError("--learn", True, "left out with --task: nothing is run")
    run, predicted = planned(held, device, other, most)
    _check_traced(predicted, traces)
    if task:
        _tell_task(task, prepare(run, setting, task), as_json)
        return
    learner = target(held, run, device, despite_load) if learning else None
    # Of two lessons at once one would be lost.
    with alone(learner, "--learn") if learner else nullcontext(), _kept(traces) as kept:
        try:
            row = execute(held, replace(setting, traces=kept), nobody if despite_load else others, other, most)
        except ExecutionError as error:
            progress.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None
        if traces and kept:
            progress.print(f"measured over simulated: {lay_over(row, kept, traces)}", markup=False, soft_wrap=True)
        lesson = learn(learner, held, row) if learner else None
    assumed = assumptions(held.model, held.cluster, held.plan, row.case.plan) if held.plan else ()
    assumed += row.checked.lines("cluster.profile") if row.checked else ()
    if as_json:
        told = data(row) | {"assumptions": list(assumed)}
        print_json(told | ({"learned": lesson.data()} if lesson else {}))
        return
    Console(markup=False, emoji=False).print(table([row]), by_process(row))
    for line in [*assumed, *factors(row.predicted), *(lesson.lines() if lesson else ())]:
        Console().print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _kept(traces: Path | None) -> Iterator[Path | None]:
    """Yield a folder for a while in which processes leave their traces, None where none are asked for."""
    if traces is None:
        yield None
        return
    with none_left_empty(traces), TemporaryDirectory(prefix="trainsim-") as kept:
        made(traces, "--traces")
        yield Path(kept)


def _checked(profile: str) -> "SpotCheck | None":
    from calibration.spot_check import spot_check  # noqa: PLC0415 - loads torch

    return spot_check(profile)


def _tell_task(folder: Path, command: str, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(folder), "command": command})
    else:
        typer.echo(command)


def _check_traced(predicted: Predicted, traces: Path | None) -> None:
    """Refuse a folder that would stay empty: what is traced are passes that PyTorch's pipelining runtime runs."""
    if traces and not predicted.csv:
        allowed = (
            "left out: the plan has no pipeline, or one without flush, whose passes PyTorch's runtime does not run"
        )
        raise InputError("--traces", str(traces), allowed)


def execute(
    job: Job,
    setting: Setting,
    busy: Busy = nobody,
    order: Schedule | None = None,
    most: int | None = None,
) -> Row:
    """Return the prediction of a job's plan and what it then took.

    order: another one for the pipeline; most: processes that may be started.

    Raises:
        InputError: something in the job cannot be executed here.
        ExecutionError: the machine is busy, or a process failed.
    """
    run, predicted = planned(job, setting.device, order, most)
    _check_traced(predicted, setting.traces)
    idle(busy)
    checked = _checked(job.cluster.profile) if setting.device == "cpu" else None
    case = Case(job.model.name, "step", job.model, run.plan)
    (measured,), load = beside(lambda: measure_all([run], setting))
    return Row(case, predicted, measured, checked=checked, load=load)


def planned(job: Job, device: Device, order: Schedule | None = None, most: int | None = None) -> tuple[Run, Predicted]:
    """Return how a job's plan is executed, and its prediction.

    Raises:
        InputError: something in the job cannot be executed here.
    """
    check_torch()
    if job.plan is None:
        raise InputError("plan", None, "required: global_batch, micro_batch, ...")
    plan = as_executed(job.plan.suited(job.cluster))
    placed = executable(job.model, job.cluster, plan, device)
    plan = plan if plan.stages else plan.but(dp=placed.dp)
    if order and plan.pp == 1:
        raise InputError("--order", "a pipeline's order", "left out: the plan has no pipeline (plan.pp = 1)")
    if most is not None and processes(plan) > most:
        raise InputError("--processes", most, f"at least {processes(plan)}: the plan has so many ranks")
    cores = usable_cores() if device == "cpu" else None
    predicted = predict(job.model, job.cluster, plan, device, order, cores)
    return Run(job.model, plan, predicted.csv), predicted


def factors(predicted: Predicted) -> Iterator[str]:
    """Yield what a predicted time contains beyond the simulated step, as text."""
    if predicted.learned_factor != 1:
        yield f"the prediction contains the learned correction x{predicted.learned_factor:.3g}"
    if predicted.crowded_factor > 1:
        yield f"processes share {many(usable_cores(), 'core')}: predicted {predicted.crowded_factor:.3g} times as long"


EXECUTED_AS = (
    "framework", "core_modules", "cross_entropy", "cuda_graphs", "layer_graphs", "fused_wgrad", "overlap_dp",
    "tp_overlap", "tp_comm_overlap", "fused_experts", "scatter_gather", "dp",
)  # fmt: skip
"""Settings of a plan that may be executed otherwise than it states them."""


def data(row: Row) -> dict[str, Any]:
    """Return the command's JSON: predicted and measured figures, and relative errors of the predicted ones."""
    predicted, measured = row.predicted.figures(), asdict(row.measured)
    order = {"order_matches": row.order_matches}
    predicted |= {"interval_s": row.interval_s, "max_gradient_error": 0.0, "order_matches": True}
    errors = {
        name: [p / m - 1 if m else p - m for p, m in zip(predicted[name], measured[name], strict=True)]
        for name in ("peak_memory_bytes", "host_bytes", "bytes_sent")
    }
    return {
        "predicted": predicted,
        "measured": measured | order,
        "load": row.load,
        "spot_check": row.checked.data() if row.checked else None,
        "errors": {"step_time_s": row.error, "inside_interval": row.inside, **errors, **order}
        | {"traffic_matches": row.predicted.traffic == row.measured.traffic},
        "executed_as": {n: getattr(row.case.plan, n) for n in EXECUTED_AS},
    }


def by_process(row: Row) -> Table:
    """Return what every process did beside what it should: messages by group or link, peak of memory, order."""
    told, found = row.predicted, row.measured
    error = f"largest error of a gradient {found.max_gradient_error:.2g} of the largest gradient"
    made = Table("process", "order", "messages", "sent", "peak", "predicted", box=box.SIMPLE, caption=error)
    for n, (counted, peak) in enumerate(zip(found.traffic, found.peak_memory_bytes, strict=True)):
        order = "-" if not found.order else "as planned" if found.order[n] == told.order[n] else "another"
        messages = ", ".join(f"{calls} {name}" for name, (calls, _) in sorted(counted.items())) or "-"
        exact = "exactly" if counted == told.traffic[n] else "not"
        sent = f"{si(found.bytes_sent[n], 'B')}, {exact} as predicted"
        made.add_row(
            str(n), order, messages, sent, _memory(peak, found, n), _memory(told.peak_memory_bytes[n], told, n)
        )
    return made


def _memory(peak: float, of: Predicted | Measured, process: int) -> str:
    """Return a process's peak, with what is in host memory beside it."""
    host = of.host_bytes[process] if of.host_bytes else 0.0
    return si(peak, "B") + (f" (host {si(host, 'B')})" if host else "")


def lay_over(row: Row, traces: Path, folder: Path) -> Path:
    """Write traces, and the page of the measured step over the simulated one, into `folder`, all or nothing; return the
    path of the page.

    Of each pipeline rank the first process is shown.
    """
    from calibration.report import laid_over  # noqa: PLC0415 - loads plotly

    if row.predicted.timeline is None:
        raise InputError("traces", None, "of a whole step")
    ranks = pipeline_ranks(PlacedPlan(row.case.plan, row.case.plan.dp, 0))
    first = [traces / f"trace-0-{ranks.index(rank)}.json" for rank in range(row.case.plan.pp)]
    path = folder / "measured.html"
    page = laid_over(join(row.predicted.timeline, first))
    write_all({folder / each.name: each.read_bytes() for each in traces.iterdir()} | {path: page})
    return path
