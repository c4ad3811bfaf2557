"""`trainsim decentralized`: training on skewed data far apart, what it sends, how long it takes, what it loses."""

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.output import console, progress_console
from sim.decentralized import (
    AccuracyModel,
    Decentralized,
    Estimate,
    Simulated,
    WhatIf,
    fit_accuracy,
    read_runs,
    simulate,
    what_if,
)
from sim.decentralized.controllers import CONTROLLERS
from sim.report.decentralized import answer_decentralized, what_if_lines
from sim.specs import InputError
from sim.specs.fields import read
from sim.specs.files import load_mapping, print_json
from sim.specs.notebook_files import notebook_file

SHORT_RUNS = "data/decentralized-grid.csv"

app = typer.Typer(
    help="Train on skewed data far apart: traffic, time, accuracy, and which theta.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Along(StrEnum):
    """Axes of what-if by name."""

    bandwidth = "bandwidth"
    partitions = "partitions"
    skew = "skew"
    model_bytes = "model_bytes"


@app.callback()
def _group() -> None:
    """Train on skewed data far apart: traffic, time, accuracy, and which theta."""


@app.command("simulate")
def simulate_command(
    file: Annotated[Path | None, typer.Argument(help="YAML or JSON file of the training; options win over it.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="One of bsp, gaia, fedavg, dgc, diloco.")] = None,
    theta: Annotated[
        float | None, typer.Option(help="The algorithm's knob; with a controller where it begins.")
    ] = None,
    controller: Annotated[str | None, typer.Option(help=f"What moves theta: one of {', '.join(CONTROLLERS)}.")] = None,
    skew: Annotated[
        float | None, typer.Option(help="Share of the data sorted by label before it is split, 0 to 1.")
    ] = None,
    k: Annotated[int | None, typer.Option("--partitions", "-k", help="Partitions of the data, from 2 to 64.")] = None,
    steps: Annotated[int | None, typer.Option(help="Minibatches of each partition.")] = None,
    parameters: Annotated[int | None, typer.Option(help="Parameters of the network, of 4 bytes.")] = None,
    step_s: Annotated[float | None, typer.Option(help="Seconds of a minibatch.")] = None,
    bytes_per_s: Annotated[float | None, typer.Option(help="Bandwidth of every link, in bytes a second.")] = None,
    latency_s: Annotated[float | None, typer.Option(help="Latency of every link, one way, in seconds.")] = None,
    travel_every: Annotated[
        int | None, typer.Option(help="Minibatches between two travels of models; 0: none.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of jitter, accuracy losses and controller.")] = None,
    accuracy: Annotated[
        Path | None, typer.Option(help=f"CSV of short runs (notebooks/{SHORT_RUNS} where there is one).")
    ] = None,
    along: Annotated[Along | None, typer.Option("--what-if", help="The same over usual values of one axis.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate a training of partitions: traffic, time, theta and accuracy, beside BSP."""
    given = {
        "algorithm": algorithm, "theta": theta, "controller": controller, "skew": skew, "steps": steps,
        "step_s": step_s, "travel_every": travel_every, "seed": seed,
        "wan": {"partitions": k, "bytes_per_s": bytes_per_s, "latency_s": latency_s},
        "sizes": {"parameters": parameters},
    }  # fmt: skip
    setting = read(Decentralized, _over(load_mapping(file) if file else {}, given))
    model = _model(accuracy, setting)
    with progress_console.status("simulating"):
        found = simulate(setting, model)
        rows = what_if(setting, along.value, (), model) if along else ()
    if as_json:
        coverage = dict(model.coverage) if model else None
        print_json(simulated_data(found) | {"coverage": coverage, "what_if": [_row(row) for row in rows]})
        return
    lines = [*answer_decentralized(found), *what_if_lines(rows), *(f"Assumed: {told}" for told in found.assumptions)]
    for line in lines:
        console.print(line, highlight=False)


def _over(raw: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file says with the options that are given in its place."""
    made = dict(raw)
    for name, value in given.items():
        if isinstance(value, dict):
            under = made.get(name)
            if any(one is not None for one in value.values()) and isinstance(under, dict | None):
                made[name] = _over(under or {}, value)
        elif value is not None:
            made[name] = value
    return made


def _model(stated: Path | None, setting: Decentralized) -> AccuracyModel | None:
    """Return what short runs say of the algorithm; None where no table is stated and none is there."""
    path = stated
    if path is None:
        try:
            path = notebook_file(SHORT_RUNS)
        except InputError:
            return None
    runs = read_runs(path)
    if stated is None and all(run.algorithm != setting.algorithm for run in runs):
        return None
    return fit_accuracy(runs, setting.algorithm, setting.norm, setting.data)


def simulated_data(found: Simulated) -> dict[str, Any]:
    """Return the JSON object of a simulated training."""
    setting = found.setting
    return {
        "algorithm": setting.algorithm,
        "controller": setting.controller,
        "partitions": setting.partitions,
        "skew": setting.skew,
        "steps": found.steps,
        "finished": found.finished,
        "seconds": found.seconds,
        "traffic_bytes": found.traffic_bytes,
        "update_bytes": found.update_bytes,
        "travel_bytes": found.travel_bytes,
        "exchanges": found.exchanges,
        "theta": found.final_theta,
        "thetas": [since._asdict() for since in found.thetas],
        "travels": [asdict(travel) for travel in found.travels],
        **_estimate("accuracy", found.accuracy),
        **_estimate("accuracy_loss", found.accuracy_loss),
        "tolerated": setting.objective.tolerated,
        "bearable": found.bearable,
        "bsp_seconds": found.bsp_seconds,
        "bsp_traffic_bytes": found.bsp_traffic_bytes,
        "saving_over_bsp": found.saving,
        "parts_s": [dict(parts) for parts in found.parts_s],
        "slow_links": [asdict(link) for link in found.slow_links],
        "failed": list(found.failed),
        "reports": list(found.reports),
        "assumptions": list(found.assumptions),
    }


def _row(row: WhatIf) -> dict[str, Any]:
    named = {name: getattr(row, name) for name in ("axis", "value", "seconds", "traffic_bytes", "theta")}
    estimates = _estimate("accuracy", row.accuracy) | _estimate("accuracy_loss", row.accuracy_loss)
    return named | {"saving_over_bsp": row.saving} | estimates


def _estimate(name: str, found: Estimate | None) -> dict[str, Any]:
    return {name: found and found.value, f"{name}_interval": found and [found.low, found.high]}
