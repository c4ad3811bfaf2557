"""`trainsim loading`: whether training waits for its data, and what would end that."""

from dataclasses import asdict
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.progress import Progress

from sim.cli.output import console, progress_console
from sim.engine.step import simulate as simulate_step
from sim.loading import Prediction, Simulated, predict, simulate, what_if
from sim.report.loading import answer_loading, answer_simulated, what_if_lines
from sim.run.feed import Feed
from sim.specs import InputError, Job
from sim.specs.fields import read
from sim.specs.files import load_mapping, print_json
from sim.specs.loading import Loading

BATCH = 64
"""Samples of a batch where no plan says it."""

EPOCHS = 3

app = typer.Typer(
    help="Predict how fast training is fed with data, or measure it here.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Engine(StrEnum):
    """Engines by name."""

    law = "law"
    events = "events"


class Along(StrEnum):
    """Axes of what-if by name."""

    cache = "cache"
    cores = "cores"
    storage = "storage"
    gpus = "gpus"


class _Fed(NamedTuple):
    """A pipeline and the training of one node that it feeds."""

    loading: Loading
    samples_per_s: float
    batch: int
    nodes: int
    network_bytes_per_s: float | None


@app.callback()
def _group() -> None:
    """Predict how fast training is fed with data, or measure it here."""


@app.command("predict")
def predict_command(
    file: Annotated[Path, typer.Argument(help="Job with model, cluster, plan and loading, or the section alone.")],
    compute_samples_per_s: Annotated[
        float | None,
        typer.Option(help="Samples that a node trains in a second when it never waits (a job: by its simulated step)."),
    ] = None,
    engine: Annotated[Engine, typer.Option(help="law: closed forms; events: simulated processes beside them.")] = (
        Engine.law
    ),
    epochs: Annotated[
        int | None,
        typer.Option(min=2, max=100, help=f"Epochs simulated with --engine events ({EPOCHS}); the first fills caches."),
    ] = None,
    along: Annotated[
        Along | None, typer.Option("--what-if", help="Stalls over cached bytes, cores, storage or devices.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict how fast training is fed: rates, stalls, what decides, and what would be enough."""
    if epochs is not None and engine is not Engine.events:
        raise InputError("--epochs", epochs, "left out without --engine events: the law's epochs are alike")
    fed = _fed(file, compute_samples_per_s)
    loading, where = fed.loading, {"nodes": fed.nodes, "network_bytes_per_s": fed.network_bytes_per_s}
    found = predict(loading, fed.samples_per_s, **where)  # type: ignore[arg-type]
    rows = what_if(loading, fed.samples_per_s, along.value, **where) if along else ()  # type: ignore[arg-type]
    events = None
    if engine is Engine.events:
        with Progress(console=progress_console, transient=True) as bar:
            task = bar.add_task("simulating", total=1.0)
            events = simulate(
                loading,
                fed.samples_per_s,
                fed.batch,
                epochs or EPOCHS,
                nodes=fed.nodes,
                network_bytes_per_s=fed.network_bytes_per_s,
                progress=lambda share: bar.update(task, completed=share),
            )
    if as_json:
        print_json(prediction_data(found) | {"what_if": [_plain(asdict(row)) for row in rows]} | _events(events))
        return
    lines = [*answer_loading(found), *(answer_simulated(events, found) if events else ()), *what_if_lines(rows)]
    for line in lines:
        console.print(line, highlight=False)


def _fed(file: Path, stated: float | None) -> _Fed:
    """Return what a file says; raises InputError where nothing says how fast training is."""
    raw = load_mapping(file)
    if "model" in raw or raw.keys() > {"loading"}:  # whatever else a file says, it is a job that says it
        job = Job.load(file)
        if job.loading is None:
            raise InputError("loading", None, "required: how data is loaded")
        if job.plan is None:
            raise InputError("plan", None, "required: how fast training is follows from it")
        feed = Feed.of(simulate_step(job.model, job.cluster, job.plan))
        rate = feed.compute_samples_per_s if stated is None else stated
        return _Fed(job.loading, rate, feed.batch, feed.readers, feed.network_bytes_per_s)
    section = read(Loading, raw["loading"], "loading") if "loading" in raw else read(Loading, raw)
    if stated is None:
        raise InputError("--compute-samples-per-s", None, "required with a file that has no model, cluster and plan")
    return _Fed(section, stated, BATCH, 1, None)


def prediction_data(found: Prediction) -> dict[str, Any]:
    """Return the JSON object of a prediction; a rate that nothing bounds is null."""
    return _plain(asdict(found))


def _events(found: Simulated | None) -> dict[str, Any]:
    if found is None:
        return {}
    told = {key: value for key, value in asdict(found).items() if key != "spans"}
    return {"events": told | {"spans": len(found.spans)}}


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in data.items()}
