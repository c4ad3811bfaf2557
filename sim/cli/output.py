"""Output shared by the commands: data on stdout, progress on stderr."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from math import inf, isfinite
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console

from sim.specs.fields import InputError
from sim.specs.files import FULL, checked_target, write_all
from sim.specs.prices import iso_utc
from sim.units import HOUR_S

if TYPE_CHECKING:  # a command that predicts nothing need not load what does
    from sim.engine.memory import MemoryTimeline
    from sim.engine.replay import Replay
    from sim.engine.step import Step
    from sim.market import Optimum, Rental
    from sim.run import Run, Shared, Trained
    from sim.run.losses import Losses


class _Console(Console):
    """Breaks text at plain spaces alone, where rich breaks at any: a number with thin spaces stays on one line, and so
    does its percent sign. An indented line goes on indented by two more."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **more: Any) -> None:
        """Print as `Console.print`."""
        shown = (
            objects if soft_wrap else (_broken(each, self.width) if isinstance(each, str) else each for each in objects)
        )
        super().print(*shown, soft_wrap=soft_wrap, **more)


def _broken(text: str, width: int) -> str:
    """Return `text` with every line that is longer than `width` broken at spaces."""
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip(" "))]
        more = f"{indent}  " if indent else ""
        fits = cell_len(line) <= width
        lines += [line] if fits else wrap(line, width, subsequent_indent=more, break_on_hyphens=False)
    return "\n".join(lines)


console = _Console(width=None if sys.stdout.isatty() else 100, markup=False, emoji=False)
progress_console = Console(stderr=True, markup=False, emoji=False)
"""Names of files, models and sources are no markup: `[final]` and `:x:` stand as they are."""


def checked_file(option: str, target: Path, job: Path) -> None:
    """Refuse a file that cannot be written, or that is the one that is read, before any work is done."""
    checked_target(option, target)
    if target.exists() and job.exists() and target.samefile(job):
        raise InputError(option, str(target), f"another file than {job}, which is read")


def checked_files(targets: Mapping[str, Path | None], *read: Path) -> dict[str, Path]:
    """Return the files that were asked for, by option; refuse them as `checked_file`, and one that is named twice."""
    asked = {option: target for option, target in targets.items() if target is not None}
    by_place: dict[Path, str] = {}
    for option, target in asked.items():
        for file in read:
            checked_file(option, target, file)
        first = by_place.setdefault(target.resolve(), option)
        if first != option:
            raise InputError(option, str(target), f"another file than that of {first}")
    return asked


def checked_new_file(target: Path) -> None:
    """Refuse a file of `--out` that exists or cannot be written."""
    if target.exists():
        raise InputError("--out", str(target), "a file that does not exist yet, in an existing folder")
    checked_target("--out", target)


@contextmanager
def written(option: str, target: Path) -> Iterator[None]:
    """Turn a failing write into the error of the option that named the target; a full disk stays what it is."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise
        raise InputError(option, str(target), f"a place that can be written ({error.strerror})") from None
    except InputError as error:
        raise (InputError(option, error.value, error.allowed) if error.path == "path" else error) from None


def write_together(options: Mapping[str, Path], files: Mapping[Path, str | bytes]) -> None:
    """Write all files or none; the error names the option of one that cannot be written, a full disk stays as it is."""
    try:
        write_all(files)
    except InputError as error:
        option = next(option for option, path in options.items() if str(path) == error.value)
        raise InputError(option, error.value, error.allowed) from None


def run_data(run: "Run") -> dict[str, Any]:
    """Return the JSON object of a whole run; an interval stands beside its value, its notes with the step's."""
    apart = ("around", "assumptions", "rental", "optimum", "shared")
    held = {f.name: getattr(run, f.name) for f in fields(run) if f.name not in apart}
    rented = rental_data(run.rental, run.optimum) if run.rental else {}
    return held | rented | ({"shared": shared_data(run.shared)} if run.shared else {})


def shared_data(found: "Shared") -> dict[str, Any]:
    """Return the JSON object of a run beside other jobs."""
    return {f.name: getattr(found, f.name) for f in fields(found) if f.name not in ("simulated", "assumptions")}


def turn_data(step: "Step", run: "Run") -> dict[str, dict[str, Any]]:
    """Return the JSON object of what a run takes as each section of its job joins; by what is in it."""
    from sim.run import in_turn  # noqa: PLC0415 - a command that predicts nothing need not load it

    names = ("days", "gpu_hours", "cost_usd", "energy_kwh")
    told = [part for name in names for part in (name, f"{name}_interval")]
    return {what: {name: getattr(held, name) for name in told} for what, held in in_turn(step, run).items()}


def rental_data(found: "Rental", bound: "Optimum | None" = None) -> dict[str, Any]:
    """Return the JSON object of a rental; times are ISO 8601, UTC, and null where no price has a date."""
    dated = found.begin_s != 0
    data: dict[str, Any] = {
        "strategy": found.strategy,
        "begin": iso_utc(found.begin_s) if dated else None,
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
            | {"begin": iso_utc(stay.begin_s) if dated else None, "end": iso_utc(stay.end_s) if dated else None}
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
    from sim.engine.steady import bubbles  # noqa: PLC0415 - loads the engine, as whoever has a step did

    return {
        "step_time_s": step.step_time_s,
        "step_time_interval_s": list(step.step_time_interval_s),
        "mfu": step.mfu,
        "mfu_interval": list(step.mfu_interval),
        "mfu_convention": "megatron",
        "hfu": step.hfu,
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "usd_per_1e9_tokens": step.usd_per_1e9_tokens,
        **bubbles(step.timeline),
        "breakdown_s": dict(step.breakdown_s),
        "critical_path": [
            {"cause": str(cause), "seconds": ticks * 1e-9} for cause, ticks in step.critical_path.by_cause().items()
        ],
        "peak_memory_bytes": step.peak_memory_bytes,
        "memory_kind": "allocated",
        "memory_rank": step.fullest.rank,
        "device_memory_bytes": step.device_memory_bytes,
        "ranks": [_rank_data(step, m) for m in step.memory],
        "nearest_margin_bytes": step.levels(step.fullest.rank).margin_bytes,
        "fits": step.fits,
        "fits_memory_kind": "nvidia_smi",
        "dp": step.placed.dp,
        "microbatches": step.placed.microbatches,
        "assumptions": [*step.assumptions, *(run.assumptions if run else ())],
    } | ({"run": run_data(run), "in_turn": turn_data(step, run)} if run else {})
