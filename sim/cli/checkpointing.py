"""`trainsim checkpointing`: how often to save training state, and what a run with failures keeps."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.checkpointing import Fleet, simulate
from sim.checkpointing.state import ASSUMPTIONS, Writers
from sim.cli.output import console
from sim.engine.step import simulate as simulate_step
from sim.report.checkpoints import answer_plan, answer_simulated
from sim.run.losses import Saving, stated, steps_of
from sim.specs import Checkpointing, InputError, Job
from sim.specs.files import print_json
from sim.units import HOUR_S

app = typer.Typer(
    help="Say how often to save training state, and what failures leave of a run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
JOB = typer.Argument(help="Job file with model, cluster and plan (and checkpointing: how state is kept).")
WRITERS = typer.Option(help="Who writes: balanced over all ranks, or the first-replica.")
JSON = typer.Option("--json", help="Print one JSON object.")
USUAL_HOURS = 720.0
MOST_HOURS = 200_000


@app.callback()
def _group() -> None:
    """Say how often to save training state, and what failures leave of a run."""


@app.command("plan")
def plan_command(
    job: Annotated[Path, JOB],
    writers: Annotated[str, WRITERS] = "balanced",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say how often to save, what that costs, and what other policies would do."""
    saving, _, notes = _of_job(job, writers)
    made, advice = saving.times, saving.advice
    if not as_json:
        _say([*answer_plan(advice, made), *_assumed(advice.assumptions)])
        return
    data = asdict(advice)
    rows = [asdict(row) | {"k": row.steps_between, "overhead_percent": row.overhead_percent} for row in advice.policies]
    beside = {name: getattr(made, name) for name in ("iteration_s", "update_s", "reload_s", "contention")}
    copies = {name: getattr(made, name) for name in ("host_snapshot_s", "device_snapshot_s")}
    head = {"k": advice.steps_between, "overhead_percent": advice.overhead_percent}
    print_json(head | data | beside | copies | {"policies": rows, "assumptions": [*notes, *advice.assumptions]})


@app.command("simulate")
def simulate_command(
    job: Annotated[Path, JOB],
    hours: Annotated[
        float | None, typer.Option(help=f"Simulate so many hours, above 0 ({USUAL_HOURS:g} without --steps).")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Simulate until so many steps are safe instead.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="Runs, each with failures of its own.")] = 20,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the failures of the first run; each further one has the next.")
    ] = 0,
    adapt: Annotated[
        bool, typer.Option("--adapt", help="Start with CheckFreq's rule and lengthen k to the budget.")
    ] = False,
    writers: Annotated[str, WRITERS] = "balanced",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Simulate a run with checkpoints and failures by chance: goodput with its spread."""
    if hours is not None and not 0 < hours <= MOST_HOURS:
        raise InputError("--hours", hours, f"a number above 0, at most {MOST_HOURS:,}")
    if hours is not None and steps is not None:
        raise InputError("--hours", hours, f"left out with --steps {steps}, until which the run lasts")
    saving, fleet, notes = _of_job(job, writers)
    mean = saving.mtbf_s
    lasting = None if steps is not None else HOUR_S * (USUAL_HOURS if hours is None else hours)
    with stated():
        found = simulate(saving.times, saving.checkpointing, steps, lasting, mean, fleet, seed, seeds, adapt)
    if not as_json:
        _say([*answer_simulated(found), *_assumed(found.assumptions)])
        return
    data = asdict(found)
    for sample in data["samples"]:
        sample["max_lost_steps"] = max(sample.pop("lost_steps"), default=0)
        del sample["lost_s"], sample["down_s"]
    print_json({"k": found.steps_between, "mtbf_s": mean} | data | {"assumptions": [*notes, *found.assumptions]})


def _of_job(path: Path, writers: str) -> tuple[Saving, Fleet, tuple[str, ...]]:
    """Return how a job's state is saved, the fleet, and assumptions."""
    job = Job.load(path)
    if job.plan is None:
        raise InputError("plan", None, "required: a state is that of a plan")
    step = simulate_step(job.model, job.cluster, job.plan)
    steps = steps_of(step, job.training) if job.training else None
    saving = Saving.of(step, job.loading, job.checkpointing or Checkpointing(), _writers(writers), steps)
    return saving, Fleet.of(step), (*step.assumptions, *ASSUMPTIONS)


def _writers(name: str) -> Writers:
    known: dict[str, Writers] = {"balanced": "balanced", "first-replica": "first-replica"}
    if name not in known:
        raise InputError("--writers", name, "one of " + ", ".join(known))
    return known[name]


def _assumed(own: Iterable[str]) -> list[str]:
    """Return the assumptions of saving in words; those of the step are for `--json`."""
    return [f"Assumed: {text}" for text in (*own, *ASSUMPTIONS)]


def _say(lines: Iterable[Any]) -> None:
    for line in lines:
        console.print(line, highlight=False)
