"""The job file: model, cluster, plan, what to search and how long to train, in one place."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sim.catalog import names
from sim.specs.arguments import checked
from sim.specs.catalog import is_device_file
from sim.specs.checkpointing import Checkpointing
from sim.specs.cluster import Cluster
from sim.specs.fields import MAX_PROBLEMS, InputError, check, real, spec, whole
from sim.specs.files import is_folder, load_mapping
from sim.specs.knobs import KNOBS, knob_values
from sim.specs.loading import Loading
from sim.specs.model import Model
from sim.specs.model_file import MODEL_HELP, read_model
from sim.specs.plan import Plan
from sim.specs.prices import Prices
from sim.specs.sharing import Sharing
from sim.specs.training import Training

Objective = Literal["step_time", "cost", "tokens_per_usd", "memory_headroom", "gpus_for_deadline"]
Target = Literal["torch", "torchtitan", "torchtitan-0.3", "megatron", "deepspeed", "any"]

MAX_COMBINATIONS = 1_000_000
"""Bounds of what a search holds in memory at once."""


@spec
class Tune:
    """What the tuner may change and what it should improve.

    `knobs`: a value, a list of values or `Bounds` by name. `target`: what must be able to run the plan
    (`sim.plans.targets`). `deadline_days`: the end of training, for the objective gpus_for_deadline alone.

    Raises:
        InputError: a knob is unknown or a value of it out of range, the lists hold too many combinations, or the
            deadline is missing or without use.
    """

    global_batch: Annotated[int, whole(1, 10_000_000)]
    knobs: Annotated[dict[str, Any], Field(description="a mapping of knob to its values")] = Field(default_factory=dict)
    objective: Objective = "step_time"
    target: Target = "torch"
    deadline_days: Annotated[float, real(1e-3, 1e5, "days")] | None = None

    def __post_init__(self) -> None:
        made, problems = knob_values(self.knobs, self.global_batch)
        if (self.objective == "gpus_for_deadline") != (self.deadline_days is not None):
            allowed = "left out: only objective gpus_for_deadline has one" if self.deadline_days else "required"
            problems.append(InputError("deadline_days", self.deadline_days, allowed))
        if problems:
            raise InputError(problems[0].path, problems[0].value, problems[0].allowed, problems[1:])
        space = prod(len(set(values)) for values in made.values() if isinstance(values, list))
        if space > MAX_COMBINATIONS:
            raise InputError("knobs", f"{space} combinations", f"at most {MAX_COMBINATIONS} combinations")
        object.__setattr__(self, "knobs", made)


@dataclass(frozen=True)
class Around:
    """What surrounds the steps of a run: how much is trained, how data arrives, when state is saved, what it costs, and
    who shares the cluster with it.
    """

    training: Training | None = None
    loading: Loading | None = None
    checkpointing: Checkpointing | None = None
    prices: Prices | None = None
    sharing: Sharing | None = None

    @property
    def sections(self) -> dict[str, Training | Loading | Checkpointing | Prices | Sharing]:
        """What is stated, by the key of a job file."""
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: section for name, section in held.items() if section}


@spec
class Job:
    """Everything one command needs."""

    model: Model
    cluster: Cluster
    plan: Plan | None = None
    tune: Tune | None = None
    training: Training | None = None
    loading: Loading | None = None
    checkpointing: Checkpointing | None = None
    prices: Prices | None = None
    sharing: Sharing | None = None

    @property
    def around(self) -> Around:
        """What surrounds its steps."""
        return Around(self.training, self.loading, self.checkpointing, self.prices, self.sharing)

    @classmethod
    @checked
    def load(cls, path: str | Path) -> "Job":
        """Return the job in a YAML or JSON file; paths of model, device, profile, prices and sharing are relative.

        Raises:
            InputError: with the path of the first field that is wrong.
        """
        file = Path(path)
        made, problems = read_sections(load_mapping(file), file.parent)
        if problems:
            raise problems[0]
        return cls(**made)


def read_sections(raw: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], list[InputError]]:
    """Return the sections of a job that can be read, and everything that is wrong with the others."""
    version = raw.get("schema_version")
    if isinstance(version, int) and version > PLAN_VERSION:
        allowed = f"{PLAN_VERSION}: a newer version of trainsim wrote this plan"
        return {}, [InputError("schema_version", version, allowed)]  # nothing else need be right then
    if "model_type" in raw and "model" not in raw:
        allowed = "required: this is a config.json, which a job names, model: config.json, beside cluster and plan"
        return {}, [InputError("model", None, allowed)]
    readers = section_readers(raw, folder)
    made: dict[str, Any] = {}
    beside = PLAN_FILE if "schema_version" in raw else ()
    unknown = [key for key in raw if key not in readers and key not in beside][:MAX_PROBLEMS]
    problems = [InputError(key, raw[key], f"no such key; known keys: {', '.join(readers)}") for key in unknown]
    problems += [InputError(key, None, f"required: {text}") for key, text in REQUIRED.items() if key not in raw]
    for key in [key for key in readers if key in raw]:
        made[key], found = readers[key](raw[key])
        problems += found
    problems += _contradictions(made.get("tune"), made.get("training"), raw)
    return {key: value for key, value in made.items() if value is not None}, problems


def _contradictions(tune: Tune | None, training: Training | None, raw: Mapping[str, Any]) -> Iterator[InputError]:
    """Yield what is wrong with sections because of others."""
    if training and training.goodput_stated and "checkpointing" in raw:
        yield InputError("training.goodput", training.goodput, "left out beside checkpointing, which says it")
    if training and training.usd_per_gpu_hour is not None and "prices" in raw:
        yield InputError("training.usd_per_gpu_hour", training.usd_per_gpu_hour, "left out beside prices, which say it")
    if "sharing" in raw and "training" not in raw:
        yield InputError("training", None, "required with sharing: tokens or steps")
    if tune and tune.objective == "gpus_for_deadline":
        if "training" not in raw:
            yield InputError("training", None, "required with objective gpus_for_deadline: tokens or steps")
        for name in ("loading", "checkpointing"):
            if name in raw:
                allowed = "left out with objective gpus_for_deadline, which knows of training.goodput alone"
                yield InputError(name, "stated", allowed)


PLAN_VERSION = 2
PLAN_FILE = ("schema_version", "degrees", "stage_map", "order", "memory_law", "prediction", "provenance")
"""What a plan file holds beside a job (`sim.plans.plan_file` reads it); as a job it is what its job says."""

Reader = Callable[[Any], tuple[Any, list[InputError]]]


def section_readers(raw: Mapping[str, Any], folder: Path) -> dict[str, Reader]:
    """Return per section of a job file what reads it into (value, problems)."""
    return {
        "model": lambda value: read_model(value, folder),
        "cluster": lambda value: check(Cluster, _with_files(value, folder), "cluster"),
        "plan": lambda value: _plan(value, raw),
        "tune": _tune,
        "training": lambda value: check(Training, value, "training"),
        "loading": lambda value: check(Loading, value, "loading"),
        "checkpointing": lambda value: check(Checkpointing, value, "checkpointing"),
        "prices": lambda value: check(Prices, _with_paths(value, folder, ("files", "availability")), "prices"),
        "sharing": lambda value: check(Sharing, _with_paths(value, folder, ("workload", "trace")), "sharing"),
    }


def _tune(raw: Any) -> tuple[Tune | None, list[InputError]]:
    """Return what the tuner may change; a knob that stands beside `knobs` is told where it belongs."""
    found, problems = check(Tune, raw, "tune")
    misplaced = {f"tune.{name}": f"as tune.knobs.{name}: every knob stands under knobs" for name in KNOBS}
    return found, [InputError(p.path, p.value, misplaced[p.path]) if p.path in misplaced else p for p in problems]


def _plan(raw: Any, job: Mapping[str, Any]) -> tuple[Plan | None, list[InputError]]:
    """Return the plan; the batch of `tune` wins, and the plan may leave its own out."""
    if "tune" not in job or not isinstance(raw, dict):
        return check(Plan, raw, "plan")
    tune, _ = check(Tune, job["tune"])
    batch = tune.global_batch if tune else 1  # what is wrong with tune is said there
    plan, problems = check(Plan, {"global_batch": batch} | raw, "plan")
    if plan is None:
        return None, problems
    made, stated = plan.but(global_batch=batch), plan.global_batch
    if stated != batch:
        note = f"plan.global_batch = {batch} (tune.global_batch, which wins over {stated})"
        object.__setattr__(made, "assumptions", (note, *made.assumptions))
    return made, problems


REQUIRED = {"model": MODEL_HELP, "cluster": "a mapping"}


def _with_files(raw: Any, folder: Path) -> Any:
    """Return a cluster or group with relative paths of device files and profile folders resolved against the job."""
    if not isinstance(raw, dict):
        return raw
    made = dict(raw)
    name, profile, groups = (raw.get(key) for key in ("device", "profile", "groups"))
    if isinstance(name, str) and is_device_file(name):
        made["device"] = os.path.realpath(folder / name)
    if isinstance(profile, str) and profile not in names("profiles") and is_folder(folder / profile):
        made["profile"] = os.path.realpath(folder / profile)
    if isinstance(groups, list):
        made["groups"] = [_with_files(group, folder) for group in groups]
    return made


def _with_paths(raw: Any, folder: Path, keys: tuple[str, ...]) -> Any:
    """Return a section with the paths under some of its keys resolved against the job."""
    if not isinstance(raw, dict):
        return raw

    def found(held: Any) -> Any:
        if isinstance(held, list):
            return [found(each) for each in held]
        return os.path.realpath(folder / held) if isinstance(held, str) and held and "\x00" not in held else held

    return raw | {key: found(raw[key]) for key in keys if key in raw}
