"""Functions compiled to machine code, which is kept for later runs where a place for it can be written."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[F], F]:
    """Return numba's `njit` with these options.

    Its code is kept beside the source or in the user's cache; where neither can be written, for this process alone.
    """

    def made(function: F) -> F:
        try:
            kept: F = njit(cache=True, **options)(function)
        except RuntimeError:  # numba found no such place
            kept = njit(**options)(function)
        return kept

    return made
