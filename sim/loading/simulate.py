"""Training fed by the simulated loader: rates epoch by epoch, and where it waits."""

import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

import simpy

from sim.engine.clock import to_ticks
from sim.loading.predict import check
from sim.loading.processes import Counts, Loader, Span
from sim.loading.reads import Cached, Reads, epoch_samples
from sim.specs.arguments import checked
from sim.specs.fields import InputError
from sim.specs.loading import Loading

EPOCHS, CACHED_EPOCHS = 3, 2
REPORTS = 50
"""Times that each of the two runs tells how far it is."""
SETTLING = 0.2
"""Share of the time that is left out of a rate where fewer than two epochs are run: queues fill."""


@dataclass(frozen=True)
class Simulated:
    """What one job on one node got. samples_per_s: after the first epoch (without one: after the first fifth of the
    time); epoch_samples_per_s: of every whole epoch; stalls as in `sim.loading.predict.Prediction`, from a second run
    with everything cached; hit_fraction: of all reads, the first epoch's too."""

    samples_per_s: float
    epoch_samples_per_s: tuple[float, ...]
    fetch_stall_fraction: float
    prep_stall_fraction: float
    hit_fraction: float
    counts: Counts
    seconds: float
    spans: tuple[Span, ...]


@checked
def simulate(
    loading: Loading,
    compute_samples_per_s: float,
    batch: int,
    epochs: int = EPOCHS,
    seconds: float | None = None,
    seed: int = 0,
    exact: bool = False,
    nodes: int = 1,
    network_bytes_per_s: float | None = None,
    progress: Callable[[float], None] | None = None,
) -> Simulated:
    """Return what training gets in so many epochs, or in so many seconds if these are stated.

    Arguments are those of `sim.loading.predict` and `sim.loading.Loader`. `progress` is told which share is done, 0 to
    1, about a hundred times.

    Raises:
        InputError: an argument is out of range.
    """
    check(loading, compute_samples_per_s, nodes, network_bytes_per_s)
    if epochs < 1:
        raise InputError("epochs", epochs, "a whole number from 1")
    if seconds is not None and not 0 < seconds < inf:
        raise InputError("seconds", seconds, "a number above 0 s")
    samples = epoch_samples(loading, nodes)

    def run(most_epochs: int, reads: Reads | None, begin: float, end: float) -> _Training:
        env = simpy.Environment()
        loader = Loader(env, loading, batch, seed, exact, nodes, network_bytes_per_s, reads)
        training = _Training(loader, compute_samples_per_s, samples * most_epochs)
        done = env.process(training.run())
        if progress and seconds is None:
            training.told = lambda share: progress(begin + (end - begin) * share)
        env.run(until=done if seconds is None else env.any_of([done, env.timeout(to_ticks(seconds))]))
        return training

    first = epochs / (epochs + CACHED_EPOCHS)
    found = run(epochs if seconds is None else 10**9, None, 0.0, first)
    rate = found.steady(samples)
    cached = max(rate, run(CACHED_EPOCHS if seconds is None else 10**9, Cached(), first, 1.0).steady(samples))
    if not cached:
        raise InputError("seconds", seconds, "time enough to train on a batch")
    counts = found.loader.counts
    return Simulated(
        samples_per_s=rate,
        epoch_samples_per_s=found.by_epoch(samples),
        fetch_stall_fraction=1 - rate / cached,
        prep_stall_fraction=max(0.0, rate / cached - rate / compute_samples_per_s),
        hit_fraction=(counts.hits + counts.remote) / max(counts.hits + counts.remote + counts.misses, 1),
        counts=counts,
        seconds=found.loader.env.now * 1e-9,
        spans=tuple(found.loader.spans),
    )


class _Training:
    """Takes batches and computes, up to so many samples; keeps when each batch was done, in s."""

    def __init__(self, loader: Loader, samples_per_s: float, samples: int) -> None:
        self.loader, self.samples = loader, samples
        self.step_s = loader.batch / samples_per_s
        self.done_s: list[float] = []
        self.told: Callable[[float], None] | None = None

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Train."""
        env, threads = self.loader.env, self.loader.at["trainer_cores"]
        every = ceil(self.samples / self.loader.batch / REPORTS)
        while len(self.done_s) * self.loader.batch < self.samples:
            if self.told and len(self.done_s) % every == 0:
                self.told(len(self.done_s) * self.loader.batch / self.samples)
            yield self.loader.take()
            computed = [self.loader.cores.use(self.step_s * threads / n) for n in [ceil(threads)] for _ in range(n)]
            yield env.all_of([*computed, env.timeout(to_ticks(self.step_s))])
            self.done_s.append(env.now * 1e-9)

    def at_s(self, samples: float) -> float:
        """Return when so many samples were done, between two batches in proportion."""
        whole, part = divmod(samples / self.loader.batch, 1)
        begin = self.done_s[int(whole) - 1] if whole else 0.0
        return begin if not part else begin + part * (self.done_s[int(whole)] - begin)

    def by_epoch(self, samples: int) -> tuple[float, ...]:
        """Return the rate of every whole epoch."""
        whole = len(self.done_s) * self.loader.batch // samples
        ends = [self.at_s(samples * n) for n in range(whole + 1)]
        return tuple(samples / (end - begin) for begin, end in itertools.pairwise(ends))

    def steady(self, samples: int) -> float:
        """Return the rate after the first epoch, or after what settles of a shorter time."""
        done = len(self.done_s) * self.loader.batch
        begin = samples if done >= 2 * samples else SETTLING * done
        if not done:
            return 0.0
        return (done - begin) / (self.done_s[-1] - self.at_s(begin))
