"""The plan file: a job, and all that a runner needs to execute its plan and to compare what it measures (JSON).

A version of the format is named by `schema_version`; a job file is a plan file without the rest, and every command
that takes a job takes a plan file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sim.engine.assembly import step_schedule
from sim.engine.step import Step, simulate
from sim.plans.facts import degrees, memory_law, order_data, order_hash, prediction, provenance, stage_map
from sim.plans.files import job_data, save_numbered
from sim.schedules import SCHEDULES, Schedule
from sim.schedules.custom import parse_order
from sim.specs import Around, InputError, Job, PlacedPlan
from sim.specs.arguments import checked
from sim.specs.fields import init_names, read, real, spec, whole
from sim.specs.files import load_mapping, write_json
from sim.specs.job import PLAN_VERSION, read_sections

MOST_RANKS, MOST_STAGES = 4_096, 16_384
Text = Annotated[str, Field(max_length=2_000, description="text")]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="a SHA-256 of 64 hexadecimal digits")]
Count = Annotated[int, whole(0, 10_000_000)]
Bytes = Annotated[float, real(0.0, 1e18, "B")]
Seconds = Annotated[float, real(0.0, 1e12, "s")]
PerStage = Annotated[tuple[Bytes, ...], Field(max_length=MOST_STAGES, description="a number of bytes per stage")]


@spec
class Degrees:
    """How many ranks share the work along each axis; `gpus` in all, `microbatches` of one replica's step."""

    tp: Count
    pp: Count
    dp: Count
    cp: Count
    ep: Count
    etp: Count
    virtual_stages: Count
    gpus: Count
    microbatches: Count


@spec
class StageAt:
    """One model chunk: its `layers` from `first_layer` on, on `pipeline_rank`, which the global `ranks` hold.

    `ranks`: runs such as "0-7,16-23", or "0-28:4" for every fourth; empty for more than 100 runs.
    """

    stage: Count
    pipeline_rank: Count
    first_layer: Count
    layers: Count
    ranks: Text


@spec
class OrderOf:
    """The passes of every pipeline rank in cells of torch's "compute_only" CSV, joined by blanks.

    `sha256` is that of the ranks joined by newlines; `ranks` is left out (empty) where it would fill the file.
    """

    schedule: Text
    microbatches: Count
    sha256: Hash
    ranks: Annotated[tuple[str, ...], Field(max_length=MOST_RANKS, description="text per pipeline rank")] = ()


@spec
class MemoryLaw:
    """What a rank's memory follows from, in bytes (`sim.engine.memory.Footprint`).

    fixed_bytes: per pipeline rank, for the whole step. saved_bytes: per chunk, from a forward to its backward;
    temporary_bytes: per chunk, during a backward. input_frees: the share of the saved that I frees, W frees the rest.
    in_flight: the most chunk activations of a rank alive at once.
    """

    framework: Literal["megatron", "torch"]
    recompute: Text
    input_frees: Annotated[float, real(0.0, 1.0)]
    workspace_bytes: Bytes
    in_flight: Annotated[tuple[Count, ...], Field(max_length=MOST_RANKS, description="a number per pipeline rank")]
    fixed_bytes: PerStage
    saved_bytes: PerStage
    temporary_bytes: PerStage


@spec
class RankPeak:
    """One pipeline rank's allocated peak with its central 80 % interval."""

    rank: Count
    peak_memory_bytes: Bytes
    interval80_bytes: tuple[Bytes, Bytes]


@spec
class Sent:
    """What one process of a pipeline rank sends in a step: `messages` and `sent_bytes` in all of one operation in a
    group ("dp all_reduce", "tp all_gather"; of a collective the bytes that a ring sends) or over a link
    ("pp send 0>1")."""

    rank: Count
    what: Text
    messages: Count
    sent_bytes: Bytes


@spec
class Prediction:
    """What the simulator says of the step; intervals are the central 80 %.

    message_bytes: per boundary from chunk s to s + 1, what one tensor-parallel rank sends of one microbatch's
    activations (its gradient is as large); 0 where both chunks are on one rank. messages: in a step, each way.
    traffic: of all groups (`sim.plans.traffic`); empty where that does not know the plan, and in files of version 1.
    """

    step_time_s: Seconds
    step_time_interval_s: tuple[Seconds, Seconds]
    mfu: Annotated[float, real(0.0, 1e3)]
    fits: Literal["yes", "close", "no"]
    messages: Count
    message_bytes: PerStage
    ranks: Annotated[tuple[RankPeak, ...], Field(max_length=MOST_RANKS, description="a list of ranks")]
    traffic: Annotated[tuple[Sent, ...], Field(max_length=16 * MOST_RANKS, description="a list of what is sent")] = ()


@spec
class Fitted:
    """Numbers that a prediction rests on: their name, and the SHA-256 of their canonical JSON."""

    name: Text
    sha256: Hash


@spec
class Provenance:
    """Who predicted, when, with what."""

    trainsim: Text
    date: Annotated[str, Field(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="a date such as 2026-08-31")]
    engine: Literal["path", "events"]
    profiles: Annotated[tuple[Fitted, ...], Field(max_length=100, description="a list of profiles")]
    run_level: Fitted


@spec
class PlanRecord:
    """What a plan file holds beside the job.

    Raises:
        InputError: a value is missing, of another kind or out of range.
    """

    schema_version: Annotated[int, whole(1, PLAN_VERSION)]
    degrees: Degrees
    stage_map: Annotated[tuple[StageAt, ...], Field(max_length=MOST_STAGES, description="a list of stages")]
    order: OrderOf
    memory_law: MemoryLaw
    prediction: Prediction
    provenance: Provenance


@dataclass(frozen=True)
class PlanFile:
    """A job, and what its file says beside it: None of a plain job file."""

    job: Job
    record: PlanRecord | None = None


@checked
def plan_data(step: Step, around: Around | None = None, date: str | None = None) -> dict[str, Any]:
    """Return the plan file of a step as plain data; `date`: of the prediction, by default today's (UTC)."""
    job = job_data(step.model, step.cluster, step.plan, around)
    return {
        "schema_version": PLAN_VERSION,
        **job,
        "degrees": degrees(step.placed),
        "stage_map": stage_map(step.model, step.placed),
        "order": order_data(step.timeline.schedule),
        "memory_law": memory_law(step),
        "prediction": prediction(step),
        "provenance": provenance(step, date),
    }


@checked
def save_plan(step: Step, path: str | Path, around: Around | None = None) -> Path:
    """Write the plan file of a step, whole or not at all, and return its path.

    Raises:
        InputError: the name does not end in .json (of any other file the reader takes too little), or the file cannot
            be written.
    """
    file = Path(path)
    if file.suffix != ".json":
        raise InputError("path", str(path), "a file name that ends in .json")
    write_json(file, plan_data(step, around))
    return file


def save_plans(steps: Sequence[Step], folder: Path, around: Around | None = None) -> list[Path]:
    """Write the plan files plan-1.json, plan-2.json, ... into `folder` and return their paths; older ones go."""
    return save_numbered([plan_data(step, around) for step in steps], folder)


@checked
def load_plan(path: str | Path) -> PlanFile:
    """Return a plan file, or a job file, read and checked.

    Raises:
        InputError: with the path of the first field that is wrong: a version of the future, an unknown key, a value of
            another kind, or degrees, stages or an order that are not those of the file's own plan.
    """
    file = Path(path)
    raw = load_mapping(file)
    made, problems = read_sections(raw, file.parent)
    if problems:
        raise problems[0]
    job = Job(**made)
    if "schema_version" not in raw:
        return PlanFile(job)
    if job.plan is None:
        raise InputError("plan", None, "required in a plan file")
    record = read(PlanRecord, {key: value for key, value in raw.items() if key not in init_names(Job)})
    _agree(record, job, job.plan.on(job.model, job.cluster))
    return PlanFile(job, record)


def _agree(record: PlanRecord, job: Job, placed: PlacedPlan) -> None:
    """Refuse a record that is not of the job's own plan."""
    assert job.plan is not None
    for key, value in degrees(placed).items():
        if getattr(record.degrees, key) != value:
            raise InputError(f"degrees.{key}", getattr(record.degrees, key), f"{value}, as the plan says")
    wanted = stage_map(job.model, placed)
    if len(record.stage_map) != len(wanted):
        raise InputError("stage_map", f"{len(record.stage_map)} stages", f"the plan's {len(wanted)}")
    for n, (stage, own) in enumerate(zip(record.stage_map, wanted, strict=True)):
        for key, value in own.items():
            if getattr(stage, key) != value:
                raise InputError(f"stage_map.{n}.{key}", getattr(stage, key), f"{value}, as the plan says")
    _agree_on_order(record, job, placed)


def _agree_on_order(record: PlanRecord, job: Job, placed: PlacedPlan) -> None:
    """Refuse an order that is not the plan's own schedule.

    One that was searched for numbers that have changed since cannot be made again: it has to be complete, on the
    plan's stages.
    """
    assert job.plan is not None
    order, (own, again) = record.order, _own(record, job, placed)
    for key, value in (("schedule", own.name), ("microbatches", own.microbatches)):
        if getattr(order, key) != value:
            raise InputError(f"order.{key}", getattr(order, key), f"{value}, as the plan says")
    held, wanted = list(order.ranks), own.texts()
    if again and (held or [order.sha256]) != (wanted if held else [order_hash(wanted)]):
        raise InputError(*_difference(held, wanted))
    if held and order_hash(held) != order.sha256:
        raise InputError("order.sha256", order.sha256, "the hash of order.ranks: one of the two was changed")
    if held and held != wanted:
        found = parse_order("\n".join(",".join(rank.split()) for rank in held), "order.ranks")
        if (found.rank_of, found.microbatches) != (own.rank_of, own.microbatches):
            raise InputError("order.ranks", "other stages or microbatches", "those of the plan")


def _own(record: PlanRecord, job: Job, placed: PlacedPlan) -> tuple[Schedule, bool]:
    """Return the plan's schedule, and whether the file's must be the same: it rests on the same numbers, or on none."""
    assert job.plan is not None
    if not SCHEDULES[job.plan.order].searched:
        return step_schedule(placed, {}), True
    step = simulate(job.model, job.cluster, job.plan)
    now, then = provenance(step), record.provenance
    same = then.trainsim == now["trainsim"] and then.run_level.sha256 == now["run_level"]["sha256"]
    return step.timeline.schedule, same and [f.sha256 for f in then.profiles] == [f["sha256"] for f in now["profiles"]]


def _difference(held: list[str], wanted: list[str]) -> tuple[str, object, str]:
    """Return where an order first differs from the plan's own, what stands there and what should."""
    for r, (rank, right) in enumerate(zip_longest(held, wanted, fillvalue="")):
        for n, (cell, own) in enumerate(zip_longest(rank.split(), right.split())):
            if held and cell != own:
                return (
                    f"order.ranks.{r}",
                    cell or "nothing more",
                    f"{own or 'nothing more'}: pass {n} of the plan's own",
                )
    return "order.sha256", "that of another order", "the hash of the plan's own order"
