"""Functions compiled to machine code, which is kept for later runs where a place for it can be written.

Code that is kept is made anew when the file of the function that Python calls has changed, and not when one that it
calls from here has: whoever changes `sort` or `those` touches the files that use them.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property, update_wrapper
from hashlib import sha256
from importlib import import_module
from logging import getLogger
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

PATIENCE = 50_000
"""Operations that Python works through in half of the second that it takes to load a first compiled function."""

SUM_BYTES = sha256().digest_size

SILENT_S = 2.0
"""Seconds that compiling may take before it is told."""


class _Compiling:
    """Listens to numba: tells who waits at a terminal that a first run takes longer because it compiles, as a warning
    of `sim.engine.compiled`."""

    def __init__(self) -> None:
        self.depth, self.timer = 0, Timer(0, print)

    def notify(self, event: Any) -> None:
        """Take note that a function begins or ends to be compiled, for which it waits for those that it calls."""
        self.depth += 1 if event.is_start else -1
        if not self.depth:
            self.timer.cancel()
        elif event.is_start and self.depth == 1 and _at_terminal():
            place = event.data["dispatcher"].stats.cache_path
            kept = f"later runs find it in {place}" if place else "again in every run: no folder for it can be written"
            self.timer = Timer(SILENT_S, getLogger(__name__).warning, ["compiling, for this run first: %s", kept])
            self.timer.daemon = True
            self.timer.start()


def _at_terminal() -> bool:
    """Return whether errors go to a terminal: what a notebook prints is stored with it."""
    stream = sys.__stderr__
    return stream is not None and sys.stderr is stream and stream.isatty()


@cache
def _numba() -> Any:
    """Return numba, which tells when it compiles for long."""
    events = import_module("numba.core.event")
    events.Listener.register(_Compiling)
    events.register("numba:compile", _Compiling())
    return import_module("numba")


@cache
def _keeper() -> Any:
    """Return numba's store of a function's code, but one whose folder cannot be written or read ends no run, and of
    which a damaged file is written anew."""
    caching = import_module("numba.core.caching")

    class Whole(caching.IndexDataCacheFile):  # type: ignore[misc, name-defined]
        """Files that end in their checksum: what is read is run, and pickle stops before the end."""

        def _dump(self, made: Any) -> bytes:
            written: bytes = super()._dump(made)
            return written + sha256(written).digest()

        def _load_index(self) -> Any:
            try:
                return super()._load_index()
            except OSError:
                raise
            except Exception:  # there is none that a damaged pickle cannot raise
                return {}

        def _load_data(self, name: str) -> Any:
            held = Path(self._data_path(name)).read_bytes()
            if sha256(held[:-SUM_BYTES]).digest() != held[-SUM_BYTES:]:
                raise FileNotFoundError  # which numba makes anew
            return super()._load_data(name)

    class Kept(caching.FunctionCache):  # type: ignore[misc, name-defined]
        def __init__(self, python: Callable[..., Any]) -> None:
            super().__init__(python)
            self._cache_file = Whole(self.cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

        def load_overload(self, *asked: Any) -> Any:
            return self._tried(super().load_overload, *asked)

        def save_overload(self, *made: Any) -> None:
            self._tried(super().save_overload, *made)

        def _tried(self, act: Callable[..., Any], *given: Any) -> Any:
            try:
                return act(*given)
            except OSError as error:
                self.disable()
                _tell_once(f"compiled code is not kept in {self.cache_path}: {error.strerror or error}")

    return Kept


@cache
def _tell_once(words: str) -> None:
    getLogger(__name__).warning(words)


class Function:
    """A function that numba compiles when it is first called, as `numba.njit` with `options`.

    Its code is kept beside the source or in the user's cache; where neither can be written, or one is full, it is made
    for this process alone.
    """

    def __init__(self, python: Callable[..., Any], options: dict[str, Any]) -> None:
        self.python, self._options, self.asked = python, options, 0
        update_wrapper(self, python)

    @cached_property
    def machine(self) -> Any:
        """The compiled function."""
        made = _numba().njit(**self._options)(self.python)  # a third of a second for what a program may never call
        with suppress(RuntimeError):  # numba found no such place
            made._cache = _keeper()(self.python)
        return made

    @property
    def _numba_type_(self) -> Any:
        """What compiled functions that call this one take it for."""
        return self.machine._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        return self.machine(*arguments)


def compiled(**options: Any) -> Callable[[F], F]:
    """Return what makes a `Function` with these options."""

    def made(function: F) -> F:
        return cast(F, Function(function, options))

    return made


def inner() -> Callable[[F], F]:
    """Return `compiled` for functions that only compiled ones call: without the way in from Python, a third sooner."""
    return compiled(no_cpython_wrapper=True, no_cfunc_wrapper=True)


def soonest(function: F, operations: int) -> F:
    """Return a compiled function, or the Python of it until that has worked through `PATIENCE` operations.

    The same statements run either way; a program that asks for little never loads numba.
    """
    held = cast(Function, function)
    held.asked += operations
    return cast(F, held.python if held.asked <= PATIENCE and "machine" not in vars(held) else held.machine)


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
