"""Throughputs without profiling: the step-time prediction of any model on any device that has a profile.

Pairs of jobs that share a device have no prediction, and are left out: what plain time-slicing gives, half the speed to
either, is what a policy gives them without pairs.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from sim.cluster.jobs import Kind
from sim.cluster.moves import switch_s
from sim.cluster.throughput_files import MAX_VALUES
from sim.cluster.throughputs import Throughputs
from sim.engine.step import Step, simulate
from sim.specs.catalog import device, is_device_file
from sim.specs.cluster import Cluster
from sim.specs.fields import InputError, check, spec, whole
from sim.specs.files import MAX_BYTES, load_mapping, mapping_of, text_of
from sim.specs.model import Model
from sim.specs.model_file import read_model
from sim.specs.plan import Plan
from sim.tuner.tune import tune
from sim.units import many

SOURCE = "predicted step times; intervals are the central 80 %; pairs that share devices are not predicted"
UNABLE = ("plan.", "tune.knobs", "cluster.memory_bytes")
"""Paths of errors that say: not on this device. Any other is wrong with what was stated."""

WORKLOAD = {"devices", "jobs"}
"""What a workload file holds."""
MOST_JSON_BYTES = MAX_BYTES[".json"]

Count = Annotated[int, whole(1, 99_999)]


@spec
class JobType:
    """A type of job: a model, and its plan on every number of `gpus`, or the batch that the best plan there trains.

    A step is the same work on all devices: `global_batch` samples. Without a plan that is searched for
    (`sim.tuner.tune`); a plan that states `dp` has its own number of devices, so that `gpus` is left out.

    Raises:
        InputError: a value is out of range, or the above is contradicted.
    """

    name: str
    model: Model
    gpus: tuple[Count, ...] = ()
    plan: Plan | None = None
    global_batch: Annotated[int, whole(1, 10_000_000)] | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("name", self.name, "a name")
        if (self.plan is None) == (self.global_batch is None):
            raise InputError("global_batch", self.global_batch, "exactly one of plan (with its own) and global_batch")
        own = _devices_of(self.plan)
        if own and self.gpus not in ((), (own,)):
            raise InputError("gpus", list(self.gpus), f"left out: the plan is for {many(own, 'device')}")
        object.__setattr__(self, "gpus", (own,) if own else tuple(dict.fromkeys(self.gpus)) or (1,))


def _devices_of(plan: Plan | None) -> int:
    """Return on how many devices a plan runs, 0 where it leaves that open."""
    if plan is None or not (plan.dp or plan.stages):
        return 0
    return sum(s.tp * s.dp * plan.cp for s in plan.stages) or plan.tp * plan.pp * plan.cp * plan.dp


@dataclass(frozen=True)
class Cell:
    """A type of job on a type of device: steps/s with the 80 % interval, or 0 and why it cannot run there.

    `switch_s`: what it loses when it is resumed there.
    """

    kind: Kind
    device: str
    steps_per_s: float = 0.0
    interval: tuple[float, float] = (0.0, 0.0)
    plan: str = ""
    fits: Literal["yes", "close", "no"] = "no"
    switch_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Predicted:
    """Predicted throughputs, what an hour of a device costs in USD where the catalog knows, and each cell's story."""

    throughputs: Throughputs
    usd_per_hour: Mapping[str, float]
    cells: tuple[Cell, ...]

    @property
    def switch_s(self) -> dict[str, float]:
        """What a move costs jobs of a type: the most on any device."""
        found: dict[str, float] = {}
        for cell in self.cells:
            found[cell.kind[0]] = max(found.get(cell.kind[0], 0.0), cell.switch_s)
        return found

    @property
    def impossible(self) -> dict[tuple[Kind, str], str]:
        """Why a kind of job cannot run on a device, of all that cannot."""
        return {(cell.kind, cell.device): cell.reason for cell in self.cells if cell.reason}


def predicted_throughputs(job_types: Sequence[JobType], devices: Sequence[str]) -> Predicted:
    """Return the predicted steps/s of every type of job on every device of the catalog (or device file).

    Types of devices come fastest first, by the mean over jobs of their speed against the job's best.

    Raises:
        InputError: a device or its profile is not known, something is named twice, or a job cannot run anywhere.
    """
    places = {device(name).name: name for name in devices}
    for path, given, held in (("devices", devices, places), ("jobs", job_types, {job.name for job in job_types})):
        if not given or len(held) < len(given):
            raise InputError(path, [getattr(one, "name", one) for one in given], "one or more, each once")
    cells = [_cell(job, gpus, name, place) for job in job_types for gpus in job.gpus for name, place in places.items()]
    kinds = list(dict.fromkeys(cell.kind for cell in cells))
    table = np.array([cell.steps_per_s for cell in cells]).reshape(len(kinds), len(places))
    for kind, row in zip(kinds, table, strict=True):
        if not row.any():
            why = next(cell.reason for cell in cells if cell.kind == kind)
            raise InputError(
                f"jobs.{kind[0]}", many(kind[1], "device"), f"a job that runs on one of the devices; {why}"
            )
    speed = (table / table.max(axis=1, keepdims=True)).mean(axis=0)
    order = np.argsort(-speed, kind="stable")
    spread = np.array([cell.interval for cell in cells]).reshape(len(kinds), len(places), 2)
    names = list(places)
    made = Throughputs(
        types=tuple(names[m] for m in order),
        alone={kind: row[order] for kind, row in zip(kinds, table, strict=True)},
        interval={kind: low_high[order].T for kind, low_high in zip(kinds, spread, strict=True)},
        source=SOURCE,
    )
    prices = {name: device(place).usd_per_gpu_hour for name, place in places.items()}
    return Predicted(made, {name: price.value for name, price in prices.items() if price}, tuple(cells))


def _cell(job: JobType, gpus: int, name: str, place: str) -> Cell:
    kind = (job.name, gpus)
    try:
        step = _step(job, gpus, place)
    except InputError as error:
        if not error.path.startswith(UNABLE):
            raise error.under(f"jobs.{job.name}") from None
        return Cell(kind, name, reason=str(error))
    if step.fits == "no":
        need, held = step.device_memory_bytes, step.cluster.memory_bytes
        return Cell(kind, name, plan=_words(step), reason=f"needs {need / 1e9:.1f} GB of {held / 1e9:.1f} GB")
    low, high = step.step_time_interval_s
    return Cell(kind, name, 1 / step.step_time_s, (1 / high, 1 / low), _words(step), step.fits, switch_s(step))


def _step(job: JobType, gpus: int, place: str) -> Step:
    usual = device(place).gpus_per_node
    node = gpus if gpus <= usual else gcd(gpus, usual)
    cluster = Cluster(device=place, nodes=gpus // node, gpus_per_node=node)
    if job.plan:
        return simulate(job.model, cluster, job.plan)
    assert job.global_batch is not None
    found = tune(job.model, cluster, global_batch=job.global_batch, top=1)
    if found.interrupted:  # Ctrl-C ends what asks for throughputs, not one search of many
        raise KeyboardInterrupt
    return found.best.step


def _words(step: Step) -> str:
    plan = step.plan
    if plan.stages:
        return f"pp {plan.pp}, stages of their own"
    return f"tp {plan.tp}, pp {plan.pp}, dp {step.placed.dp}, micro_batch {plan.micro_batch}, zero {plan.zero}"


@spec
class _Stated:
    """A type of job in a file, but for its model."""

    gpus: int | list[Count] = field(default_factory=list)
    plan: Plan | None = None
    global_batch: int | None = None


def is_workload(path: str | Path) -> bool:
    """Return whether a YAML or JSON file names jobs and devices whose throughputs are to be predicted."""
    file = Path(path)
    if file.suffix == ".json":
        try:
            text = text_of(file, MOST_JSON_BYTES)
        except InputError:
            return False  # measured throughputs may be larger, and their reader tells what is wrong
        return mapping_of(text, ".json", str(file), values=MAX_VALUES).keys() >= WORKLOAD
    return file.suffix in (".yaml", ".yml") and load_mapping(file).keys() >= WORKLOAD


def read_workload(path: str | Path) -> tuple[tuple[JobType, ...], tuple[str, ...]]:
    """Return the types of job and the devices of a workload file (YAML or JSON).

    `devices` lists names of the catalog or device files; `jobs` maps a name to `model` (as in a job file), `gpus` (a
    number or a list of them) and either `plan` or `global_batch`. Paths are relative to the file.

    Raises:
        InputError: with the path of the first field that is wrong, the others in `also`.
    """
    file = Path(path)
    raw = load_mapping(file)
    problems = [
        InputError(key, value, "no such key; known keys: devices, jobs")
        for key, value in raw.items()
        if key not in WORKLOAD
    ]
    devices, jobs = raw.get("devices"), raw.get("jobs")
    if not isinstance(devices, list) or not all(isinstance(name, str) for name in devices):
        problems.append(InputError("devices", devices, "a list of device names"))
    if not isinstance(jobs, dict):
        problems.append(InputError("jobs", jobs, "a mapping of names to model, gpus and plan"))
    made = (
        [_job_type(name, held, file.parent, problems) for name, held in jobs.items()] if isinstance(jobs, dict) else []
    )
    if problems:
        raise InputError(problems[0].path, problems[0].value, problems[0].allowed, problems[1:])
    places = [os.path.realpath(file.parent / one) if is_device_file(one) else one for one in devices or ()]
    return tuple(job for job in made if job), tuple(places)


def _job_type(name: str, raw: Any, folder: Path, problems: list[InputError]) -> JobType | None:
    """Return a type of job; what is wrong with it is added to `problems`."""
    here = f"jobs.{name}"
    if not isinstance(raw, dict):
        problems.append(InputError(here, raw, "a mapping with model, gpus and plan or global_batch"))
        return None
    model, found = read_model(raw.get("model"), folder)
    problems += [error.under(here) for error in found]
    stated, found = check(_Stated, {key: value for key, value in raw.items() if key != "model"}, here)
    problems += found
    if model is None or stated is None:
        return None
    gpus = tuple(stated.gpus) if isinstance(stated.gpus, list) else (stated.gpus,)
    try:
        return JobType(name=name, model=model, gpus=gpus, plan=stated.plan, global_batch=stated.global_batch)
    except InputError as error:
        problems.append(error.under(here))
        return None
