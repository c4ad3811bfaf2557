"""What the readers of published measurements fill: samples by device and kernel, collectives, peaks.

Samples keep the device name of their file.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from calibration.contention import Together
from calibration.samples import Floats, Samples
from sim.specs.fields import InputError

Row = Mapping[str, str]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class AllReduce:
    """Measured all-reduces of `size` bytes over `n` ranks, `n_in` of them in each of `n_out` nodes."""

    device: str
    n: Floats
    n_in: Floats
    n_out: Floats
    size: Floats
    seconds: Floats
    source: str

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass
class Public:
    """What a set of files holds: `peaks` in FLOP/s, `bus` in bytes/s, `set_aside` {file: why}."""

    samples: dict[tuple[str, str, str], Samples] = field(default_factory=dict)
    reduces: dict[str, AllReduce] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    bus: dict[str, float] = field(default_factory=dict)
    together: list[Together] = field(default_factory=list)
    set_aside: dict[str, str] = field(default_factory=dict)
    formats: set[str] = field(default_factory=set)

    def of(self, device: str, op: str, direction: str) -> Samples:
        """Return the samples of a device of the files; raises InputError if there are none."""
        return self._held(self.samples, (device, op, direction), f"samples of {op} {direction} on {device}")

    def keep(self, found: AllReduce) -> None:
        """Add all-reduces; raises InputError where another table has some of that name."""
        if found.device in self.reduces:
            raise InputError("--from", f"all-reduces of {found.device} in two files", "each device's in one file")
        self.reduces[found.device] = found

    def all_reduce(self, name: str) -> AllReduce:
        """Return the all-reduces of `name`; raises InputError if there are none."""
        return self._held(self.reduces, name, f"all-reduce times of {name}")

    def bandwidth(self, name: str) -> float:
        """Return the bus bandwidth `name` in bytes/s; raises InputError if there is none."""
        return self._held(self.bus, name, f"a bus bandwidth of {name}")

    def peak(self, name: str) -> float:
        """Return the measured matmul peak `name` in FLOP/s; raises InputError if there is none."""
        return self._held(self.peaks, name, f"the measured matmul peak of {name}")

    def _held(self, table: Mapping[K, V], key: K, what: str) -> V:
        if key not in table:
            raise InputError("--from", sorted(self.formats), f"files with {what} too")
        return table[key]


@dataclass(frozen=True)
class Format:
    """A known file: its header, and how its rows are added (None: not used, `why` says why)."""

    name: str
    header: str
    add: Callable[[Public, Sequence[Row]], None] | None
    why: str = ""


class Collector:
    """Gathers rows into `Samples`, one per (device, op, direction)."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], list[tuple[dict[str, float], float, str]]] = defaultdict(list)
        self._source: dict[tuple[str, str, str], str] = {}

    def add(
        self, key: tuple[str, str, str], inputs: dict[str, float], seconds: float, family: str, source: str
    ) -> None:
        self._rows[key].append((inputs, seconds, family))
        self._source.setdefault(key, source)

    def into(self, public: Public) -> None:
        for key, rows in self._rows.items():
            if key in public.samples:  # whichever came last would count alone
                device, op, direction = key
                raise InputError("--from", f"{op} {direction} on {device} in two files", "each kernel in one file")
            inputs = {name: np.array([r[0][name] for r in rows]) for name in rows[0][0]}
            seconds = np.array([r[1] for r in rows])
            public.samples[key] = Samples(*key, inputs, seconds, tuple(r[2] for r in rows), self._source[key])


def number(row: Row, column: str) -> float:
    """Return the positive number in `column`; raises InputError naming file and line."""
    try:
        value = float(row[column])
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise InputError(f"{row['']}.{column}", row[column], "a positive number")
    return value
