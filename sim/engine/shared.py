"""What several processes use at once: the bandwidth of storage, the cores of a node."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil
from typing import Any

import simpy

ROUNDING = 1e-12
"""Share of all that was served below which what remains for a user is rounding."""


class Shared:
    """`capacity` a second, divided equally among its users, each of whom takes `most` at most.

    Bandwidth: capacity in bytes/s, and one user may take it all. Cores: capacity in cores, a user takes one, and while
    there are more users than cores `loss`, a share of them, is lost. The clock counts ticks of 1 ns.
    """

    def __init__(self, env: simpy.Environment, capacity: float, most: float | None = None, loss: float = 0.0) -> None:
        self.env, self.capacity, self.most = env, capacity, capacity if most is None else most
        self.loss = loss
        self._users: list[tuple[float, int, Callable[[], Any]]] = []
        self._served = 0.0
        """What one user that was always there would have been given."""
        self._since = env.now
        self._count = self._stamp = 0

    @property
    def rate(self) -> float:
        """What each user gets a second."""
        turns = self.capacity / max(1, len(self._users))
        return self.most if turns >= self.most else turns * (1 - self.loss)

    def use(self, amount: float) -> simpy.Event:
        """Return an event that happens when a new user has been given `amount`; nothing takes no time."""
        done = self.env.event()
        if amount <= 0:
            done.succeed()
            return done
        self._advance()
        self._count += 1
        heappush(self._users, (self._served + amount, self._count, done.succeed))
        self._wake()
        return done

    def resize(self, capacity: float) -> None:
        """Change the capacity from now on, as when somebody outside takes a share of it."""
        self._advance()
        self.capacity = capacity
        self._wake()

    def _advance(self) -> None:
        now = self.env.now
        if self._users:
            self._served += (now - self._since) * 1e-9 * self.rate
        self._since = now

    def _wake(self) -> None:
        self._stamp += 1
        if not self._users:
            self._served = 0.0  # so that long runs lose no digits
            return
        stamp, end = self._stamp, self._users[0][0]
        left = max(0.0, end * (1 - ROUNDING) - self._served)
        timeout = self.env.timeout(ceil(left / self.rate * 1e9))
        timeout.callbacks.append(lambda _: self._finish() if self._stamp == stamp else None)

    def _finish(self) -> None:
        self._advance()
        done = []
        while self._users and self._users[0][0] * (1 - ROUNDING) <= self._served:
            done.append(heappop(self._users)[2])
        self._wake()
        for then in done:
            then()
