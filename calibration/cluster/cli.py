"""`trainsim cluster measure`: options in, how three trainings shared two slots here, beside the simulation."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from calibration.cluster.compare import compared
from calibration.cluster.measure import LINK_BYTES_PER_S, LONGEST_S, POLICY, ROUND_S, Measured, measured
from calibration.cluster.results import Both, Case
from calibration.guards import busy_words
from calibration.measuring import results_console
from sim.specs.fields import InputError
from sim.specs.files import checked_target, print_json, write_json
from sim.units import digits3, many, seconds

LEAST_ROUND_S, LEAST_S, MOST_S = 1.0, 0.1, 3600.0
LEAST_LINK, MOST_LINK = 1e6, 1e12


def measure_command(
    policy: Annotated[str, typer.Option(help="Scheduling policy, as of trainsim cluster simulate.")] = POLICY,
    round_s: Annotated[float, typer.Option(help="Seconds of a round.")] = ROUND_S,
    longest_s: Annotated[
        float, typer.Option(help="Work of the longest job, in seconds alone on the fast slot.")
    ] = LONGEST_S,
    link: Annotated[
        float,
        typer.Option("--link-bytes-per-s", "--link", help="Bytes a second at which batches come to the slow slot."),
    ] = LINK_BYTES_PER_S,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run three trainings on two unequal slots here, as a policy divides them, and compare with the simulation."""
    for option, value, low, high in (
        ("--round-s", round_s, LEAST_ROUND_S, MOST_S),
        ("--longest-s", longest_s, LEAST_S, MOST_S),
        ("--link-bytes-per-s", link, LEAST_LINK, MOST_LINK),
    ):
        if not low <= value <= high:
            raise InputError(option, value, f"a number from {low:g} to {high:g}")
    checked_target("--out", out)
    progress = Console(stderr=True)
    with progress.status("starting") as status:
        found = measured(policy, round_s=round_s, longest_s=longest_s, link_bytes_per_s=link, told=status.update)
        case = compared(found)
    told = summary(found, case)
    if as_json:
        print_json(told)
    else:
        _print(found, case)
    if out is not None:  # last: a full disk loses no measurement
        write_json(out, told)


def _print(found: Measured, case: Case) -> None:
    results_console().print(table(found, case))
    moved = many(case.moves_measured, "move")
    moves = f"{moved} of {seconds(case.switch_s)} in the mean, {case.moves_simulated} simulated"
    said = f"{many(len(found.ran.rounds), 'round')}; {moves}{busy_words(found.load)}"
    Console(stderr=True).print(said, markup=False, highlight=False, soft_wrap=True)


def summary(found: Measured, case: Case) -> dict[str, Any]:
    """Return the JSON of a measurement; errors are simulated less measured, in percent of measured."""
    types, alone = found.throughputs.types, found.throughputs.alone
    return {
        "policy": found.policy,
        "round_s": found.round_s,
        "throughputs": {job: dict(zip(types, rates.tolist(), strict=True)) for (job, _), rates in alone.items()},
        "steps": {job.job_type: job.steps for job in found.jobs},
        "completion": {one.name: _both(one) for one in case.jobs},
        "makespan": _both(case.makespan),
        "device_time": {one.name: _both(one) for one in case.slots},
        "mean_error_percent": case.mean_error_percent,
        "moves_measured": case.moves_measured,
        "moves_simulated": case.moves_simulated,
        "moves": [asdict(move) for move in found.ran.moves],
        "move_s": found.move_s,
        "rounds": [asdict(one) for one in found.ran.rounds],
        "load": found.load,
    }


def _both(one: Both) -> dict[str, float]:
    return {"measured_s": one.measured_s, "simulated_s": one.simulated_s, "error_percent": one.error_percent}


def table(found: Measured, case: Case) -> Table:
    """Return a row for each job, for all of them and for each slot: seconds measured and simulated."""
    types = found.throughputs.types
    caption = f"{case.policy}: done after; slots: held for"
    made = Table("", *(f"steps/s {name}" for name in types), "steps", "moves", "measured", "simulated", "error",
                 box=box.SIMPLE, padding=(0, 1, 0, 0), caption=caption)  # fmt: skip
    for job, one in zip(found.jobs, case.jobs, strict=True):
        rates = [digits3(rate) for rate in found.throughputs.alone[job.kind]]
        moves = sum(move.job == job.job_type for move in found.ran.moves)
        made.add_row(one.name, *rates, str(job.steps), str(moves), *_times(one))
    for one in (case.makespan, *case.slots):
        made.add_row(one.name, *[""] * (len(types) + 2), *_times(one))
    return made


def _times(one: Both) -> tuple[str, str, str]:
    return seconds(one.measured_s), seconds(one.simulated_s), f"{one.error_percent:+.1f} %"
