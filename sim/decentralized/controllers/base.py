"""What moves theta."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from sim.decentralized.objective import Objective, Observation


class Controller(ABC):
    """Moves along a list of thetas, from the most traffic to the least, as observations come; one for every run.

    The real run and the simulated one ask the same object.
    """

    name: ClassVar[str]

    def __init__(self, thetas: Sequence[float], objective: Objective, seed: int = 0, first: int = 0) -> None:
        self.thetas, self.objective, self.seed, self.at = tuple(thetas), objective, seed, first

    @property
    def theta(self) -> float:
        """The theta to train with now."""
        return self.thetas[self.at]

    @property
    def settled(self) -> float:
        """The theta to end with; another than `theta` while a controller only tries that one."""
        return self.theta

    @abstractmethod
    def observe(self, seen: Observation) -> float:
        """Return the theta to go on with after a stretch of training with the one that was last returned."""
