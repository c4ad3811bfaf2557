"""`trainsim cluster measure`: options in, how three trainings shared two slots of this machine out."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from calibration.cluster.measure import LINK_BYTES_PER_S, ROUND_S, Measured, measured
from calibration.guards import MOST_OTHERS
from calibration.measuring import results_console
from sim.specs.fields import InputError
from sim.specs.files import write_atomically
from sim.units import digits3, seconds

LEAST_S, MOST_S = 0.1, 3600.0
LEAST_LINK, MOST_LINK = 1e6, 1e12


def measure_command(
    round_s: Annotated[float, typer.Option(help="Seconds of a round.")] = ROUND_S,
    longest_s: Annotated[float, typer.Option(help="Work of the longest job, in seconds alone on the fast slot.")] = 12,
    link: Annotated[float, typer.Option(help="Bytes/s at which batches come to the slow slot.")] = LINK_BYTES_PER_S,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run three trainings on two unequal slots here, in rounds, with a checkpoint at every move."""
    for option, value, low, high in (
        ("--round-s", round_s, LEAST_S, MOST_S),
        ("--longest-s", longest_s, LEAST_S, MOST_S),
        ("--link", link, LEAST_LINK, MOST_LINK),
    ):
        if not low <= value <= high:
            raise InputError(option, value, f"a number from {low:g} to {high:g}")
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise InputError("--out", str(out), "a file in an existing folder")
    progress = Console(stderr=True)
    with progress.status("starting") as status:
        found = measured(round_s=round_s, longest_s=longest_s, link_bytes_per_s=link, told=status.update)
    told = summary(found)
    if out is not None:
        write_atomically(out, json.dumps(told, indent=1) + "\n")
    if as_json:
        typer.echo(json.dumps(told))
        return
    results_console().print(table(found))
    busy = f"; the machine was busy: others used {found.load:.0%} of it" if found.load > MOST_OTHERS else ""
    said = f"{len(found.ran.rounds)} rounds, {len(found.ran.moves)} moves of {seconds(found.move_s)} in the mean{busy}"
    progress.print(said, markup=False, highlight=False, soft_wrap=True)


def summary(found: Measured) -> dict[str, Any]:
    """Return the JSON of a measurement."""
    types, alone = found.throughputs.types, found.throughputs.alone
    return {
        "round_s": found.round_s,
        "throughputs": {job: dict(zip(types, rates.tolist(), strict=True)) for (job, _), rates in alone.items()},
        "steps": {job.job_type: job.steps for job in found.jobs},
        "completion_s": dict(found.ran.completion_s),
        "moves": [asdict(move) for move in found.ran.moves],
        "move_s": found.move_s,
        "rounds": [asdict(one) for one in found.ran.rounds],
        "load": found.load,
    }


def table(found: Measured) -> Table:
    """Return a row for each job: its speeds, its work, its moves and when it ended."""
    types = found.throughputs.types
    made = Table("job", *(f"steps/s {name}" for name in types), "steps", "moves", "done after",
                 box=box.SIMPLE, padding=(0, 1, 0, 0))  # fmt: skip
    for job in found.jobs:
        rates = [digits3(rate) for rate in found.throughputs.alone[job.kind]]
        moves = sum(move.job == job.job_type for move in found.ran.moves)
        made.add_row(job.job_type, *rates, str(job.steps), str(moves), seconds(found.ran.completion_s[job.job_type]))
    return made
