"""A sequence of allocations and frees, replayed by PyTorch's allocator: peaks, time line, segments."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sim.engine.allocator import Allocator, AllocatorSettings, OutOfMemoryError, Segment
from sim.specs.fields import InputError

Action = Literal["alloc", "free", "free_requested", "free_completed", "release"]
Event = tuple[Action, Hashable, int, int]
"""What happens, to which allocation, its bytes, its stream (the last two count for "alloc" alone).

"free" is "free_requested" (off the books) and "free_completed" (may serve again: other streams are done with it) at
once; "release" returns all cached segments to the device.
"""

Bytes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Replay:
    """Bytes after every event of a sequence, and the segments at its end.

    allocated, reserved: as `torch.cuda.memory_allocated` and `memory_reserved`; requested: what the program asked for.
    `failed_at`: the event that ran out of memory and ended the replay.
    """

    allocated: Bytes
    reserved: Bytes
    requested: Bytes
    segments: tuple[Segment, ...]
    retries: int
    failed_at: int | None

    @property
    def allocated_peak_bytes(self) -> int:
        """The most bytes allocated at once, as `torch.cuda.max_memory_allocated`."""
        return int(self.allocated.max(initial=0))

    @property
    def reserved_peak_bytes(self) -> int:
        """The most bytes reserved, as `torch.cuda.max_memory_reserved`."""
        return int(self.reserved.max(initial=0))

    @property
    def requested_peak_bytes(self) -> int:
        """The most bytes that the program asked for at once."""
        return int(self.requested.max(initial=0))

    @property
    def reserved_over_allocated(self) -> float:
        """Ratio of the two peaks (1 where nothing was allocated)."""
        return self.reserved_peak_bytes / self.allocated_peak_bytes if self.allocated_peak_bytes else 1.0

    @property
    def fragmentation(self) -> float:
        """Share of the reserved bytes that nobody used when they were most."""
        most = self.reserved_peak_bytes
        return 1.0 - int(self.allocated[self.reserved.argmax()]) / most if most else 0.0


def apply(allocator: Allocator, event: Event) -> None:
    """Let one event happen.

    Raises:
        InputError: an event that cannot be.
        OutOfMemoryError: the capacity is not enough.
    """
    action, name, size, stream = event
    if action == "alloc":
        allocator.malloc(name, size, stream)
    elif action == "free":
        allocator.free(name)
    elif action == "free_requested":
        allocator.request_free(name)
    elif action == "free_completed":
        allocator.complete_free(name)
    elif action == "release":
        allocator.release_cached()
    else:
        raise InputError("action", action, "one of " + ", ".join(get_args(Action)))


def replay(
    events: Iterable[Event], settings: AllocatorSettings | None = None, placed: Iterable[tuple[int, int]] = ()
) -> Replay:
    """Return what a sequence of events allocates and reserves.

    `placed`: (size, address) of the segments that a device handed out, in order, where a recorded trace knows them.

    Raises:
        InputError: an event that cannot be (`events[i]`): an id live twice or not live, a size below 0, no such action.
    """
    allocator, held, failed_at = Allocator(settings, placed), [], None
    for i, event in enumerate(events):
        try:
            apply(allocator, event)
        except InputError as error:
            raise error.under(f"events[{i}]") from None
        except OutOfMemoryError:
            failed_at = i
            break
        held.append((allocator.allocated, allocator.reserved, allocator.requested))
    table = np.array(held, dtype=np.int64).reshape(-1, 3)
    allocated, reserved, requested = np.ascontiguousarray(table.T)
    return Replay(allocated, reserved, requested, tuple(allocator.segments()), allocator.retries, failed_at)
