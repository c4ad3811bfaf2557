"""Workloads that Kueue has finished, as a CSV of one line each.

Read are the columns name; jobType or job_type; namespace; clusterQueue, queue or localQueue; priority;
creationTimestamp; admittedAt, admitted or admissionTime; finishedAt, finished or completionTime; gpus, or podSets with
the counts and GPUs of its pods ("worker=4x8,launcher=1x0"); flavor, resourceFlavor or device: the type of GPU. Of
several names the first that the table has counts; other columns are passed over.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from sim.cluster.importers.logged import ANY, Imported, Logged, imported
from sim.cluster.importers.table import Line, read_lines

COLUMNS = {
    "name": ("name",),
    "job_type": ("jobType", "job_type"),
    "namespace": ("namespace",),
    "queue": ("clusterQueue", "queue", "localQueue"),
    "priority": ("priority",),
    "created": ("creationTimestamp",),
    "admitted": ("admittedAt", "admitted", "admissionTime"),
    "finished": ("finishedAt", "finished", "completionTime"),
    "gpus": ("gpus",),
    "pod_sets": ("podSets",),
    "device": ("flavor", "resourceFlavor", "device"),
}
SUFFIX = re.compile(r"(-(?=[a-f]*[0-9])[0-9a-f]{5}|-[0-9]+)+$")
"""What controllers put behind the name of a workload: a hash of five digits, a number."""

POD_SET = re.compile(r"[^=,]+=(\d{1,5})x(\d{1,4})")
MOST_GPUS = 100_000
MOST_PRIORITY = 2**31


def read_kueue(
    path: str | Path, speeds: Mapping[str, float] | None = None, weights: Mapping[int, float] | None = None
) -> Imported:
    """Return the GPU jobs in a CSV of Kueue's workloads (`.gz` too).

    A job's type is stated, else its name without the numbers that controllers put behind it; its entity is the cluster
    queue, else the namespace. Its work is the time from admission to its end, on the type of GPU that its flavor names
    ("gpu" where none does). `speeds` as for Slurm; `weights` of priorities, by default 1 each. Counted and left out are
    workloads without GPUs, and those never admitted or not finished.

    Raises:
        InputError: with line and column of the first cell that cannot be read, the others in `also`.
    """
    file, known = Path(path), weights or {}
    lines = read_lines(file, COLUMNS, ("name", "created", "admitted", "finished"), ",")
    return imported(lines, lambda line: _record(line, known), speeds, str(file))


def _record(line: Line, weights: Mapping[int, float]) -> Logged | str:
    """Return the job of a line, or why it is left out."""
    cells = line.cells
    gpus = _gpus(line)
    if not gpus:
        return "without GPUs"
    if not cells["admitted"] or not cells["finished"]:
        return "never admitted" if not cells["admitted"] else "not finished"
    ran_s = line.time_s("finished") - line.time_s("admitted")
    if ran_s < 0:
        raise line.error("finished", f"a time after its admission at {cells['admitted']}")
    priority = line.whole("priority", -MOST_PRIORITY, MOST_PRIORITY) if cells["priority"] else 0
    return Logged(
        place=line.place,
        job_type=cells["job_type"] or SUFFIX.sub("", cells["name"]) or cells["name"],
        device=cells["device"] or ANY,
        gpus=gpus,
        arrival_s=line.time_s("created"),
        ran_s=ran_s,
        entity=cells["queue"] or cells["namespace"],
        weight=weights.get(priority, 1.0),
    )


def _gpus(line: Line) -> int:
    """Return how many GPUs all pods of a workload have."""
    if line.cells["gpus"] or not line.cells["pod_sets"]:
        return line.whole("gpus", 0, MOST_GPUS) if line.cells["gpus"] else 0
    sets = [POD_SET.fullmatch(part.strip()) for part in line.cells["pod_sets"].split(",")]
    if None in sets:
        raise line.error("pod_sets", "name=pods x GPUs of a pod, as worker=4x8,launcher=1x0")
    return sum(int(found[1]) * int(found[2]) for found in sets if found)
