"""`trainsim checkpointing measure`: options in, the measured cost of saving beside its prediction out."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from calibration.checkpointing.checkpointer import CheckpointError
from calibration.checkpointing.measure import BUDGET, Scale, cores_here, measured, offered
from calibration.checkpointing.results import Api, Case, Setting
from calibration.guards import busy_words
from calibration.measuring import ending, one_of, results_console
from calibration.storage import Storage, measure_storage
from sim.report.numbers import tenths
from sim.specs.fields import InputError
from sim.specs.files import checked_target, print_json, write_json
from sim.units import digits3, seconds

APIS: Mapping[str, Api] = {"save": "torch.save", "dcp": "async_save"}
MOST_STEPS, MOST_MEGABYTES = 100_000, 100_000


def measure_command(
    folder: Annotated[
        list[Path] | None,
        typer.Option(help="Folder to save to, once or more. By default a disk, tmpfs, and a disk slowed down."),
    ] = None,
    backend: Annotated[str, typer.Option(help="save (torch.save) or dcp (its async_save).")] = "save",
    steps: Annotated[int, typer.Option(help="Steps of a round, at least; five rounds for each k.")] = 1,
    megabytes: Annotated[
        int, typer.Option("--megabytes", "--size", help="Size of the training state, 1 to 100000 MB.")
    ] = 50,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a small network here, save it every k steps, and compare overhead, k and recovery with the prediction.

    Some four minutes for each storage.
    """
    api = APIS[one_of("--backend", backend, tuple(APIS))]
    if not 1 <= steps <= MOST_STEPS:
        raise InputError("--steps", steps, f"a whole number from 1 to {MOST_STEPS}")
    if not 1 <= megabytes <= MOST_MEGABYTES:
        raise InputError("--megabytes", megabytes, f"a whole number from 1 to {MOST_MEGABYTES}")
    checked_target("--out", out)
    progress = Console(stderr=True)
    plain = Setting(backend="folder", api=api, cores=cores_here(), megabytes=megabytes)
    stated = [replace(plain, folder=str(one)) for one in folder or ()]
    settings = stated or [replace(plain, backend=one) for one in offered()]
    cases: list[Case] = []
    for setting in settings:
        with progress.status(setting.name) as status, ending(progress, CheckpointError):
            cases.append(measured(setting, Scale(steps=steps), told=status.update))
    reached = {str(one): measure_storage(one) for one in folder or ()}
    told = {
        "overhead_budget_percent": 100 * BUDGET,
        "measurements": [summary(case) for case in cases],
        "storage": {name: asdict(found) for name, found in reached.items()},
    }
    if as_json:
        print_json(told)
    else:
        _print(cases, reached)
    if out is not None:  # last: a full disk loses no measurement
        write_json(out, told)


def _print(cases: list[Case], reached: Mapping[str, Storage]) -> None:
    results_console().print(table(cases))
    load = max(point.load for case in cases for point in case.points)
    said = f"* least k within {tenths(BUDGET)}: predicted with contention, by the rule without, measured"
    for name, found in reached.items():
        results_console().print(f"{name} as storage of a job: {storage_words(found)}", markup=False, soft_wrap=True)
    Console(stderr=True).print(said + busy_words(load), markup=False, highlight=False, soft_wrap=True)


def storage_words(found: Storage) -> str:
    """Return the section of a job that says what a folder reached.

    For example "{read_bytes_per_s: 1.2e+09, write_bytes_per_s: 8e+08} (reads from the page cache)".
    """
    cached = " (reads from the page cache)" if found.cached else ""
    return (
        f"{{read_bytes_per_s: {found.read_bytes_per_s:.2g}, write_bytes_per_s: {found.write_bytes_per_s:.2g}}}{cached}"
    )


def summary(case: Case) -> dict[str, Any]:
    """Return the JSON of one measurement; k and what stands beside it are of the predicted k."""
    found, said = case.goodput
    return {
        **asdict(case.setting),
        "times": asdict(case.times),
        "k": {
            "predicted": case.k("checkfreq", BUDGET),
            "rule": case.k("checkfreq-rule", BUDGET),
            "measured": case.best(BUDGET),
        },
        "overhead_percent": {
            "measured": case.at_predicted.measured_percent,
            "predicted": case.at_predicted.predicted_percent,
        },
        "recovery_s": {"measured": case.recovery.measured_s, "predicted": case.recovery.predicted_s},
        "goodput": {"measured": found, "predicted": said},
        "load": max(point.load for point in case.points),
        "points": [asdict(one) | {"measured_percent": one.measured_percent} for one in case.points],
    }


def table(cases: list[Case]) -> Table:
    """Return a row for each k of each storage: what was measured, and in brackets what was predicted."""
    headings = ("storage", "step", "snapshot", "persist", "contention", "k", "overhead", "best k*", "recovery")
    made = Table(*headings, box=box.SIMPLE, padding=(0, 1, 0, 0), caption="measured (predicted)")
    for case in cases:
        times = case.times
        head = [case.setting.name, *map(seconds, (times.iteration_s, times.host_snapshot_s, times.persist_s))]
        head.append(f"{times.contention:.2f}")
        picked, rule = case.k("checkfreq", BUDGET), case.k("checkfreq-rule", BUDGET)
        for point in case.points:
            overhead = f"{digits3(point.measured_percent)} % ({digits3(point.predicted_percent)} %)"
            tail = ["", ""]
            if point.steps_between == picked:
                held = case.recovery
                best = f"{picked}, {rule}, {case.best(BUDGET) or '-'}"
                tail = [best, f"{seconds(held.measured_s)} ({seconds(held.predicted_s)})"]
            made.add_row(*head, str(point.steps_between), overhead, *tail)
            head = [""] * len(head)
    return made
