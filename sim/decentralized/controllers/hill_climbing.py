"""Hill climbing: on while it gets better, back and the other way when it gets worse."""

from collections.abc import Sequence

from sim.decentralized.controllers.climbing import Climbing
from sim.decentralized.objective import Objective


class HillClimbing(Climbing):
    """Tries the neighbour in its direction, at first the looser one, and turns where that was worse."""

    name = "hill_climbing"

    def __init__(self, thetas: Sequence[float], objective: Objective, seed: int = 0, first: int = 0) -> None:
        super().__init__(thetas, objective, seed, first)
        self.direction = 1

    def accepts(self, candidate: int) -> bool:
        """Return whether the neighbour is better."""
        self.direction = candidate - self.home if self.better(candidate) else self.home - candidate
        return self.better(candidate)

    def tried(self) -> int:
        """Return the neighbour in its direction, else the other one, else the home."""
        return min(self.open_to_trial(), key=lambda n: (n - self.home) != self.direction, default=self.home)
