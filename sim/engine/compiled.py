"""Functions compiled to machine code, which is kept for later runs where a place for it can be written.

Code that is kept is made anew when the file of the function that Python calls has changed, and not when one that it
calls from here has: whoever changes `sort` or `those` touches the files that use them.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

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


def inner() -> Callable[[F], F]:
    """Return `compiled` for functions that only compiled ones call: without the way in from Python, a third sooner."""
    return compiled(no_cpython_wrapper=True, no_cfunc_wrapper=True)


PATIENCE = 50_000
"""Operations that Python works through in half of the second that it takes to load a first compiled function."""
_asked: Counter[Callable[..., Any]] = Counter()


def soonest(function: F, operations: int) -> F:
    """Return a compiled function, or the Python it was made of until that has worked through `PATIENCE` operations.

    The same statements run either way; a program that asks for little never loads numba's compiler.
    """
    _asked[function] += operations
    whole: Any = function
    return whole if _asked[function] > PATIENCE or whole.signatures else whole.py_func  # type: ignore[no-any-return]


@inner()
def those(flags: NDArray[Any]) -> NDArray[np.int64]:
    """Return where `flags` are not 0."""
    found, count = np.empty(len(flags), dtype=np.int64), 0
    for n in range(len(flags)):
        if flags[n]:
            found[count] = n
            count += 1
    return found[:count]


@inner()
def _before(a: int, b: int, keys: NDArray[np.float64]) -> bool:
    for k in range(keys.shape[1]):
        if keys[a, k] != keys[b, k]:
            return bool(keys[a, k] > keys[b, k])
    return False


@inner()
def sort(queue: NDArray[np.int64], count: int, keys: NDArray[np.float64]) -> None:
    """Sort the first `count` rows of a queue: largest keys (R, K) first, else as they are (merge sort)."""
    spare = np.empty(count, dtype=np.int64)
    width = 1
    while width < count:
        for low in range(0, count, 2 * width):
            middle, high = min(low + width, count), min(low + 2 * width, count)
            a, b = low, middle
            for k in range(low, high):
                if b >= high or (a < middle and not _before(queue[b], queue[a], keys)):
                    spare[k] = queue[a]
                    a += 1
                else:
                    spare[k] = queue[b]
                    b += 1
        for k in range(count):
            queue[k] = spare[k]
        width *= 2
