"""Tables of jobs and what a step of each took: measured runs of one's own, whose job files leave nothing to assume."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sim.specs.csv_rows import read_records
from sim.specs.fields import InputError, read
from sim.specs.job import Job
from sim.validation.table import Measured, read_runs
from sim.validation.translate import Case
from sim.validation.validate import Reason, expressed

COLUMNS = ("job", "step_time_s")
SOURCE = "own runs"


def is_table_of_jobs(path: Path) -> bool:
    """Return whether a CSV file that can be read has the columns `job` and `step_time_s`."""
    try:
        next(read_records(path, COLUMNS), None)
    except InputError:
        return False
    return True


def read_jobs(table: Path, profile: str | None = None) -> list[Case]:
    """Return a table's runs: `job`, the path of a job or plan file from the table's folder, and `step_time_s`.

    A job may stand in several lines. `profile` replaces those that the jobs name; further columns are left out.

    Raises:
        InputError: of the line: a job that cannot be read or has no plan, one on several kinds of devices, or a time
            that is none.
    """
    cases = []
    for place, cells in read_records(table, COLUMNS):
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
        try:
            seconds = float(cells["step_time_s"])
        except ValueError:
            raise InputError(f"{place}.step_time_s", cells["step_time_s"], "a number of seconds") from None
        stated = {
            "id": f"{table.name}:{place.rpartition(':')[2]}",
            "source": SOURCE,
            "device": cluster.hardware.name,
            "model": job.model.name,
            "precision": job.plan.precision,
            "step_time_s": seconds,
            "use_for": "time",
            "group": cells["job"],
        }
        cases.append(Case(read(Measured, stated, place), job.model, cluster, placed, ()))
    return cases


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
