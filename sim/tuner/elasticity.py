"""What faster hardware would buy: d log(step time) / d log(parameter) of a plan, for everything that a user can buy."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sim.costs.layers.structure import Structure
from sim.costs.profile import ATTENTION, MATRIX, OF_MEMORY
from sim.engine.sensitivity import MODELS, log_rates, models_of, times_with
from sim.engine.step import Step
from sim.specs import InputError
from sim.specs.arguments import checked

CHANGE = 0.1
"""Relative change of a parameter whose effect a tornado figure shows, where nobody asks for another."""

LARGEST = 9.0


@dataclass(frozen=True)
class Parameter:
    """A number of the hardware: what it is called, which symbols of the costs are in proportion to it (exact names, or
    ends of names that start with _), and whether it is a time (less is faster) or a rate."""

    title: str
    symbols: tuple[str, ...]
    is_time: bool = False


PARAMETERS: Mapping[str, Parameter] = {
    "matrix_flop_per_s": Parameter("FLOP/s of matrix products", MATRIX),
    "attention_flop_per_s": Parameter("FLOP/s of attention", ATTENTION),
    "memory_bytes_per_s": Parameter("memory bandwidth", (OF_MEMORY,)),
    "intra_bytes_per_s": Parameter("links inside a node", ("intra_bytes_per_s",)),
    "inter_bytes_per_s_per_node": Parameter("network between nodes", ("inter_bytes_per_s_per_node",)),
    "host_bytes_per_s": Parameter("host link", ("host_bytes_per_s",)),
    "link_latency_s": Parameter(
        "latency of links", ("intra_alpha", "intra_alpha_rank", "inter_alpha", "intra_fill_s"), is_time=True
    ),
    "launch_s": Parameter(
        "launching of kernels", ("_t0", "_serial", "host_s_per_launch", "issue_s", "_issue_s"), is_time=True
    ),
    "step_overhead_s": Parameter("fixed part of a step", ("step_overhead_s",), is_time=True),
}  # fmt: skip
"""Every rate and every time that the costs depend on: all rates times k and all times over k make a step k times as
fast, so that the elasticities of times less those of rates add up to 1 (Euler's theorem)."""


@dataclass(frozen=True)
class Elasticity:
    """How a step's time depends on one parameter.

    elasticity: d log(step time) / d log(parameter), negative for rates; better_s, worse_s: the step time with the
    parameter better and worse by `change`, evaluated again.
    """

    name: str
    title: str
    elasticity: float
    better_s: float
    worse_s: float
    is_time: bool
    change: float = CHANGE


def parameter_of(symbol: str) -> str | None:
    """Return the parameter of `PARAMETERS` that a symbol of the costs is in proportion to, or None."""
    for name, parameter in PARAMETERS.items():
        if any(symbol == s or (s.startswith("_") and symbol.endswith(s)) for s in parameter.symbols):
            return name
    return None


@checked
def elasticities(step: Step, change: float = CHANGE) -> tuple[Elasticity, ...]:
    """Return the elasticities of a step's time by the path engine, the largest effect first.

    change: by how much better and worse each parameter is evaluated again; 0.1: a rate times and over 1.1.

    Raises:
        InputError: a change that is none.
    """
    if not 0 < change <= LARGEST:
        raise InputError("change", change, f"more than 0, at most {LARGEST:g}")
    found = log_rates(step, parameter_of, tuple(PARAMETERS))
    times = times_with(step, _factors(Structure.of(step.model), models_of(step), change))
    made = [
        Elasticity(name, p.title, found[name], float(times[2 * i]), float(times[2 * i + 1]), p.is_time, change)
        for i, (name, p) in enumerate(PARAMETERS.items())
    ]
    return tuple(sorted(made, key=lambda e: -abs(e.elasticity)))


@lru_cache(maxsize=16)
def _factors(structure: Structure, kinds: tuple[str, ...], change: float) -> Mapping[str, NDArray[np.float64]]:
    """Return the factors on symbols of these models that make each parameter in turn better, then worse by `change`."""
    factors: dict[str, NDArray[np.float64]] = {}
    for symbol in {name for kind in kinds for name in MODELS[kind](structure).symbols}:
        for i, (name, parameter) in enumerate(PARAMETERS.items()):
            if parameter_of(symbol) == name:
                better = np.ones(2 * len(PARAMETERS))
                better[2 * i : 2 * i + 2] = 1 + change, 1 / (1 + change)
                factors[symbol] = 1 / better if parameter.is_time else better
    return factors
