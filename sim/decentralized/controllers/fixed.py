"""A theta that stays: what the others are held against."""

from sim.decentralized.controllers.base import Controller
from sim.decentralized.objective import Observation


class Fixed(Controller):
    """Keeps the theta that it began with."""

    name = "fixed"

    def observe(self, seen: Observation) -> float:
        """Return the same theta again."""
        return self.theta
