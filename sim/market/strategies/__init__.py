"""Strategies of renting by name; a line in `STRATEGIES` adds one."""

from collections.abc import Mapping

from sim.market.strategies.base import Strategy
from sim.market.strategies.dynamic import Dynamic, UniformProgress
from sim.market.strategies.study import (
    Baseline,
    BaselineWorst,
    GpuType,
    MultiCloud,
    Packed,
    Preemption,
    PreemptionDataMovement,
)
from sim.specs.fields import InputError

_ALL: tuple[type[Strategy], ...] = (
    BaselineWorst,
    Baseline,
    GpuType,
    Packed,
    MultiCloud,
    Preemption,
    PreemptionDataMovement,
    Dynamic,
    UniformProgress,
)
STRATEGIES: Mapping[str, type[Strategy]] = {kind.name: kind for kind in _ALL}


def strategy(name: str, **options: object) -> Strategy:
    """Return a new strategy; `options` are those of its class. Raises InputError."""
    if name not in STRATEGIES:
        raise InputError("strategy", name, f"one of {', '.join(STRATEGIES)}")
    try:
        return STRATEGIES[name](**options)
    except TypeError as error:
        raise InputError(f"strategy.{name}", sorted(options), "options that the strategy has") from error
