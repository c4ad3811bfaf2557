"""Logs of nccl-tests (`all_reduce_perf`, `all_gather_perf`, ...; RCCL's rccl-tests print the same): ranks and times.

A log names its ranks and their hosts in lines that begin with `#  Rank`; every other line that is no comment is one
size: bytes, elements, type, operation and root (old versions leave these two out), then time (us), algbw, busbw (GB/s)
and wrong values out of place, and the same four in place; with `-I 1` each four are followed by shortest, longest and
99th percentile of an iteration and their spread, with rccl-tests' `-A 1` the line by algorithm, protocol and channels.
Which collective it is stands in its own line (since 2.13), in the name of the file, or follows from busbw over algbw,
2 (n - 1) / n for an all-reduce (its doc/PERFORMANCE.md).
A file may hold several such tests one after the other, what NCCL says beside them (NCCL_DEBUG), which may break a
size's line in two, and the ranks that srun and mpirun put before every line. What `-J` writes is read as well
(`calibration.nccl_json`).
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isclose
from pathlib import Path
from string import ascii_letters, digits

import numpy as np

from calibration.nccl_json import Place, is_report, report
from calibration.samples import Floats
from sim.specs.fields import InputError
from sim.specs.files import text_of
from sim.specs.meant import is_number
from sim.units import many

MOST_BYTES = 16 * 2**20
US = 1e-6
MOST_SIZE = 2**50
LEAST_US, MOST_US = 1e-3, 1e12
"""What no device sends at once or takes; beyond, a file is damaged."""
RANK = re.compile(
    r"^#\s+Rank\s+(?P<rank>\d+)\s+(?:Group\s+(?P<group>\d+)\s+)?Pid\s+\d+\s+on\s+(?P<host>\S+)\s+device\s+\d+"
)
STARTING = re.compile(r"^#\s*Collective test starting:\s*(\w+?)(?:_perf\w*)?\s*$")
"""A program may have a suffix of its own: nccl-tests built with NAME_SUFFIX=_mpi."""
HEADING = re.compile(r"^#\s+size\s+count\s+type\b.*\b(?P<time>time|cputime)\s+algbw\s+busbw\b")
LAUNCHER = re.compile(r"^(?:\s*\d+:|\[[^\]]+\]<std(?:out|err)>:)\s?")
"""What `srun --label` and `mpirun --tag-output` put before a line."""
SAID = re.compile(r":\d+:\d+ \[\d+\] NCCL ")
WHEN = re.compile(r"\[[\d :.-]{1,40}\] $")
IN_HOSTS = f"{ascii_letters}{digits}._-"
"""What NCCL says follows a host's name, in some versions a time before it."""
STAMP = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
"""When a size was timed (`-S 1`)."""
ENDED = re.compile(r"^#\s*Out of bounds values")
COLUMNS, OF_ITERATIONS = 4, 4
"""Time, algbw, busbw and wrong values; of the iterations, with -I 1: shortest, longest, 99th percentile and spread."""
CHOSEN = 3
"""Algorithm, protocol and channels."""
OPERATIONS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "sendrecv": "shift",
}  # fmt: skip
"""Programs of nccl-tests without `_perf`, and our collectives: `sendrecv` passes from every rank to the next one."""
CLOSE = 0.02
"""Bandwidths have two decimals; only those of large sizes tell a factor."""


@dataclass(frozen=True)
class Log:
    """One log: which collective, over how many ranks on how many hosts, and by size (bytes) the seconds out of place.

    sizes and seconds are of equal length; a size is what nccl-tests calls so: all bytes that are gathered, reduced or
    scattered, or that a rank sends to all.
    """

    path: Path
    operation: str
    ranks: int
    hosts: int
    sizes: Floats
    seconds: Floats


@dataclass
class _Test:
    """The lines of one test: what its own says of the collective, its ranks, its sizes by line number, its end."""

    name: str = ""
    ranks: list[Place] = field(default_factory=list)
    sizes: list[tuple[int, str]] = field(default_factory=list)
    ended: bool = False


def is_log(path: Path) -> bool:
    """Return whether a file that can be read has the heading of such a table, or is what `-J` writes."""
    try:
        text = text_of(path, MOST_BYTES)
        return is_report(text) or any(HEADING.match(line) for _, line in _lines(text))
    except InputError:
        return False


def read_logs(path: Path) -> list[Log]:
    """Read the tests of a file.

    Raises:
        InputError: of the file: it cannot be read, tells the time of host threads, names no ranks, or fewer than two,
            or one twice; its hosts or groups have different numbers of them; a line that is no size, or one that no
            device has; no size with a time; or a collective that nobody knows.
    """
    text = text_of(path, MOST_BYTES)
    if is_report(text):
        told = report(text, path)
        return [_found(path, told.name, told.places, [_timed(*size) for size in told.sizes])]
    return [_log(path, test) for test in _tests(path, text)]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line without what launchers and NCCL put before, into and between them."""
    begun = ""
    for n, line in enumerate(text.splitlines(), 1):
        own = begun + LAUNCHER.sub("", line)
        if said := SAID.search(own):
            begun = _before_host(own[: said.start()])
        else:
            begun = ""
            yield n, own


def _before_host(text: str) -> str:
    """Return what of a size stands before a host's name, which NCCL puts right behind its root."""
    size = text.rstrip(IN_HOSTS)
    dated = WHEN.sub("", size)
    if dated != size or not size.strip():
        return dated
    host = text[len(size) :]
    return size + host[: len(host) - len(host.lstrip(f"-{digits}"))]


def _tests(path: Path, text: str) -> list[_Test]:
    """Return the tests of a file: ranks that are named after sizes are another test's."""
    found, name = [_Test()], ""
    for n, line in _lines(text):
        if stated := STARTING.match(line):
            name = stated[1]
        elif rank := RANK.match(line):
            if found[-1].sizes:
                found.append(_Test())
            found[-1].name = name
            found[-1].ranks.append(Place(int(rank["rank"]), rank["group"] or "0", rank["host"]))
        elif (heading := HEADING.match(line)) and heading["time"] == "cputime":
            raise InputError(f"{path}:{n}", "cputime", "time: a test without -C 1, which times the host's threads")
        elif line.split() and _is_row(line):
            found[-1].sizes.append((n, STAMP.sub("", line)))
        elif ENDED.match(line):
            found[-1].ended = True
    return found


def _log(path: Path, test: _Test) -> Log:
    lines = test.sizes
    if not test.ended and lines and len(lines[-1][1].split()) < len(lines[0][1].split()):
        lines = lines[:-1]  # stopped in the middle of it
    return _found(path, test.name, test.ranks, [_row(path, n, line) for n, line in lines])


def _found(path: Path, name: str, places: list[Place], rows: list[tuple[float, float, float]]) -> Log:
    """Return the log of a test: size (bytes), time (s) and busbw over algbw of every row."""
    ranks, hosts = _ranks(path, places)
    best = {size: min(time for at, time, _ in rows if at == size) for size, _, _ in rows if size > 0}
    if not best:
        told = "a size of 0 bytes alone" if rows else "no size"
        raise InputError(str(path), told, "a whole log of nccl-tests: lines of size, count, type, ..., time, ...")
    operation = _operation(path, name, rows, ranks)
    sizes = np.array(sorted(best), dtype=np.float64)
    return Log(path, operation, ranks, hosts, sizes, np.array([best[size] for size in sizes]))


def _ranks(path: Path, found: list[Place]) -> tuple[int, int]:
    """Return the ranks of one group and the hosts that they are on."""
    built = "the lines '#  Rank  0 ... on HOST device  0 ...' of two or more in one test (nccl-tests built with MPI=1)"
    again = [rank for rank, times in Counter(place.rank for place in found).items() if times > 1]
    if again:
        raise InputError(str(path), f"rank {again[0]} twice in one test", built)
    groups = {place.group: Counter[str]() for place in found}
    for place in found:
        groups[place.group][place.host] += 1
    shapes = {tuple(sorted(of.values())) for of in groups.values()}
    if len(shapes) > 1 or any(len({*shape}) > 1 for shape in shapes):
        told = ", ".join(" + ".join(map(str, shape)) for shape in sorted(shapes))
        raise InputError(str(path), f"{told} ranks", "as many ranks on every host, and in every group")
    (shape,) = shapes or {()}
    if sum(shape) < 2:
        raise InputError(str(path), many(sum(shape), "rank"), built)
    return sum(shape), len(shape)


def _is_row(line: str) -> bool:
    """A size begins with its bytes; what launchers and NCCL print between them does not."""
    return line.split(maxsplit=1)[0].removeprefix("-").isdecimal() and len(line.split()) > COLUMNS + 2


def _row(path: Path, number: int, line: str) -> tuple[float, float, float]:
    """Return a line's size (bytes), time (s) and busbw over algbw (0: not to be told)."""
    size, _, _, *rest = line.split()
    if not is_number(rest[0]):
        rest = rest[1:]  # the reduction
    if not is_number(rest[-CHOSEN]):
        rest = rest[:-CHOSEN]
    if len(rest) in (COLUMNS + 1, 2 * COLUMNS + 1, 2 * (COLUMNS + OF_ITERATIONS) + 1):
        rest = rest[1:]  # the root
    if len(rest) not in (COLUMNS, 2 * COLUMNS, 2 * (COLUMNS + OF_ITERATIONS)) or not all(map(is_number, rest[:3])):
        allowed = "size, count, type, redop, root, time, algbw, busbw, #wrong (twice) as nccl-tests prints them"
        raise InputError(f"{path}:{number}", " ".join(line.split())[:80], allowed)
    return _timed(f"{path}:{number}", size, *rest[:4])


def _timed(place: str, size: str, time: str, alg_bw: str, bus_bw: str, wrong: str) -> tuple[float, float, float]:
    """Return what is read at a place of a file: size (bytes), time (s) and busbw over algbw (0: not to be told)."""
    held, microseconds, algbw, busbw = map(float, (size, time, alg_bw, bus_bw))
    if not 0 <= held <= MOST_SIZE:
        raise InputError(place, f"{size[:40]} bytes", f"a size from 0 to {MOST_SIZE} bytes")
    if not LEAST_US <= microseconds <= MOST_US:
        raise InputError(place, time, f"a time above 0 (us), from {LEAST_US:g} to {MOST_US:g}")
    if wrong != "N/A" and not (is_number(wrong) and float(wrong) < 1):  # old versions: the largest error
        raise InputError(place, f"{wrong} wrong values", "0: results that are right, or N/A: not checked")
    return held, microseconds * US, busbw / algbw if algbw >= 1 else 0.0


def _factor(operation: str, ranks: int) -> float:
    """Return busbw over algbw as nccl-tests defines it."""
    shares = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
    return shares[operation] * (ranks - 1) / ranks if operation in shares else 1.0


def _operation(path: Path, stated: str, rows: list[tuple[float, float, float]], ranks: int) -> str:
    """Return which collective a log is of; where its bandwidths can say so, they have to agree."""
    factor = next((factor for _, _, factor in reversed(rows) if factor), 0.0)
    name = stated or next((n for n in OPERATIONS if n in _plain(path)), "")
    if not name and isclose(factor, _factor("all_reduce", ranks), rel_tol=CLOSE) and ranks > 2:
        name = "all_reduce"
    if name not in OPERATIONS:
        told = name or "neither its text nor its name says of which collective"
        raise InputError(str(path), told, f"one of {', '.join(OPERATIONS)} (in the name of the file)")
    found = OPERATIONS[name]
    if factor and not isclose(factor, _factor(found, ranks), rel_tol=CLOSE):
        told = f"{name} of {ranks} ranks with busbw {factor:.3g} times algbw"
        raise InputError(
            str(path), told, f"{_factor(found, ranks):.3g} times: a log of that collective and of all ranks"
        )
    return found


def _plain(path: Path) -> str:
    """Return the file's name as the programs are spelt: AllReduce, all-reduce and allreduce are all_reduce."""
    name = re.sub(r"[^a-z]", "", path.name.lower())
    for program in OPERATIONS:
        name = name.replace(program.replace("_", ""), program)
    return name
