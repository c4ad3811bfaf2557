"""Output shared by the commands: data on stdout, progress on stderr."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from sim.specs.fields import InputError
from sim.units import HOUR_S

if TYPE_CHECKING:  # a command that predicts nothing need not load what does
    from sim.engine.memory import MemoryTimeline
    from sim.engine.replay import Replay
    from sim.engine.step import Step
    from sim.market import Optimum, Rental
    from sim.run import Run, Trained
    from sim.run.losses import Losses

console = Console(width=None if sys.stdout.isatty() else 100)
progress_console = Console(stderr=True)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    typer.echo(json.dumps(data, indent=1, allow_nan=False))


def checked_file(option: str, target: Path, job: Path) -> None:
    """Refuse a file that cannot be written, or that is the job itself, before any work is done."""
    if not target.name or target.is_dir() or not target.parent.is_dir():
        raise InputError(option, str(target), "a file in an existing folder")
    if target.exists() and target.samefile(job):
        raise InputError(option, str(target), "another file than the job")


def checked_new_file(target: Path) -> None:
    """Refuse a file of `--out` that exists or cannot be written."""
    if target.exists() or not target.name or not target.parent.is_dir():
        raise InputError("--out", str(target), "a file that does not exist yet, in an existing folder")


def checked_folder(target: Path) -> None:
    """Refuse a folder of `--out` that cannot be made before any work is done."""
    first = next(p for p in (target, *target.absolute().parents) if p.exists())
    if target == Path() or not first.is_dir() or not os.access(first, os.W_OK):
        raise InputError("--out", str(target), "a folder that exists or can be made")


@contextmanager
def written(option: str, target: Path) -> Iterator[None]:
    """Turn a failing write into the error of the option that named the target."""
    try:
        yield
    except OSError as error:
        raise InputError(option, str(target), f"a place that can be written ({error.strerror})") from None
    except InputError as error:
        raise (InputError(option, error.value, error.allowed) if error.path == "path" else error) from None


def run_data(run: "Run") -> dict[str, Any]:
    """Return the JSON object of a whole run; an interval stands beside its value, its notes with the step's."""
    apart = ("around", "assumptions", "rental", "optimum")
    held = {f.name: getattr(run, f.name) for f in fields(run) if f.name not in apart}
    return held | (rental_data(run.rental, run.optimum) if run.rental else {})


def rental_data(found: "Rental", bound: "Optimum | None" = None) -> dict[str, Any]:
    """Return the JSON object of a rental; times are ISO 8601, UTC, and null where no price has a date."""
    dated = found.begin_s != 0
    data: dict[str, Any] = {
        "strategy": found.strategy,
        "begin": _iso(found.begin_s) if dated else None,
        "cost_usd": found.cost_usd,
        "hours": found.hours,
        "migrations": found.migrations,
        "preemptions": found.preemptions,
        "transfer_usd": found.transfer_usd,
        "gpu_hours": found.gpu_hours,
        "finished": found.finished,
        "deadline_met": None if found.job.deadline_s is None else found.hours * HOUR_S <= found.job.deadline_s,
        "parts_s": dict(found.parts_s),
        "path": [
            asdict(stay.offer)
            | {"begin": _iso(stay.begin_s) if dated else None, "end": _iso(stay.end_s) if dated else None}
            | {"begin_hours": (stay.begin_s - found.begin_s) / HOUR_S, "hours": (stay.end_s - stay.begin_s) / HOUR_S}
            | {"usd": stay.usd, "steps": stay.steps, "ended": stay.ended}
            for stay in found.path
        ],
    }
    if bound:
        data["optimum_usd"] = bound.usd
        data["optimum"] = {
            "usd": bound.usd,
            "within_hours": bound.hours,
            "hindsight_usd": bound.hindsight and bound.hindsight.objective_usd,
            "gap": bound.gap if isfinite(bound.gap) else None,
        }
    return data


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat()


def _rank_data(step: "Step", held: "MemoryTimeline") -> dict[str, Any]:
    """Return one rank's peak: the three figures, when and in which action it is reached, and of what it is made."""
    levels = step.levels(held.rank)
    return {
        "rank": held.rank,
        "peak_memory_bytes": held.peak_bytes,
        "memory_kind": "allocated",
        "reserved_bytes": levels.reserved_bytes,
        "nvidia_smi_bytes": levels.nvidia_smi_bytes,
        "margin_bytes": levels.margin_bytes,
        "interval80_bytes": list(step.peak_interval_bytes(held.rank)),
        "at_s": float(held.at_ns[held.peak_index]) * 1e-9,
        "action": step.timeline.schedule.label(held.peak_action),
        "composition_bytes": held.composition(),
    }


def replay_data(found: "Replay") -> dict[str, Any]:
    """Return the JSON object of a replay of the allocator."""
    names = ("requested_peak_bytes", "allocated_peak_bytes", "reserved_peak_bytes", "reserved_over_allocated")
    held = {name: getattr(found, name) for name in (*names, "fragmentation")}
    return held | {"events": len(found.allocated), "segments": len(found.segments)}


def around_data(losses: "Losses | None") -> dict[str, Any]:
    """Return the JSON objects of how data arrives and when state is saved, as far as the job says."""
    found: dict[str, Any] = {}
    if losses and losses.data:
        held = {k: v if v != inf else None for k, v in asdict(losses.data).items() if k != "assumptions"}
        found["loading"] = held | {"paced_step_time_s": losses.step_time_s}
    if losses and losses.saving:
        advice = losses.saving.advice
        held = {k: v for k, v in asdict(advice).items() if k not in ("policies", "assumptions")}
        more = {"k": advice.steps_between, "overhead_percent": advice.overhead_percent, "mtbf_s": losses.saving.mtbf_s}
        found["checkpointing"] = held | more
    return found


def trained_data(found: "Trained") -> dict[str, Any]:
    """Return the JSON object of a stretch of training."""
    names = ("seconds", "steps", "goodput", "tokens_per_s", "checkpoints", "failures", "steps_between_checkpoints")
    held = {name: getattr(found, name) for name in names} | {"parts_s": dict(found.parts_s)}
    return held | {"steps_held_up": found.held_up, "assumptions": list(found.assumptions)}


def step_data(step: "Step", run: "Run | None" = None) -> dict[str, Any]:
    """Return the JSON object of a simulated step, and of the run it is part of (DESIGN: `trainsim simulate`)."""
    return {
        "step_time_s": step.step_time_s,
        "step_time_interval_s": list(step.step_time_interval_s),
        "mfu": step.mfu,
        "mfu_interval": list(step.mfu_interval),
        "mfu_convention": "megatron",
        "hfu": step.hfu,
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "usd_per_1e9_tokens": step.usd_per_1e9_tokens,
        "bubble_fraction": step.timeline.bubble_fraction(),
        "bubble_over_ideal": step.timeline.bubble_makespan(),
        "bubble_rank_span": step.timeline.bubble_rank_span(),
        "breakdown_s": dict(step.breakdown_s),
        "critical_path": [
            {"cause": str(cause), "seconds": ticks * 1e-9} for cause, ticks in step.critical_path.by_cause().items()
        ],
        "peak_memory_bytes": step.peak_memory_bytes,
        "device_memory_bytes": step.device_memory_bytes,
        "ranks": [_rank_data(step, m) for m in step.memory],
        "nearest_margin_bytes": step.levels(step.fullest.rank).margin_bytes,
        "fits": step.fits,
        "fits_memory_kind": "nvidia_smi",
        "dp": step.placed.dp,
        "microbatches": step.placed.microbatches,
        "assumptions": [*step.assumptions, *(run.assumptions if run else ())],
    } | ({"run": run_data(run)} if run else {})
