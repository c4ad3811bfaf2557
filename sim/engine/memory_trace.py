"""A recorded allocator trace: one JSON object a line, what it says of its own peaks, and the replay beside them.

The first line is the header; every other one {"action", "addr", "size", "stream"} as `torch.cuda.memory._snapshot()`
names them (`c10/core/CachingDeviceAllocator.h`, `TraceEntry`). Nothing of it is pickled.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field

from sim.engine.allocator import Allocator, AllocatorSettings, OutOfMemoryError
from sim.engine.replay import Event, apply
from sim.specs.fields import InputError, read, spec, version_one, whole
from sim.specs.files import text_of, write_atomically

Recorded = Literal[
    "alloc", "free", "free_requested", "free_completed",
    "segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot", "oom",
]  # fmt: skip
"""What a device writes down, and "free": requested and completed at once."""

GROWS, SHRINKS = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
ACTIONS = frozenset(get_args(Recorded))
MAX_BYTES = 256 * 2**20
MOST = 2**63

Size = Annotated[int, whole(0, MOST, "B")]


class Entry(NamedTuple):
    """One line: bytes of a tensor are what was asked for, those of a segment its size."""

    action: Recorded
    addr: int
    size: int
    stream: int


@spec
class Header:
    """What the recording says of itself.

    `allocated_peak_bytes` and `reserved_peak_bytes` are the device's own counters (None: none, as on a CPU);
    `requested_peak_bytes` is the most that was asked for at once, where only that is known.
    """

    schema_version: Annotated[int, version_one()] = 1
    source: Annotated[str, Field(min_length=1, max_length=200, description="text")]
    settings: AllocatorSettings = AllocatorSettings()
    allocated_peak_bytes: Size | None = None
    reserved_peak_bytes: Size | None = None
    requested_peak_bytes: Size | None = None


@dataclass(frozen=True, eq=False)
class MemoryTrace:
    """A recording that begins with nothing reserved."""

    header: Header
    entries: Sequence[Entry]

    def events(self) -> Iterator[Event]:
        """Yield what a replay needs: segments that the device gave back go before the request that made it do so."""
        released = False
        for action, addr, size, stream in self.entries:
            if action in SHRINKS:
                if not released:
                    yield "release", 0, 0, 0
                released = True
                continue
            released = False
            if action in ("alloc", "free", "free_requested", "free_completed"):
                yield action, addr, size, stream

    def segments(self) -> list[tuple[int, int]]:
        """Return (size, address) of the segments that the device handed out, in order."""
        return [(entry.size, entry.addr) for entry in self.entries if entry.action == "segment_alloc"]


@dataclass(frozen=True)
class Check:
    """Recorded peaks beside replayed ones (bytes); None where the recording has none.

    `misplaced`: allocations that the replay put at another address than the device did; where segments expand or
    nothing is known of them, None.
    """

    source: str
    events: int
    recorded_allocated_bytes: int | None
    replayed_allocated_bytes: int
    recorded_reserved_bytes: int | None
    replayed_reserved_bytes: int
    recorded_requested_bytes: int | None
    replayed_requested_bytes: int
    misplaced: int | None

    @property
    def equal(self) -> bool:
        """Whether every recorded peak is replayed to the byte."""
        pairs = (
            (self.recorded_allocated_bytes, self.replayed_allocated_bytes),
            (self.recorded_reserved_bytes, self.replayed_reserved_bytes),
            (self.recorded_requested_bytes, self.replayed_requested_bytes),
        )
        return all(a is None or a == b for a, b in pairs)


def check(trace: MemoryTrace) -> Check:
    """Return the peaks of a recording and of its replay.

    Raises:
        InputError: the recording cannot be: it frees what is not live, or the capacity that it states is not enough.
    """
    header, segments = trace.header, trace.segments()
    allocator = Allocator(header.settings, segments)
    peaks, misplaced, n = [0, 0, 0], 0, 0
    for n, event in enumerate(trace.events(), 1):
        try:
            apply(allocator, event)
        except InputError as error:
            raise error.under(f"events[{n - 1}]") from None
        except OutOfMemoryError as error:
            raise InputError(
                f"events[{n - 1}]", str(error), "what fits in the capacity that the header states"
            ) from None
        now = allocator.allocated, allocator.reserved, allocator.requested
        peaks = [max(pair) for pair in zip(peaks, now, strict=True)]
        if event[0] == "alloc":
            block = allocator.live[event[1]]
            misplaced += block is not None and block.address != event[1]
    known = bool(segments) and not header.settings.expandable_segments
    return Check(
        source=header.source,
        events=n,
        recorded_allocated_bytes=header.allocated_peak_bytes,
        replayed_allocated_bytes=peaks[0],
        recorded_reserved_bytes=header.reserved_peak_bytes,
        replayed_reserved_bytes=peaks[1],
        recorded_requested_bytes=header.requested_peak_bytes,
        replayed_requested_bytes=peaks[2],
        misplaced=misplaced if known else None,
    )


def write_trace(trace: MemoryTrace, path: Path) -> None:
    """Write a trace as JSON lines, whole or not at all."""
    write_atomically(path, trace_text(trace))


def trace_text(trace: MemoryTrace) -> str:
    """Return a trace as JSON lines."""
    lines = [json.dumps(asdict(trace.header)), *(json.dumps(entry._asdict()) for entry in trace.entries)]
    return "\n".join(lines) + "\n"


def read_trace(path: Path) -> MemoryTrace:
    """Return the trace in a file.

    Raises:
        InputError: no such file, too large, or a line that is no entry (`file:line`).
    """
    first, *rest = text_of(path, MAX_BYTES).splitlines() or [""]
    header = read(Header, _object(first, f"{path}:1"), f"{path}:1")
    return MemoryTrace(header, [_entry(line, f"{path}:{n}") for n, line in enumerate(rest, 2)])


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        made = json.loads(line)
    except (ValueError, RecursionError):
        made = None
    if not isinstance(made, dict):
        raise InputError(place, line[:80], "one JSON object")
    return made


def _entry(line: str, place: str) -> Entry:
    made = _object(line, place)
    if made.keys() != {*Entry._fields}:
        raise InputError(place, sorted(made), "exactly " + ", ".join(Entry._fields))
    if not isinstance(made["action"], str) or made["action"] not in ACTIONS:
        raise InputError(f"{place}:action", made["action"], "one of " + ", ".join(sorted(ACTIONS)))
    for name in ("addr", "size", "stream"):
        if type(made[name]) is not int or not 0 <= made[name] < 2 * MOST:
            raise InputError(f"{place}:{name}", made[name], "a whole number, 0 to 2^64 - 1")
    return Entry(**made)
