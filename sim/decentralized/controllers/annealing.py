"""Simulated annealing: also to what is worse, the less likely the worse it is and the longer it lasts."""

from collections.abc import Sequence
from math import exp

from sim.decentralized.controllers.climbing import Climbing
from sim.decentralized.objective import Objective

HOT, COOLING, COLD = 0.5, 0.7, 0.02
"""Temperatures as shares of the first home's objective: at first, times so much an observation, and when it is over:
after ten observations (assumptions)."""


class Annealing(Climbing):
    """Tries any neighbour while it is hot; cold, it goes to the best known theta and climbs from there."""

    name = "annealing"

    def __init__(self, thetas: Sequence[float], objective: Objective, seed: int = 0, first: int = 0) -> None:
        super().__init__(thetas, objective, seed, first)
        self._scale: float | None = None

    @property
    def share(self) -> float:
        """The temperature as a share of the objective with which it began."""
        return HOT * COOLING**self.count

    def accepts(self, candidate: int) -> bool:
        """Return whether the neighbour takes the place: if it is better, and by chance if it is not."""
        if self.better(candidate):
            return True
        worse = self.value(candidate) - self.value(self.home)
        heat = self.share * (self._scale or 1.0)
        return self.share > COLD and bool(self.random.random() < exp(-worse / heat))

    def tried(self) -> int:
        """Return a neighbour by chance, at last the best known theta or what may be better beside it."""
        if self._scale is None:
            self._scale = self.value(self.home) or 1.0
        if self.share > COLD:
            near = [n for n in (self.home - 1, self.home + 1) if 0 <= n < len(self.thetas)]
            return int(self.random.choice([n for n in near if self.bearable(n)] or [self.home]))
        known = [n for n in self._seen if self.bearable(n)]
        self.home = min(known, key=self.value)
        return min(self.open_to_trial(), default=self.home, key=lambda n: not self.better(n))
