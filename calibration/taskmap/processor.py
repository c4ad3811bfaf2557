"""What the space of schedules and their costs rest on: the processor's vectors, registers and caches."""

import platform
from dataclasses import dataclass
from os import cpu_count

from calibration.host import cache_bytes, first_processor

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
    return Processor(cpu_count() or 1, lanes, registers, cache_bytes().get("index2", 2**18))


def _flags() -> set[str]:
    """Return the names of the processor's instruction sets."""
    if platform.machine() == "arm64":  # where the system has no file of them
        return {"asimd"}
    told = first_processor()
    return set(told.get("flags", told.get("Features", "")).split())
