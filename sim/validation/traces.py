"""Traces of PyTorch's profiler joined with a simulated timeline, action by action.

PyTorch's pipelining runtime (`_PipelineScheduleRuntime`, the base of its looped, interleaved, zero-bubble and DualPipeV
schedules in torch 2.13) records every action as a slice `PP:<action>`, such as "PP:3B7". ScheduleGPipe records
"Forward 7" without a stage and Schedule1F1B nothing: run their order in the runtime (a schedule CSV) to measure it.
"""

import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engine.graph import Ints
from sim.engine.timeline import Timeline
from sim.specs.fields import InputError
from sim.specs.files import what_stands

MAX_BYTES = 2**28
"""Of a trace, unpacked."""
MAX_US = 1e18
PREFIX = "PP:"
STAGE = re.compile(r"\(?(\d{1,9})[A-Z]")
ON_DEVICE = "gpu_user_annotation"
"""Category of the slices that hold a range's time on the device; where there are any they count, else the host's."""


@dataclass(frozen=True)
class Measured:
    """One measured action: text as the runtime writes it, s on the clock of its process."""

    action: str
    start_s: float
    duration_s: float


@dataclass(frozen=True)
class Pair:
    """A simulated action (its index, or of a fused pair the first one's) beside its measurement; s.

    measured_start_s is on the simulated clock, from the start of the step.
    """

    index: int
    rank: int
    action: str
    kind: str
    start_s: float
    duration_s: float
    measured_start_s: float
    measured_duration_s: float

    @property
    def start_error_s(self) -> float:
        """How much later the simulation starts it."""
        return self.start_s - self.measured_start_s

    @property
    def duration_error(self) -> float:
        """Simulated over measured duration, less 1."""
        return self.duration_s / self.measured_duration_s - 1


@dataclass(frozen=True)
class KindError:
    """Errors of a kind of action: of the sum of durations and of each (in percent), and of starts (s, median)."""

    kind: str
    n: int
    bias_percent: float
    mape: float
    median_start_error_s: float


@dataclass(frozen=True, eq=False)
class Joined:
    """A timeline beside its measurement. offset_s[rank]: what was taken off the rank's clock."""

    timeline: Timeline
    pairs: tuple[Pair, ...]
    offset_s: Mapping[int, float]
    not_measured: tuple[str, ...]
    not_simulated: tuple[str, ...]
    steps: int

    def errors(self) -> list[KindError]:
        """Return the errors by kind, in the order of the names."""
        kinds = sorted({p.kind for p in self.pairs})
        return [_errors(kind, [p for p in self.pairs if p.kind == kind]) for kind in kinds]


def _errors(kind: str, pairs: list[Pair]) -> KindError:
    simulated, measured = (sum(getattr(p, n) for p in pairs) for n in ("duration_s", "measured_duration_s"))
    mape = float(np.mean([abs(p.duration_error) for p in pairs]))
    late = float(np.median([abs(p.start_error_s) for p in pairs]))
    return KindError(kind, len(pairs), 100 * (simulated / measured - 1), 100 * mape, late)


def read_trace(path: Path) -> dict[int, list[Measured]]:
    """Return the `PP:` slices of a torch profiler trace (.json or .json.gz) by process, in the order of time.

    Raises:
        InputError: not such a file, larger than 256 MiB unpacked, or without any action.
    """
    events = trace_events(path)
    found: dict[int, list[tuple[bool, Measured]]] = defaultdict(list)
    for n, e in enumerate(events):
        if not isinstance(e, dict):
            raise InputError(f"{path}: traceEvents[{n}]", type(e).__name__, "an object")
        name = e.get("name")
        if e.get("ph") == "X" and isinstance(name, str) and name.startswith(PREFIX):
            times = [_microseconds(e, key, f"{path}: traceEvents[{n}].{key}") for key in ("ts", "dur")]
            process = e.get("pid")
            key = process if isinstance(process, int) and not isinstance(process, bool) else -1
            found[key].append(
                (e.get("cat") == ON_DEVICE, Measured(name[len(PREFIX) :], times[0] * 1e-6, times[1] * 1e-6))
            )
    if not found:
        allowed = "slices PP:<action>, as _PipelineScheduleRuntime records them (Schedule1F1B and ScheduleGPipe do not)"
        raise InputError(str(path), "a trace without pipeline actions", allowed)
    device = any(on for each in found.values() for on, _ in each)
    kept = {p: [m for on, m in each if on == device] for p, each in found.items()}
    return {p: sorted(each, key=lambda m: m.start_s) for p, each in kept.items() if each}


def trace_events(path: Path) -> list[Any]:
    """Return the events of a torch profiler trace (.json or .json.gz) as they stand in the file.

    Raises:
        InputError: not such a file, or larger than 256 MiB unpacked.
    """
    try:
        if not path.is_file():
            raise InputError(str(path), what_stands(path), "a readable trace (.json or .json.gz)")
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else "a damaged archive"
        raise InputError(str(path), what, "a readable trace (.json or .json.gz)") from None
    if len(data) > MAX_BYTES:
        raise InputError(str(path), f"more than {MAX_BYTES} bytes", f"at most {MAX_BYTES} bytes, unpacked")
    try:
        held = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(str(path), "text that is not JSON", "a trace of torch.profiler") from None
    events = held.get("traceEvents") if isinstance(held, dict) else held
    if not isinstance(events, list):
        raise InputError(f"{path}: traceEvents", type(events).__name__, "a list of events")
    return events


def _microseconds(event: Mapping[str, Any], key: str, path: str) -> float:
    value = event.get(key)
    fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_US
    if not fine or (key == "dur" and float(value or 0) < 0):
        raise InputError(path, value, "a number of microseconds" + (" >= 0" if key == "dur" else ""))
    return float(value or 0)


def join(timeline: Timeline, paths: Sequence[Path], step: int = -1) -> Joined:
    """Return a timeline beside what was measured: a trace per rank, or one with a process for each.

    A process is the pipeline rank that holds its stages. step: which of the measured steps, in the order of time.
    Clocks of different hosts differ: of each rank the median difference of starts is taken off, so that start errors
    say how the order within a rank differs, not how late a whole rank is.

    Raises:
        InputError: no paths; a trace cannot be read; its stages belong to several ranks or to none, or two traces to
            one rank; there is no such step, or in it no simulated action.
    """
    if not paths:
        raise InputError("paths", [], "at least one trace")
    simulated = _simulated(timeline)
    measured = _by_rank(timeline, [(str(p), process, a) for p in paths for process, a in read_trace(p).items()])
    steps = max(len(times) for each in measured.values() for times in each.values())
    if not -steps <= step < steps:
        raise InputError("step", step, f"{-steps} to {steps - 1} (steps in the traces)")
    every = ((r, a, times) for r, each in measured.items() for a, times in each.items())
    chosen = {(r, a): times[step] for r, a, times in every if -len(times) <= step < len(times)}
    both = [key for key in simulated if key in chosen and chosen[key].duration_s > 0]
    if not both:
        allowed = f"actions of {timeline.schedule.name}, such as {next(iter(simulated))[1]}"
        raise InputError(str(paths[0]), "no action that was simulated", allowed)
    zero = timeline.zero
    start = {key: (int(timeline.start[simulated[key]]) - zero) * 1e-9 for key in both}
    offsets = {
        r: float(np.median([chosen[k].start_s - start[k] for k in both if k[0] == r])) for r in {r for r, _ in both}
    }
    pairs = tuple(_pair(timeline, simulated[key], key, start[key], chosen[key], offsets[key[0]]) for key in both)
    missing = tuple(f"rank {r}: {a}" for r, a in simulated if (r, a) not in start)
    extra = tuple(f"rank {r}: {a}" for r, a in chosen if (r, a) not in simulated)
    return Joined(timeline, pairs, offsets, missing, extra, steps)


def _simulated(timeline: Timeline) -> dict[tuple[int, str], int]:
    """Return the index of every action by rank and torch's text; of a fused pair the first one's."""
    graph, found = timeline.graph, {}
    fused = np.append(graph.second[1:], False)
    for i in np.flatnonzero(~graph.second).tolist():
        action = graph.action(i)
        text = f"({action};{graph.action(i + 1)})OVERLAP_F_B" if fused[i] else str(action)
        found[int(graph.rank[i]), text] = i
    return found


def _pair(
    timeline: Timeline, index: int, key: tuple[int, str], start_s: float, measured: Measured, offset_s: float
) -> Pair:
    duration = int(timeline.end[index] - timeline.start[index]) * 1e-9
    kind = "OVERLAP_F_B" if key[1].startswith("(") else timeline.graph.action(index).kind.name
    return Pair(index, *key, kind, start_s, duration, measured.start_s - offset_s, measured.duration_s)


def _by_rank(
    timeline: Timeline, held: Iterable[tuple[str, int, list[Measured]]]
) -> dict[int, dict[str, list[Measured]]]:
    """Return every rank's measurements by action, in the order of time."""
    rank_of = timeline.schedule.rank_of
    found: dict[int, dict[str, list[Measured]]] = {}
    source: dict[int, str] = {}
    for path, process, actions in held:
        stages = {int(m[1]) for a in actions if (m := STAGE.match(a.action))}
        ranks = {rank_of[s] for s in stages if s < len(rank_of)}
        if len(ranks) != 1 or max(stages) >= len(rank_of):
            text = "stages " + ", ".join(map(str, sorted(stages)[:8])) if stages else "no stages"
            raise InputError(path, text, f"the stages of one rank, of {len(rank_of)}")
        (rank,) = ranks
        if rank in found:
            raise InputError(path, f"rank {rank} (process {process})", f"one trace of it; {source[rank]} is another")
        found[rank], source[rank] = defaultdict(list), path
        for a in actions:
            found[rank][a.action].append(a)
    return found


def measured_times(joined: Joined) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Return start and end (ns from the step's start) of every action as measured, and which were measured."""
    n = len(joined.timeline.start)
    start, end, known = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
    second = joined.timeline.graph.second
    for p in joined.pairs:
        at = round(p.measured_start_s * 1e9), round((p.measured_start_s + p.measured_duration_s) * 1e9)
        for i in (p.index, p.index + 1):
            if i == p.index or (i < n and second[i]):
                start[i], end[i], known[i] = *at, True
    return start, end, known
