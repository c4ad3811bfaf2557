"""What nccl-tests writes with `-J FILE`, one test a file: versions 1 to 3 (NVIDIA/nccl-tests, src/util.cu).

`config` says threads a process and GPUs a thread, and its `devices` name the first rank of every process alone; a
result has the size in bytes and, `out_of_place` and `in_place`, time (us), bandwidths (GB/s) and wrong values. The
program is named in `args`. Numbers that are none are text ("nan").
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.specs.fields import InputError
from sim.specs.files import mapping_of
from sim.specs.meant import is_number

MOST_VALUES, MOST_RANKS = 1_000_000, 100_000
"""With `-I 1` a file holds the time of every iteration in every process."""
PROGRAM = re.compile(r"(?:.*[/\\])?(\w+?)_perf\w*")


@dataclass(frozen=True)
class Place:
    """A rank, its communicator and its host."""

    rank: int
    group: str
    host: str


@dataclass(frozen=True)
class Report:
    """The program without `_perf` (empty: not known), the ranks, and the sizes as a log says them.

    sizes: (where it stands, bytes, time, algbw, busbw, wrong values), as text.
    """

    name: str
    places: list[Place]
    sizes: list[tuple[str, ...]]


def is_report(text: str) -> bool:
    """Return whether text is such a file, or the begin of one that was not ended."""
    return text.lstrip().startswith("{") and '"bus_bw"' in text


def report(text: str, path: Path) -> Report:
    """Return what a file says, whose text it is.

    Raises:
        InputError: it was not ended or lacks something, or host threads were timed.
    """
    try:
        data = mapping_of(text, ".json", str(path), len(text), MOST_VALUES)
    except InputError as error:
        raise (error if error.path == str(path) else error.under(str(path))) from None
    args = data.get("args")
    program = PROGRAM.fullmatch(args[0]) if isinstance(args, list) and args and isinstance(args[0], str) else None
    rows = _part(path, data, "results", list)
    return Report(
        program[1] if program else "", _places(path, data), [_size(path, n, row) for n, row in enumerate(rows)]
    )


def _part(path: Path, held: Any, where: str, kind: type) -> Any:
    """Return what stands at the last name of a path below `held`."""
    found = held.get(where.rpartition(".")[2]) if isinstance(held, Mapping) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        names = {list: "a list", dict: "a mapping", int: "a whole number", str: "text"}
        allowed = f"{'required: ' if found is None else ''}{names[kind]}, as nccl-tests -J writes it"
        raise InputError(f"{path}: {where}", found, allowed)
    return found


def _places(path: Path, data: Mapping[str, Any]) -> list[Place]:
    config = _part(path, data, "config", dict)
    each = 1
    for name in ("nthreads", "ngpus"):
        each *= (count := _part(path, config, f"config.{name}", int))
        if not 1 <= count <= MOST_RANKS:
            raise InputError(f"{path}: config.{name}", count, f"a whole number from 1 to {MOST_RANKS}")
    devices = _part(path, config, "config.devices", list)
    if len(devices) * each > MOST_RANKS:
        raise InputError(f"{path}: config.devices", len(devices) * each, f"at most {MOST_RANKS} ranks")
    found = []
    for n, device in enumerate(devices):
        at = f"config.devices.{n}"
        first, group = (_part(path, device, f"{at}.{name}", int) for name in ("rank", "group"))
        host = _part(path, device, f"{at}.hostname", str)
        found += [Place(first + i, str(group), host) for i in range(each)]
    return found


def _size(path: Path, number: int, row: Any) -> tuple[str, ...]:
    where = f"results.{number}"
    size = _part(path, row, f"{where}.size", int)
    kind = next((name for name in ("out_of_place", "in_place") if row.get(name) is not None), "out_of_place")
    timed = _part(path, row, f"{where}.{kind}", dict)
    if "cpu_time" in timed:
        allowed = "time: a test without -C 1, which times the host's threads"
        raise InputError(f"{path}: {where}.{kind}", "cpu_time", allowed)
    wrong = timed.get("nwrong")
    told = [str(timed.get(name)) for name in ("time", "alg_bw", "bus_bw")]
    for name, value in zip(("time", "alg_bw", "bus_bw"), told, strict=True):
        if not is_number(value):
            raise InputError(f"{path}: {where}.{kind}.{name}", value, "a number, as nccl-tests -J writes it")
    return f"{path}: {where}.{kind}", str(size), *told, "N/A" if wrong is None else str(wrong)
