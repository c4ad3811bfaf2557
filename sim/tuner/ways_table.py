"""The table of a comparison: one row for what a way of searching found for a job."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.plans.files import plain
from sim.specs import Plan
from sim.specs.csv_rows import read_cells, write_rows
from sim.specs.fields import InputError, read
from sim.specs.files import mapping_of
from sim.tuner.ways import Found

HELP = "a table of `trainsim compare`"


@dataclass(frozen=True)
class ComparedRow:
    """`job`: the job file's name; `step_time_s` and `plan` (as JSON) are None and empty where nothing fits; `proof`:
    "certified", or why the search's optimum is not, empty where it claims none."""

    job: str
    device: str
    gpus: int
    global_batch: int
    way: str
    step_time_s: float | None
    evaluated: int
    seconds: float
    proof: str
    plan: str

    def parsed(self) -> Plan | None:
        """Return the plan, None where nothing fits; raises InputError where the text is no plan."""
        return read(Plan, mapping_of(self.plan, ".json", "plan"), "plan") if self.plan else None

    @classmethod
    def of(cls, job: str, device: str, gpus: int, global_batch: int, found: Found) -> "ComparedRow":
        """Return the row of what was found for a job."""
        plan = json.dumps(plain(found.plan), separators=(",", ":")) if found.plan else ""
        return cls(
            job, device, gpus, global_batch, found.way, found.step_time_s, found.evaluated,
            found.seconds, found.proof, plan,
        )  # fmt: skip


def over(rows: Sequence[ComparedRow], base: str, ways: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return by way and job how many times as long as what `base` found for the job that way's plan takes.

    Jobs that `base` was not asked for, or found nothing for, are left out, and so is what found nothing itself.
    """
    time = {(row.job, row.way): row.step_time_s for row in rows if row.step_time_s}
    jobs = [job for job, way in time if way == base]
    return {way: {job: time[job, way] / time[job, base] for job in jobs if (job, way) in time} for way in ways}


def write_compared(rows: Sequence[ComparedRow], path: Path) -> None:
    """Write the table as CSV, whole or not at all."""
    write_rows(rows, ComparedRow, path, _cell)


def _cell(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def read_compared(path: str | Path) -> list[ComparedRow]:
    """Return the rows of a table that `write_compared` wrote.

    Raises:
        InputError: no such file, another header, or a cell that is no number where one stands.
    """
    lines = list(read_cells(path, ComparedRow, HELP))
    try:
        return [_row(*cells) for _, cells in lines]
    except ValueError as error:
        raise InputError(str(path), str(error)[:80], "numbers of the table's columns") from None


def _row(
    job: str, device: str, gpus: str, batch: str, way: str, time: str, evaluated: str, seconds: str, proof: str,
    plan: str,
) -> ComparedRow:  # fmt: skip
    taken = float(time) if time else None
    return ComparedRow(job, device, int(gpus), int(batch), way, taken, int(evaluated), float(seconds), proof, plan)
