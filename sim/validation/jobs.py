"""Tables of jobs and what a step of each took: measured runs of one's own, whose job files leave nothing to assume."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sim.specs.csv_rows import MAX_BYTES, csv_lines, read_records
from sim.specs.fields import InputError, read
from sim.specs.files import text_of
from sim.specs.job import Job
from sim.validation.table import Measured, read_runs
from sim.validation.translate import Case
from sim.validation.validate import Reason, expressed

COLUMNS, MEMORY = ("job", "step_time_s"), "peak_memory_bytes"
SOURCE = "own runs"
MOST_OF_ID = 200
"""Of a long path the end tells runs apart."""


def is_table_of_jobs(path: Path) -> bool:
    """Return whether a CSV file that can be read has the columns `job` and `step_time_s`."""
    try:
        *_, header = next(csv_lines(text_of(path, MAX_BYTES), str(path)), ("", []))
    except InputError:
        return False
    return {*COLUMNS} <= {*header}


def read_jobs(table: Path, profile: str | None = None) -> list[Case]:
    """Return a table's runs: `job`, the path of a job or plan file from the table's folder, and `step_time_s`.

    A job may stand in several lines. `peak_memory_bytes`, where there is such a column and its cell is not blank, is
    what PyTorch had allocated at most on the fullest rank. `profile` replaces those that the jobs name; further columns
    are left out.

    Raises:
        InputError: of the line: a job that cannot be read or has no plan, one on several kinds of devices, or a time
            or peak that is none.
    """
    cases = []
    *_, header = next(csv_lines(text_of(table, MAX_BYTES), str(table)), ("", []))
    for place, cells in read_records(table, (*COLUMNS, *({MEMORY} & {*header}))):
        path = table.parent / cells["job"]
        try:
            job = Job.load(path)
            if job.plan is None:
                raise InputError("plan", None, "required: the plan that ran")
            if job.cluster.groups:
                raise InputError("cluster.groups", len(job.cluster.groups), "left out: devices of one kind")
            cluster = replace(job.cluster, profile=profile) if profile else job.cluster
            placed = job.plan.on(job.model, cluster)
        except InputError as error:
            where = "" if error.path == str(path) else f": {error.path}"
            raise InputError(f"{place}: {path}{where}", error.value, error.allowed) from None
        numbers = {name: _number(place, name, cells[name]) for name in cells if name != "job" and cells[name]}
        stated = {
            "id": place[-MOST_OF_ID:],
            "source": SOURCE,
            "device": cluster.hardware.name,
            "model": job.model.name,
            "precision": job.plan.precision,
            **({"use_for": "time+memory", "memory_kind": "allocated"} if MEMORY in numbers else {"use_for": "time"}),
            "group": cells["job"],
        }
        cases.append(Case(read(Measured, stated | numbers, place), job.model, cluster, placed, ()))
    return cases


def _number(place: str, column: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise InputError(f"{place}.{column}", cell, "a number") from None


def read_cases(tables: Sequence[Path], profile: str | None = None) -> tuple[list[Case], list[Reason]]:
    """Return the runs of tables of either kind, and why others are none.

    Raises:
        InputError: a table cannot be read, or a run stands in two of them.
    """
    cases = [case for table in tables if is_table_of_jobs(table) for case in read_jobs(table, profile)]
    rows = [row for table in tables if not is_table_of_jobs(table) for row in read_runs(table)]
    distinct("--from", rows)
    found, skipped = expressed(rows, profile)
    return cases + found, skipped


def distinct(place: str, rows: Sequence[Measured], allowed: str = "every run once over all tables") -> None:
    """Raise InputError of `place` where a run stands in two tables."""
    seen = set[str]()
    for row in rows:
        if row.id in seen:
            raise InputError(place, row.id, allowed)
        seen.add(row.id)
