"""Ctrl-C during work whose first results are worth having."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")
GRACE_S = 1.0
"""Seconds that may still be spent on telling what was found."""


@dataclass
class Stop:
    """The first Ctrl-C ends what can be left out, and all that follows is left out as well; a second one is raised.

    left_out: what that was, in words, in the order in which it would have been done.
    """

    left_out: list[str] = field(default_factory=list)
    until: float = 0.0

    @property
    def pressed(self) -> bool:
        """Whether something was stopped by hand."""
        return bool(self.left_out)

    @property
    def late(self) -> bool:
        """Whether the grace after that is over."""
        return self.pressed and perf_counter() > self.until

    def press(self, what: str) -> None:
        """Note that an interruption leaves out `what`.

        Raises:
            KeyboardInterrupt: it is the second one.
        """
        if self.pressed:
            raise KeyboardInterrupt
        self.left_out.append(what)
        self.until = perf_counter() + GRACE_S

    def unless(self, what: str, make: Callable[[], T], otherwise: U) -> T | U:
        """Return what `make` does, called `what`; or `otherwise`, where that is interrupted or anything was before."""
        if not self.pressed:
            try:
                return make()
            except KeyboardInterrupt:
                self.press(what)
        elif what not in self.left_out:
            self.left_out.append(what)
        return otherwise
