"""Storage as slow as wanted before real files: a bandwidth that all processes share, and a latency for every file."""

from pathlib import Path
from time import monotonic_ns, sleep

from calibration.loading.cells import Cells
from calibration.loading.sources import Source
from sim.specs.fields import InputError


class Throttle:
    """`bytes_per_s` for everybody together, in the order of asking, and `latency_s` more for each file.

    Latencies are waited for side by side. `cells`: a file that is made, where the processes find each other.

    Raises:
        InputError: no bandwidth, or a latency below zero.
    """

    def __init__(self, cells: Path, bytes_per_s: float, latency_s: float = 0.0) -> None:
        if not bytes_per_s > 0:
            raise InputError("bytes_per_s", bytes_per_s, "a number above 0")
        if not 0 <= latency_s <= 60:
            raise InputError("latency_s", latency_s, "a number from 0 to 60 s")
        self.bytes_per_s, self.latency_s = bytes_per_s, latency_s
        self._free = Cells(cells, 1)

    def ready_ns(self, asked_ns: int, size_bytes: int) -> int:
        """Return when a file that was asked for at `asked_ns` has come (CLOCK_MONOTONIC), and keep its turn."""
        with self._free.locked() as free:
            begin = max(asked_ns, int(free[0]))
            free[0] = begin + round(size_bytes / self.bytes_per_s * 1e9)
            return int(free[0]) + round(self.latency_s * 1e9)


class Throttled:
    """A source read through a throttle; what the source itself takes is part of the wait, not on top of it."""

    def __init__(self, source: Source, throttle: Throttle) -> None:
        self.source, self.throttle = source, throttle

    def __len__(self) -> int:
        return len(self.source)

    def read(self, item: int) -> bytes:
        """Return the sample when its turn has come."""
        asked = monotonic_ns()
        data = self.source.read(item)
        left = self.throttle.ready_ns(asked, len(data)) - monotonic_ns()
        if left > 0:
            sleep(left * 1e-9)
        return data
