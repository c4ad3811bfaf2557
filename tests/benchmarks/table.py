"""`BENCHMARKS.md`: one row a figure, each with the day and the machine on which it was last measured."""

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from calibration.host import cpu_name
from calibration.instruments import usable_cores
from sim.units import si
from tests.oracle import ROOT

PEER_SPEEDS = {"calculon": 93, "SimuMax": 15, "llm-analysis": 3_818}
"""Configurations/s of other simulators."""

FILE = ROOT / "BENCHMARKS.md"
HEAD = """# Speed and memory

`make bench` measures these and writes this table; a row keeps its day where it was not measured again. One run each, or
the best of a few: a machine shared with others is up to twice as slow on another day.

| what | measured | goal | when, on what |
|---|---|---|---|
"""


PEAK = 'next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024'
"""What a process of its own evaluates for its peak of bytes: `ru_maxrss` would be that of its parent, if larger."""


class Speed(NamedTuple):
    """A figure: its value, the unit ("/s" has a prefix), and its goal in words where it has one."""

    value: float
    unit: str
    goal: str = ""

    @property
    def text(self) -> str:
        """The figure with three digits, as the table has it."""
        return si(self.value, self.unit) if self.unit == "/s" else f"{self.value:.3g} {self.unit}"


def machine() -> str:
    """Return the day and what runs this."""
    cores = f"{usable_cores()} cores of {cpu_name()[1]}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {cores}, Python {platform.python_version()}"


def rows(text: str) -> dict[str, tuple[str, ...]]:
    """Return a table's rows by what they are about: figure, goal, when."""
    lines = (line for line in text.splitlines() if line.startswith("| "))
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {what: tuple(rest) for what, *rest in found if what != "what"}


def merged(text: str, speeds: Mapping[str, Speed], when: str) -> str:
    """Return the table with the rows of `speeds` measured `when`, the others as they were."""
    held = rows(text) | {what: (one.text, one.goal, when) for what, one in speeds.items()}
    peers = ", ".join(f"{name} {value:,.0f}" for name, value in PEER_SPEEDS.items())
    lines = "".join(f"| {what} | {' | '.join(held[what])} |\n" for what in sorted(held))
    return f"{HEAD}{lines}\nOthers, configurations/s: {peers}.\n"
