"""What a log of finished jobs says of a cluster: how long each ran, on how many devices of which type.

The work of such a job is known as time on the type it ran on. It becomes steps at 1 step/s on a type of speed 1: on a
type of another speed a job makes so many steps a second, and what ran s seconds there was s times that many steps.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sim.cluster.importers.table import Line
from sim.cluster.jobs import ClusterJob
from sim.cluster.throughputs import Throughputs
from sim.specs.fields import MAX_PROBLEMS, InputError

ANY = "gpu"
"""The type of devices whose type a log does not name."""


@dataclass(frozen=True)
class Logged:
    """A job that ran; `place` in the log, times in seconds, the arrival since 1970."""

    place: str
    job_type: str
    device: str
    gpus: int
    arrival_s: float
    ran_s: float
    entity: str = ""
    weight: float = 1.0


@dataclass(frozen=True)
class Imported:
    """Jobs in order of arrival (the first at 0), their throughputs, and how many lines were left out, by reason."""

    jobs: tuple[ClusterJob, ...]
    throughputs: Throughputs
    skipped: Mapping[str, int]


def imported(
    lines: Iterable[Line], read: Callable[[Line], Logged | str], speeds: Mapping[str, float] | None, file: str
) -> Imported:
    """Return the jobs of a log; `read` makes a job of a line, or says why it is left out.

    speeds: of types of devices against each other, 1 each where they are left out.

    Raises:
        InputError: no job ran, a speed is missing or no number above 0, or a line cannot be read; with all that is
            wrong with lines.
    """
    skipped, problems = Counter[str](), list[InputError]()
    held = sorted(_records(lines, read, skipped, problems), key=lambda one: one.arrival_s)
    known = _speeds(speeds, held)
    jobs = [job for one in held if (job := _job(one, known, held[0].arrival_s, problems))]
    if problems:
        raise InputError(problems[0].path, problems[0].value, problems[0].allowed, problems[1:MAX_PROBLEMS])
    if not jobs:
        told = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        raise InputError(file, f"no job that ran on GPUs ({told or 'no lines'})", "one or more")
    types = tuple(sorted(known, key=lambda name: -known[name]))
    rates = np.array([known[name] for name in types], dtype=np.float64)
    source = f"{file}: steps are seconds on a type of speed 1"
    made = Throughputs(types=types, alone={job.kind: rates for job in jobs}, source=source)
    return Imported(tuple(jobs), made, dict(skipped))


def _records(
    lines: Iterable[Line], read: Callable[[Line], Logged | str], skipped: Counter[str], problems: list[InputError]
) -> Iterator[Logged]:
    for line in lines:
        try:
            found = read(line)
        except InputError as error:
            problems.append(error)
            if len(problems) == MAX_PROBLEMS:
                return
            continue
        if isinstance(found, str):
            skipped[found] += 1
        else:
            yield found


def _speeds(speeds: Mapping[str, float] | None, held: list[Logged]) -> Mapping[str, float]:
    ran_on = dict.fromkeys(one.device for one in held)
    if not speeds:
        return dict.fromkeys(ran_on, 1.0)
    for name, speed in speeds.items():
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 < speed < 1e18:
            raise InputError(f"speeds.{name}", speed, "a number above 0, below 1e18")
    for name in ran_on:
        if name not in speeds:
            raise InputError(f"speeds.{name}", None, f"required: jobs ran on {', '.join(ran_on)}")
    return speeds


def _job(one: Logged, speeds: Mapping[str, float], first_s: float, problems: list[InputError]) -> ClusterJob | None:
    try:
        return ClusterJob(
            job_type=one.job_type,
            steps=max(1, round(one.ran_s * speeds[one.device])),
            scale_factor=one.gpus,
            arrival_s=one.arrival_s - first_s,
            weight=one.weight,
            entity=one.entity,
        )
    except InputError as error:
        problems.append(error.under(one.place))
        return None
