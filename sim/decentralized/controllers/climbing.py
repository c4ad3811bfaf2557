"""What the controllers share that go from a theta to its neighbours (arXiv 1910.00189, section 7)."""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence

import numpy as np

from sim.decentralized.controllers.base import Controller
from sim.decentralized.objective import Objective, Observation

REMEMBERED = 8
"""Observations of a theta of which the mean counts: accuracy loss drifts while training goes on (assumption)."""
AGAIN = 4
"""Assumption: after so many observations a looser theta that was worse is tried once more, then after twice as many."""


class Climbing(Controller):
    """Trains with a theta, then with a neighbour to see whether it is better, and remembers both.

    A theta that loses more than is borne is worse than any that does not, whatever the objective says: from there the
    way leads to less loss, which on the list is to more traffic. `home` is the theta from which neighbours are tried.
    """

    def __init__(self, thetas: Sequence[float], objective: Objective, seed: int = 0, first: int = 0) -> None:
        super().__init__(thetas, objective, seed, first)
        self.home, self.count = first, 0
        self.random = np.random.default_rng(seed)
        self._seen: dict[int, deque[Observation]] = {}
        self._tries: dict[int, int] = {}
        self._last: dict[int, int] = {}

    @property
    def settled(self) -> float:
        """The theta that is kept: the best known one, also while a neighbour is tried."""
        return self.thetas[self.home]

    def observe(self, seen: Observation) -> float:
        """Return the theta to go on with: a neighbour's that is to be tried, or the best known one."""
        self.count += 1
        self._seen.setdefault(self.at, deque(maxlen=REMEMBERED)).append(seen)
        self._last[self.at] = self.count
        if self.at != self.home:
            self._tries[self.at] = self._tries.get(self.at, 0) + 1
        if self.bearable(self.at):
            if self.at != self.home and self.accepts(self.at):
                self.home = self.at
            self.at = self.tried()
        else:
            self.home = self.at = max(0, self.at - 1) if self.at == self.home else self.home
        return self.theta

    @abstractmethod
    def accepts(self, candidate: int) -> bool:
        """Return whether a neighbour that was tried takes the place of the home; both lose no more than is borne."""

    @abstractmethod
    def tried(self) -> int:
        """Return what to train with next: a neighbour of the home, or the home."""

    def remembered(self, index: int) -> Observation:
        """Return the mean of what is remembered of a theta."""
        seen = self._seen[index]
        rows = [(one.accuracy_loss, one.sent_bytes, one.model_bytes) for one in seen]
        return Observation(self.thetas[index], *(float(mean) for mean in np.mean(rows, axis=0)))

    def value(self, index: int) -> float:
        """Return the objective of what is remembered of a theta: of the mean, as one bad draw is not a loss."""
        return self.objective.value(self.remembered(index))

    def bearable(self, index: int) -> bool:
        """Return whether a theta loses no more than is borne, in the mean of what is remembered (nothing: it does)."""
        return index not in self._seen or self.remembered(index).accuracy_loss <= self.objective.tolerated

    def better(self, index: int) -> bool:
        """Return whether a neighbour of the home is known to be better."""
        return index in self._seen and self.bearable(index) and self.value(index) < self.value(self.home)

    def open_to_trial(self) -> list[int]:
        """Return the neighbours of the home that are unknown, known to be better, or due again; the looser first."""
        found = [n for n in (self.home + 1, self.home - 1) if 0 <= n < len(self.thetas)]
        return [n for n in found if n not in self._seen or self.better(n) or (n > self.home and self._due(n))]

    def _due(self, index: int) -> bool:
        return self.count - self._last[index] >= AGAIN << (self._tries.get(index, 1) - 1)
