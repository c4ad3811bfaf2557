"""Jobs that Slurm has logged: `sacct --parsable2 --allusers --format=JobID,JobName,Partition,Account,User,State,...`.

Read are JobID, JobName, Partition, Account, User, State, Submit (or Eligible), ElapsedRaw (seconds) or Elapsed, and of
AllocTRES (or ReqTRES) the GPUs: `gres/gpu:v100=4` names their type, `gres/gpu=4` leaves it open. Other columns are
passed over, as are steps of a job ("123.batch").
"""

import re
from collections.abc import Mapping
from pathlib import Path

from sim.cluster.importers.logged import ANY, Imported, Logged, imported
from sim.cluster.importers.table import Line, read_lines

COLUMNS = {
    "id": ("JobID", "JobIDRaw"),
    "name": ("JobName",),
    "partition": ("Partition",),
    "account": ("Account",),
    "user": ("User",),
    "state": ("State",),
    "submit": ("Submit", "Eligible"),
    "elapsed_raw": ("ElapsedRaw",),
    "elapsed": ("Elapsed",),
    "allocated": ("AllocTRES",),
    "requested": ("ReqTRES",),
}
ELAPSED = re.compile(r"(?:(\d{1,5})-)?(\d{1,2}):([0-5]?\d):([0-5]?\d)(?:\.\d+)?")
GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d{1,6})")
MOST_SECONDS = 10**10
UNFINISHED = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "CONFIGURING", "COMPLETING")


def read_sacct(path: str | Path, speeds: Mapping[str, float] | None = None) -> Imported:
    """Return the GPU jobs in the output of `sacct --parsable2`, with its header (`.gz` too).

    A job's type is its name, else its partition; its entity the account, else the user. Its work is the time that it
    ran, on the type of GPU it had ("gpu" where none is named). `speeds` says how fast types are against each other
    (such as from `sim.cluster.predicted`), by default alike. Counted and left out are steps of jobs, and jobs that
    have no GPU, never ran, or have not ended.

    Raises:
        InputError: with line and column of the first cell that cannot be read, the others in `also`.
    """
    file = Path(path)
    return imported(read_lines(file, COLUMNS, ("id", "submit"), "|"), _record, speeds, str(file))


def _record(line: Line) -> Logged | str:
    """Return the job of a line, or why it is left out."""
    cells = line.cells
    if "." in cells["id"]:
        return "steps of jobs"
    if cells["state"].startswith(UNFINISHED):
        return "not ended"
    device, gpus = _gpus(cells["allocated"] or cells["requested"])
    if not gpus:
        return "without GPUs"
    ran_s = _elapsed_s(line)
    if not ran_s:
        return "never ran"
    return Logged(
        place=line.place,
        job_type=cells["name"] or cells["partition"] or "job",
        device=device,
        gpus=gpus,
        arrival_s=line.time_s("submit"),
        ran_s=ran_s,
        entity=cells["account"] or cells["user"],
    )


def _gpus(resources: str) -> tuple[str, int]:
    """Return type and number of GPUs in a list of resources; of several types the one of most."""
    found = [(name or ANY, int(count)) for name, count in GPUS.findall(resources)]
    named = [pair for pair in found if pair[0] != ANY]
    return max(named or found or [(ANY, 0)], key=lambda pair: pair[1])


def _elapsed_s(line: Line) -> int:
    if line.cells["elapsed_raw"]:
        return line.whole("elapsed_raw", 0, MOST_SECONDS)
    found = ELAPSED.fullmatch(line.cells["elapsed"])
    if not found:
        raise line.error("elapsed", "a column ElapsedRaw in seconds, or Elapsed as [days-]hours:minutes:seconds")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds
