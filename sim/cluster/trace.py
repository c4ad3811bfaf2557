"""Traces of jobs: a line a job, ten columns between tabs (arXiv 2008.09213, the published system's traces).

The columns are job type, command, working directory, name of the argument that takes the steps, whether data is needed,
steps, scale factor, weight, SLO and arrival in seconds; later traces leave the working directory out. What a trace says
of how to run a job is never used.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sim.cluster.jobs import ClusterJob
from sim.specs.fields import MAX_PROBLEMS, InputError, check, short
from sim.specs.files import UNPRINTABLE, text_of, write_atomically
from sim.units import many

MAX_BYTES = 64 * 2**20
"""Some 400,000 jobs."""

COLUMNS = (
    "job type",
    "command",
    "working directory",
    "steps argument",
    "needs data",
    "total steps",
    "scale factor",
    "weight",
    "SLO",
    "arrival",
)
WIDTHS = (10, 9)
FIELDS = {"job_type": 0, "steps": 5, "scale_factor": 6, "weight": 7, "slo": 8, "arrival_s": 9}
"""Field of a `ClusterJob` -> its column."""

WHOLE = re.compile(r"[0-9]{1,16}")
REAL = re.compile(r"[-+]?([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][-+]?[0-9]{1,3})?")
NO_SLO = "-1.000000"


def read_trace(path: str | Path) -> tuple[ClusterJob, ...]:
    """Return the jobs of a trace (`.gz` too), in order of arrival as the file has them; an SLO up to 0 is none.

    Raises:
        InputError: with line and column of the first problem, the others in `also`: another number of columns, a value
            out of range, or a job that arrives before the one above it.
    """
    file = Path(path)
    lines = text_of(file, MAX_BYTES).split("\n")
    rows = [(n, line.removesuffix("\r").split("\t")) for n, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InputError(str(file), "nothing", "a line a job")
    width, reader = len(rows[0][1]), _Reader(file)
    if width not in WIDTHS:
        raise InputError(f"{file}, line {rows[0][0]}", many(width, "column"), f"10 columns between tabs: {_columns()}")
    jobs = [reader.job(n, cells, width) for n, cells in rows if len(reader.problems) < MAX_PROBLEMS]
    if reader.problems:
        first, *others = reader.problems[:MAX_PROBLEMS]
        raise InputError(first.path, first.value, first.allowed, others)
    return tuple(job for job in jobs if job)


def _columns() -> str:
    return ", ".join(COLUMNS)


class _Reader:
    """Reads lines one after the other and keeps what is wrong with them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.problems: list[InputError] = []
        self.last = (0.0, 0)
        """When the job before arrived, and its line."""

    def job(self, line: int, cells: list[str], width: int) -> ClusterJob | None:
        """Return the job of a line, or None where something is wrong with it."""
        if len(cells) != width:
            told = f"{many(width, 'column')}, as the first line has"
            self.problems.append(InputError(f"{self.file}, line {line}", many(len(cells), "column"), told))
            return None
        full = cells if width == WIDTHS[0] else [*cells[:2], "", *cells[2:]]
        values, found = _values(full)
        job = None if found else _made(values)
        if not job:
            found |= {e.path: e for e in check(ClusterJob, values)[1] if e.path not in found}
        elif job.arrival_s < self.last[0]:
            told = f"{self.last[0]:g} or later, as line {self.last[1]}: in order of arrival"
            found["arrival_s"] = InputError("arrival_s", job.arrival_s, told)
        else:
            self.last = job.arrival_s, line
        self.problems += [self._placed(line, error, width) for error in found.values()]
        return None if found else job

    def _placed(self, line: int, error: InputError, width: int) -> InputError:
        column = FIELDS[error.path]
        number = column + 1 if width == WIDTHS[0] or column < 2 else column
        path = f"{self.file}, line {line}, column {number} ({COLUMNS[column]})"
        return InputError(path, error.value, error.allowed)


def _values(cells: list[str]) -> tuple[dict[str, Any], dict[str, InputError]]:
    """Return fields of a job, and which of them are no values of their kind."""
    found: dict[str, InputError] = {}
    values: dict[str, Any] = {"job_type": cells[0]}
    if not cells[0] or UNPRINTABLE.search(cells[0]):
        found["job_type"] = InputError("job_type", short(cells[0], 80), "a name without control characters")
    for name in ("steps", "scale_factor", "weight", "slo", "arrival_s"):
        text, is_whole = cells[FIELDS[name]].strip(), name in ("steps", "scale_factor")
        if not (WHOLE if is_whole else REAL).fullmatch(text):
            found[name] = InputError(name, text, "a whole number" if is_whole else "a number")
        else:
            values[name] = int(text) if is_whole else float(text)
    if values.get("slo", 0.0) <= 0:
        values.pop("slo", None)
    return values, found


def _made(values: dict[str, Any]) -> ClusterJob | None:
    try:
        return ClusterJob(**values)
    except InputError:
        return None


def write_trace(jobs: Iterable[ClusterJob], path: str | Path) -> None:
    """Write a trace of ten columns, whole or not at all; command, directory and argument of steps are empty.

    Raises:
        InputError: a job has an entity, which no column holds, or a name that no cell can hold; jobs are not in order
            of arrival; or the file cannot be written.
    """
    held = list(jobs)
    problems = list(islice(_unwritable(held), MAX_PROBLEMS))
    if problems:
        raise InputError(problems[0].path, problems[0].value, problems[0].allowed, problems[1:])
    lines = (
        f"{job.job_type}\t\t\t\t0\t{job.steps}\t{job.scale_factor}\t{_number(job.weight)}\t"
        f"{NO_SLO if job.slo is None else _number(job.slo)}\t{_number(job.arrival_s)}\n"
        for job in held
    )
    write_atomically(Path(path), "".join(lines))


def _unwritable(jobs: list[ClusterJob]) -> Iterator[InputError]:
    last = 0.0
    for n, job in enumerate(jobs):
        if job.entity:
            yield InputError(f"jobs.{n}.entity", job.entity, "none: no column of a trace holds it")
        if UNPRINTABLE.search(job.job_type) or set("\t\n") & set(job.job_type):
            yield InputError(f"jobs.{n}.job_type", job.job_type, "a name without control characters")
        if job.arrival_s < last:
            yield InputError(f"jobs.{n}.arrival_s", job.arrival_s, f"{last:g} or later: in order of arrival")
        last = job.arrival_s


def _number(value: float) -> str:
    """Return the shortest text that reads back as the same number."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
