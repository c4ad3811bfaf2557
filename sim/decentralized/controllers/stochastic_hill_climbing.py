"""Stochastic hill climbing: one of the neighbours by chance, the likelier the better it is."""

import numpy as np

from sim.decentralized.controllers.climbing import Climbing


class StochasticHillClimbing(Climbing):
    """Draws among unknown neighbours, and of known better ones in proportion to how much better they are."""

    name = "stochastic_hill_climbing"

    def accepts(self, candidate: int) -> bool:
        """Return whether the neighbour is better."""
        return self.better(candidate)

    def tried(self) -> int:
        """Return a neighbour by chance, or the home where none can be better."""
        found = self.open_to_trial()
        if not found:
            return self.home
        gains = np.array([self.value(self.home) - self.value(n) if self.better(n) else 0.0 for n in found])
        weights = np.where(gains > 0, gains, gains.max() or 1.0)  # what is unknown may be as good as the best known
        return int(self.random.choice(found, p=weights / weights.sum()))
