"""A sweep as a whole: blocks out to the runner, results into the store, one message where it stops."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from sim.specs.arguments import checked
from sim.sweep.evaluate import Evaluate
from sim.sweep.grid import Grid
from sim.sweep.runners import Runner, TaskFailed, WorkerLost
from sim.sweep.runners import runner as named
from sim.sweep.store import Counts
from sim.sweep.writer import StoreFull, Writer
from sim.units import many

PROGRESS_EVERY_S = 0.1
WARM_BLOCKS, WARM_S = 8, 2.0
"""Blocks, and seconds after the first of them, before the time left is told: the first ones come in a burst."""


class SweepStopped(RuntimeError):  # noqa: N818 - what happened, as a person would say it
    """A sweep that ended early; what it had done is in the store, and `resume` goes on."""


@dataclass(frozen=True)
class Progress:
    """How far a sweep is. rate: configurations a second, of this run; left_s: seconds to go at the rate since the first
    block, None before enough of them have come."""

    counts: Counts
    seconds: float
    rate: float
    left_s: float | None = None


class _Pace:
    """How fast blocks come once workers are warm: starting and the first block count for nothing."""

    def __init__(self) -> None:
        self.blocks = self.first_done = 0
        self.first_s = perf_counter()

    def came(self, counts: Counts) -> None:
        """Take note of a block that is in the store."""
        self.blocks += 1
        if self.blocks == 1:
            self.first_s, self.first_done = perf_counter(), counts.done

    def left_s(self, counts: Counts) -> float | None:
        """Return the seconds to go; None before they can be told."""
        seconds, done = perf_counter() - self.first_s, counts.done - self.first_done
        if self.blocks < WARM_BLOCKS or seconds < WARM_S or not done:
            return None
        return counts.left * seconds / done


@checked
def sweep(
    grid: Grid,
    store: str | Path,
    runner: str | Runner = "pool",
    workers: int | None = None,
    address: str | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Progress:
    """Predict all configurations of a grid into a store and return its counts.

    runner: `pool` (processes of this machine), `ray` (a cluster, by `address`) or one of your own; `workers`: by
    default one a core. `resume`: go on with a store that has blocks; whatever equals one of them is not computed again.
    `progress` is told how far it is, ten times a second at most. `sim.Store` reads the store, also meanwhile.

    Raises:
        InputError: the grid or the store cannot be used.
        SweepStopped: it was interrupted, the disk is full, or workers keep dying; the store resumes.
    """
    begin = perf_counter()
    made = named(runner, workers, address) if isinstance(runner, str) else runner
    with made as running, Writer(Path(store), grid, resume) as held:
        first, told, pace = held.counts.done, begin, _Pace()

        def now() -> Progress:
            counts, seconds = held.counts, perf_counter() - begin
            return Progress(counts, seconds, (counts.done - first) / max(seconds, 1e-9), pace.left_s(counts))

        try:
            for block in running.run(held.left(), Evaluate(grid)):
                held.write(block)
                pace.came(held.counts)
                if progress and perf_counter() - told >= PROGRESS_EVERY_S:
                    told = perf_counter()
                    progress(now())
        except (KeyboardInterrupt, StoreFull, WorkerLost, TaskFailed) as error:
            raise stopped(error, held) from None
        if progress:
            progress(now())
        return now()


def stopped(error: BaseException, held: Writer) -> SweepStopped:
    """Return the one message of a sweep that ends early."""
    why = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
    counts = held.counts
    safe = f"{counts.done} of {many(counts.total, 'configuration')} {'is' if counts.total == 1 else 'are'} safe"
    return SweepStopped(f"{why}; {safe} in {held.path}: go on with --resume")
