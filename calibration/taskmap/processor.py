"""What the space of schedules and their costs rest on: the processor's vectors, registers and caches."""

import platform
import re
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path

UNITS = {"K": 2**10, "M": 2**20}
SETS = {"avx512f": (16, 32), "avx2": (8, 16), "asimd": (4, 32)}
"""Lanes of fp32 and vector registers of instruction sets, the widest first (Intel's and Arm's architecture manuals)."""


@dataclass(frozen=True)
class Processor:
    """One host processor.

    lanes: fp32 numbers of a vector; registers: vectors. products, loads: vector instructions started in a cycle;
    latency: cycles until a product's sum can be added to (two, two and four on server cores since 2015; Agner Fog,
    Instruction tables). cache_bytes: of one core's own last cache.
    """

    cores: int
    lanes: int
    registers: int
    cache_bytes: int
    products: int = 2
    loads: int = 2
    latency: int = 4


def processor() -> Processor:
    """Return this machine; what the system does not say is taken as small."""
    lanes, registers = next((SETS[name] for name in SETS if name in _flags()), (4, 16))
    return Processor(cpu_count() or 1, lanes, registers, _cache())


def _flags() -> set[str]:
    """Return the names of the processor's instruction sets."""
    if platform.machine() == "arm64":  # where the system has no file of them
        return {"asimd"}
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return set()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return set(found[1].split()) if found else set()


def _cache() -> int:
    """Return the bytes of a core's second-level cache."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text("utf-8").strip()
    except OSError:
        return 2**18
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)
