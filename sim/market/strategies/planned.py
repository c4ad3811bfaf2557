"""A plan that was made with hindsight."""

from collections.abc import Sequence

from sim.market.strategies.base import Seen
from sim.market.strategies.dynamic import Dynamic


class Planned(Dynamic):
    """Holds what it is told step by step, and what is cheapest when that has ended."""

    name = "hindsight"

    def __init__(self, first: int, choices: Sequence[int]) -> None:
        self.first, self.choices = first, choices

    def choose(self, seen: Seen) -> int:
        """Return the offer of the plan."""
        at = seen.step - self.first
        return self.choices[at] if at < len(self.choices) else super().choose(seen)
