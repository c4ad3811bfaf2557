"""A controller that does as it was told."""

from sim.decentralized.controllers.base import Controller
from sim.decentralized.objective import Objective, Observation


class Scripted(Controller):
    """Takes the next theta of its list each time, and remembers what it saw."""

    name = "scripted"

    def __init__(self, thetas: tuple[float, ...]) -> None:
        super().__init__(thetas, Objective())
        self.seen: list[Observation] = []

    def observe(self, seen: Observation) -> float:
        self.seen.append(seen)
        self.at = min(self.at + 1, len(self.thetas) - 1)
        return self.theta
