"""Base of kinds without closed forms: the engine is the only judge of their length."""

from collections.abc import Callable
from typing import Any

from sim.schedules.base import Expr, ScheduleKind, Times


class OrderOnly(ScheduleKind):
    """A kind that supplies its order and nothing else."""

    def makespan(self, times: Times) -> Expr:
        raise NotImplementedError(f"{self.name} has no closed form")

    def in_flight(self, rank: Expr, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        raise NotImplementedError(f"{self.name} has no closed form")

    def of_first_chunk(self, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        raise NotImplementedError(f"{self.name} has no closed form")
