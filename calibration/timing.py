"""How one kernel is timed: warm-ups, launches per sample, rotating inputs, and the statistic that is kept."""

import gc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from math import ceil
from typing import Any, Literal

import numpy as np

from calibration.instruments import Stopwatch
from calibration.kernels.family import Work


@dataclass(frozen=True)
class Method:
    """At least `samples` samples of at least `sample_s` each, and `total_s` together, after `warmups`.

    A GPU's time is the median (its clock moves both ways), a CPU's the minimum (whatever else runs only adds).
    """

    samples: int
    statistic: Literal["median", "min"]
    sample_s: float = 1e-3
    total_s: float = 0.05
    warmups: int = 3
    batch_s: float = 0.5
    """Seconds of cases between two readings of the sentinel: what a neighbour on the same host disturbs lasts as long;
    on a GPU of one's own the sentinel waits for the clocks to come back, and is read less often."""
    captured_below_s: float = 0.0
    """Calls that are shorter are issued once, recorded and replayed (a CUDA graph): issuing them one by one takes
    longer than they do, and what that costs is measured by itself."""

    @property
    def text(self) -> str:
        """The method in words, as a session records it."""
        return (
            f"{self.statistic} of at least {self.samples} samples of at least {self.sample_s:g} s each, after "
            f"{self.warmups} warm-ups, rotating over inputs and results; shapes in seeded random order"
            + (f"; calls below {self.captured_below_s:g} s replayed as a graph" if self.captured_below_s else "")
        )


CAPTURED_BELOW_S = 5e-4
METHODS = {
    "cpu": Method(samples=25, statistic="min"),
    "cuda": Method(samples=20, statistic="median", total_s=0.025, batch_s=1.5, captured_below_s=CAPTURED_BELOW_S),
}
MOST_LAUNCHES = 100_000
MOST_SAMPLES = 200


@dataclass(frozen=True)
class Timing:
    """Seconds of one kernel call: `t_s` is the method's statistic over `n` samples of `launches` launches."""

    t_s: float
    t_min_s: float
    t_p10_s: float
    t_p90_s: float
    n: int
    launches: int


class TooLongError(Exception):
    """The samples would take `needed_s`, longer than what is left."""

    def __init__(self, needed_s: float, left_s: float) -> None:
        self.needed_s = needed_s
        super().__init__(f"needs about {needed_s:.3g} s, {left_s:.3g} s are left")


def timed(work: Work, method: Method, stopwatch: Stopwatch, left_s: float = float("inf")) -> Timing:
    """Return the seconds of one kernel call of `work`.

    Raises:
        TooLongError: after the warm-ups, when the samples would take longer than `left_s`.
    """
    launch = _launcher(work.run, work.inputs)
    with _no_collection():
        for _ in range(max(method.warmups, len(work.inputs))):
            stopwatch.seconds(partial(launch, 1))
        launches, once = _launches(launch, method, stopwatch)
        sample: Callable[[], object] = partial(launch, launches)
        if once < method.captured_below_s * launches and _capturable(work):
            replay = stopwatch.captured(sample)
            if replay is not None:
                again = ceil(method.sample_s / max(stopwatch.seconds(replay), 1e-9))
                sample, launches = partial(_repeated, replay, again), launches * again
                once = stopwatch.seconds(sample)
        count = min(max(method.samples, ceil(method.total_s / once)), MOST_SAMPLES)
        if count * once > left_s:
            raise TooLongError(count * once, left_s)
        seconds = np.array([stopwatch.seconds(sample) for _ in range(count)])
    each = seconds / (launches * work.calls)
    low, middle, high = (float(q) for q in np.quantile(each, (0.1, 0.5, 0.9)))
    least = float(each.min())
    return Timing(middle if method.statistic == "median" else least, least, low, high, count, launches)


def _capturable(work: Work) -> bool:
    """Return whether all that a call works on is on the device, in one kernel or operation."""
    given = [each for inputs in work.inputs for each in inputs]
    return work.calls == 1 and bool(given) and all(getattr(each, "is_cuda", False) for each in given)


def _repeated(replay: Callable[[], object], times: int) -> None:
    for _ in range(times):
        replay()


def _launcher(run: Callable[..., Any], inputs: Sequence[tuple[Any, ...]]) -> Callable[[int], None]:
    """Return what launches `run` n times, each on the next set of inputs, across calls too.

    As many results are kept as there are sets: a result is then written where nothing has been written lately.
    """
    turn = cycle(inputs)
    results = deque[Any](maxlen=len(inputs))

    def launch(n: int) -> None:
        for _ in range(n):
            results.append(run(*next(turn)))

    return launch


def _launches(launch: Callable[[int], None], method: Method, stopwatch: Stopwatch) -> tuple[int, float]:
    """Return how many launches fill one sample, and the seconds that they take."""
    n = 1
    while True:
        spent = max(stopwatch.seconds(partial(launch, n)), 1e-9)
        if spent >= method.sample_s or n >= MOST_LAUNCHES:
            return n, spent
        # A little above the goal: the first launches are often the slowest.
        n = min(max(n + 1, ceil(1.2 * n * method.sample_s / spent)), MOST_LAUNCHES)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's garbage collector out of the samples, as `timeit` does."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
