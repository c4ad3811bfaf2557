"""What the controllers share that go from a theta to its neighbours (arXiv 1910.00189, section 7)."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from sim.decentralized.controllers.base import Controller
from sim.decentralized.objective import Objective, Observation

KEPT = 0.7
"""Share of an observation's weight that is left after one more, as losses drift while models learn (assumption)."""
MARGIN = 2.0
"""Assumption: a loss is sure to be borne if it is also with so many standard errors more."""
FALLING = 0.95
"""Assumption: a loss falls of which no more than so much is left at the next observation."""


class Climbing(Controller):
    """Trains with a theta, then with a neighbour to see whether it is better, and remembers both.

    A theta that loses more than is borne is worse than any that does not, whatever the objective says: from there the
    way leads to less loss, which on the list is to more traffic, unless what it loses is falling as models learn.
    `home` is the theta from which neighbours are tried.
    """

    def __init__(self, thetas: Sequence[float], objective: Objective, seed: int = 0, first: int = 0) -> None:
        super().__init__(thetas, objective, seed, first)
        self.home, self.count = first, 0
        self.random = np.random.default_rng(seed)
        self._seen: dict[int, _Memory] = {}
        self._tries: dict[int, int] = {}

    @property
    def settled(self) -> float:
        """The theta to end with: the home if its loss is sure to be borne, else the next that sends more."""
        return self.thetas[self.home if self._sure() else max(0, self.home - 1)]

    def observe(self, seen: Observation) -> float:
        """Return the theta to go on with: a neighbour's that is to be tried, or the best known one."""
        self.count += 1
        self._seen.setdefault(self.at, _Memory()).add(self.count, seen)
        if self.at != self.home:
            self._tries[self.at] = self._tries.get(self.at, 0) + 1
        if self.bearable(self.at):
            if self.at != self.home and self.accepts(self.at):
                self.home = self.at
            self.at = self.tried()
        elif self.at != self.home:
            self.at = self.home
        elif not self._seen[self.at].falling:
            self.home = self.at = max(0, self.at - 1)
        return self.theta

    def _sure(self) -> bool:
        """Return whether the home bears its loss, and not only by chance."""
        held = self._seen.get(self.home)
        free = sum(one.total for one in self._seen.values()) - len(self._seen)
        if held is None or free < 1:
            return False
        error = sqrt(sum(one.squares for one in self._seen.values()) / free / held.effective)
        return held.mean + MARGIN * error <= self.objective.tolerated

    @abstractmethod
    def accepts(self, candidate: int) -> bool:
        """Return whether a neighbour that was tried takes the place of the home; both lose no more than is borne."""

    @abstractmethod
    def tried(self) -> int:
        """Return what to train with next: a neighbour of the home, or the home."""

    def remembered(self, index: int) -> Observation:
        """Return what is remembered of a theta: its mean loss, the newest with most weight, and its latest traffic.

        Losses are noisy; traffic is not, and Gaia's falls as models learn.
        """
        return replace(self._seen[index].latest, accuracy_loss=self._seen[index].mean)

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
        """Return whether what was worse is to be tried once more: after one observation, then after twice as many."""
        return self.count - self._seen[index].last >= 1 << max(0, self._tries.get(index, 0) - 1)


class _Memory:
    """Observations of one theta, whose weight falls by `KEPT` with every observation of any.

    `mean` accuracy loss, `squares` of losses about it, `total` of weights; `falling`: whether the `latest` loss is less
    than the one before, as the first one always is.
    """

    latest: Observation

    def __init__(self) -> None:
        self.last, self.mean, self.squares, self.total, self._of_weights = 0, 0.0, 0.0, 0.0, 0.0
        self.falling = True

    def add(self, count: int, seen: Observation) -> None:
        """Remember observation number `count`."""
        self.falling = not self.last or seen.accuracy_loss < FALLING * self.latest.accuracy_loss
        fade = KEPT ** (count - self.last)
        self.latest, self.last = seen, count
        self.total, self._of_weights = fade * self.total + 1, fade**2 * self._of_weights + 1
        off = seen.accuracy_loss - self.mean
        self.mean += off / self.total
        self.squares = fade * self.squares + off**2 * (1 - 1 / self.total)

    @property
    def effective(self) -> float:
        """As many observations of equal weight have a mean as sure as this one."""
        return self.total**2 / self._of_weights
