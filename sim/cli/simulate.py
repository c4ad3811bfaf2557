"""`trainsim simulate`: one plan's time, memory and their causes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from sim.cli.output import (
    around_data,
    checked_files,
    console,
    progress_console,
    replay_data,
    step_data,
    trained_data,
    write_together,
)
from sim.engine import allocations
from sim.engine.memory_trace import trace_text
from sim.engine.step import Step, simulate
from sim.market.job_prices import priced
from sim.plans.plan_file import load_plan
from sim.report.text import (
    answer,
    answer_trained,
    assumed_words,
    critical_words,
    fixing_words,
    losses_words,
    memory_words,
    replay_words,
    run_words,
)
from sim.run import Run, Trained, run_of, train
from sim.run.losses import losses_of
from sim.specs import Around, InputError
from sim.specs.files import print_json
from sim.units import HOUR_S, grouped, percent, seconds

MOST_HOURS = 10_000


class EngineName(StrEnum):
    """Engines by name."""

    path = "path"
    events = "events"


def simulate_command(
    job: Annotated[Path, typer.Argument(help="Job or plan file (YAML or JSON) with model, cluster and plan.")],
    engine: Annotated[
        EngineName, typer.Option(help="path: compiled critical path; events: discrete events, with contention.")
    ] = EngineName.path,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace: FILE.json (Chrome's) or FILE.pftrace (Perfetto's).")
    ] = None,
    memory_trace: Annotated[
        Path | None,
        typer.Option(help="Write the fullest rank's allocations (JSON lines) and replay them."),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            help="Simulate so many hours of training: steps, their data, checkpoints and failures on one clock."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of failures and of the order of data, with --hours.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict one training step of a plan."""
    loaded = load_plan(job).job
    if loaded.plan is None:
        found = "; trainsim tune --out DIR finds some" if loaded.tune else ""
        raise InputError("plan", None, f"required: tp, pp, global_batch, ...{found}")
    asked = checked_files({"--trace": trace, "--memory-trace": memory_trace, "--html": html}, job)
    step = simulate(loaded.model, priced(loaded.cluster, loaded.prices, loaded.training), loaded.plan, engine.value)
    run = run_of(step, loaded.around)
    lost = losses_of(step, loaded.around)
    trained = _trained(step, loaded.around, hours, seed)
    files: dict[Path, str | bytes] = {}
    if trace is not None:
        from sim.report.trace import trace_content  # noqa: PLC0415 - plotly only when asked for

        files[trace] = trace_content(trained or step, trace)
    replayed = None
    if memory_trace is not None:
        made, replayed = allocations.memory_trace(step)
        files[memory_trace] = trace_text(made)
    if html is not None:
        from sim.report.html import page  # noqa: PLC0415 - plotly only when asked for

        stretch = "" if hours is None else f" --hours {hours} --seed {seed}"
        again = f"trainsim simulate job.json --engine {engine.value}{stretch} --html report.html"
        files[html] = page(step, again, run, trained)
    write_together(asked, files)
    if as_json:
        more = {"replay": replay_data(replayed)} if replayed else {}
        print_json(
            step_data(step, run) | around_data(lost) | more | ({"trained": trained_data(trained)} if trained else {})
        )
        return
    _print(step, run)
    for line in (*losses_words(lost), *([answer_trained(trained)] if trained else [])):
        console.print(line, highlight=False)
    if replayed:
        console.print(replay_words(replayed), highlight=False)
    for line in (*assumed_words(step, run), *(f"written: {target}" for target in asked.values())):
        console.print(line, highlight=False, soft_wrap=True)


def _trained(step: Step, around: Around, hours: float | None, seed: int) -> Trained | None:
    """Return the stretch of training that was asked for."""
    if hours is None:
        if seed:
            raise InputError("--seed", seed, "left out without --hours")
        return None
    if not 0 < hours <= MOST_HOURS:
        raise InputError("--hours", hours, f"a number above 0, at most {MOST_HOURS}")
    with Progress(console=progress_console, transient=True) as bar:
        task = bar.add_task(f"{hours:g} hours of training", total=hours * HOUR_S)
        return train(
            step,
            around.loading,
            around.checkpointing,
            hours * HOUR_S,
            seed,
            progress=lambda seconds_: bar.update(task, completed=seconds_),
        )


def _print(step: Step, run: Run | None) -> None:
    console.print(answer(step), style="bold", highlight=False)
    console.print(
        f"MFU {percent(step.mfu)} (Megatron's convention), HFU {percent(step.hfu)}, "
        f"{grouped(round(step.tokens_per_s_per_gpu))} tokens/s a GPU; fits: {step.fits}",
        highlight=False,
    )
    for line in run_words(run):
        console.print(line, highlight=False)
    for name, value in step.breakdown_s.items():
        if value:
            console.print(f"  {name:<10} {seconds(value):>10}  {percent(value / step.step_time_s):>7}")
    console.print(critical_words(step), highlight=False)
    for line in (*step.learned, *memory_words(step), *([fixing_words(step)] if step.fits == "no" else [])):
        console.print(line, highlight=False)
