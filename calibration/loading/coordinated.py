"""One fetch and preparation for several jobs that train on the same data on one node (CoorDL, arXiv 2007.06775).

Preparers take minibatches in turn and stage them as files, best on a file system in memory; every job uses each of
them exactly once, in the same order, and what all jobs have used is removed. At most `slots` minibatches are staged.

Failure rule. What a dead preparer had begun another one begins again; nobody waits for a dead job; and a job that waits
while no preparer is alive prepares for itself and the others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, default_collate

from calibration.loading.cells import Cells
from calibration.loading.decoding import Order
from calibration.loading.presence import Presence
from sim.specs.fields import InputError

FREE, CLAIMED, READY = range(3)
AWAITED, HERE, LEFT = range(3)
REMOVED, SINCE, FIRST = range(3)
"""Places in the cells: the first minibatch that is not removed, when the staging was made; from FIRST on the state and
the preparer of each slot, then the state of each job and how many minibatches it has used."""

POLL_S = 0.002
ARRIVAL_S = 60.0
"""A job that has not come by then is not waited for."""


class Work(Protocol):
    """Makes minibatches by number; it may be sent to other processes."""

    batches: int

    def __call__(self, number: int) -> Any:
        """Return minibatch `number`: tensors, in lists, tuples or dicts of them."""
        ...


class Minibatches:
    """Minibatches of a dataset by place (`calibration.loading.decoding.Order`): `epochs` epochs of `samples`."""

    def __init__(self, dataset: Dataset[Any], samples: int, batch: int, epochs: int, seed: int = 0) -> None:
        self.dataset, self.batch, self.per_epoch = dataset, batch, -(-samples // batch)
        self.batches = self.per_epoch * epochs
        self._order = Order(samples, epochs, seed)
        self._kept: tuple[int, list[int]] = -1, []

    def places(self, number: int) -> list[int]:
        """Return which places make minibatch `number`; the last of an epoch may have fewer."""
        epoch, nth = divmod(number, self.per_epoch)
        if self._kept[0] != epoch:
            self._kept = epoch, self._order.epoch(epoch)
        return self._kept[1][nth * self.batch :][: self.batch]

    def __call__(self, number: int) -> Any:
        """Return the minibatch, prepared and collated."""
        return default_collate([self.dataset[place] for place in self.places(number)])


class Staging:
    """Where `jobs` jobs and `preparers` preparers of `batches` minibatches meet: a folder, at first empty.

    `slots` minibatches are staged at most. It may be sent to other processes; a participant is a process.

    Raises:
        InputError: a number is below 1.
    """

    def __init__(self, folder: Path, jobs: int, preparers: int, batches: int, slots: int) -> None:
        for name, value in (("jobs", jobs), ("preparers", preparers), ("batches", batches), ("slots", slots)):
            if value < 1:
                raise InputError(name, value, "a whole number from 1")
        self.folder, self.jobs, self.preparers, self.batches, self.slots = folder, jobs, preparers, batches, slots
        self._job_cells = FIRST + 2 * slots
        self._cells = Cells(folder / "cells", self._job_cells + 2 * jobs)
        self._presence = Presence(folder / "alive")
        with self._cells.locked() as cells:
            cells[SINCE] = monotonic_ns()

    def file(self, number: int) -> Path:
        """Return where a minibatch is staged."""
        return self.folder / f"{number % self.slots}.batch"

    @contextmanager
    def taking_part(self, who: int) -> Iterator[None]:
        """Be preparer `who`, or job `who` - preparers, inside."""
        with self._presence.being(who):
            yield

    def claim(self, me: int) -> int | None:
        """Return a minibatch that `me` is to stage now, None where there is none at the moment.

        Those of dead preparers are claimed anew; what all jobs have used is removed first.
        """
        with self._cells.locked() as cells:
            self._remove(cells)
            first = int(cells[REMOVED])
            for number in range(first, min(first + self.slots, self.batches)):
                state, owner = self._slot(cells, number)
                if state[0] == FREE or (state[0] == CLAIMED and not self._presence.is_alive(int(owner[0]))):
                    state[0], owner[0] = CLAIMED, me
                    return number
            return None

    def stage(self, number: int, work: Work) -> None:
        """Make a claimed minibatch and hand it to the jobs."""
        torch.save(work(number), self.file(number))
        with self._cells.locked() as cells:
            self._slot(cells, number)[0][0] = READY

    def over(self) -> bool:
        """Return whether nothing is left to stage: all is ready, or every job has left or died."""
        with self._cells.locked() as cells:
            self._remove(cells)
            first = int(cells[REMOVED])
            rest = range(first, min(first + self.slots, self.batches))
            ready = first + self.slots >= self.batches and all(self._slot(cells, n)[0][0] == READY for n in rest)
            return ready or not self._present(cells)

    def arrive(self, job: int) -> None:
        """Let the others wait for this job from now on.

        Raises:
            InputError: there was such a job before, or it comes too late.
        """
        with self._cells.locked() as cells:
            states, _ = self._of_jobs(cells)
            if job not in self._present(cells) or states[job] != AWAITED:
                raise InputError("job", job, f"one that comes once, within {ARRIVAL_S:g} s")
            states[job] = HERE

    def leave(self, job: int) -> None:
        """Let nobody wait for this job any more."""
        with self._cells.locked() as cells:
            self._of_jobs(cells)[0][job] = LEFT

    def is_ready(self, number: int) -> bool:
        """Return whether a minibatch is staged that the asking job has not used."""
        with self._cells.locked() as cells:
            return bool(self._slot(cells, number)[0][0] == READY and number < cells[REMOVED] + self.slots)

    def used(self, job: int) -> None:
        """Note that `job` has used one more minibatch."""
        with self._cells.locked() as cells:
            self._of_jobs(cells)[1][job] += 1

    def unprepared(self) -> bool:
        """Return whether no preparer is alive."""
        with self._cells.locked():
            return not any(self._presence.is_alive(who) for who in range(self.preparers))

    def _slot(self, cells: NDArray[np.int64], number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the cells of a slot's state and of its preparer."""
        at = FIRST + 2 * (number % self.slots)
        return cells[at : at + 1], cells[at + 1 : at + 2]

    def _of_jobs(self, cells: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the cells of the jobs' states and of how many minibatches each has used."""
        return cells[self._job_cells :][: self.jobs], cells[self._job_cells + self.jobs :]

    def _remove(self, cells: NDArray[np.int64]) -> None:
        """Remove what every job that is still there has used."""
        _, used = self._of_jobs(cells)
        least = min((int(used[job]) for job in self._present(cells)), default=int(cells[REMOVED]))
        for number in range(int(cells[REMOVED]), least):
            self._slot(cells, number)[0][0] = FREE
            self.file(number).unlink(missing_ok=True)
        cells[REMOVED] = max(least, int(cells[REMOVED]))

    def _present(self, cells: NDArray[np.int64]) -> list[int]:
        """Return the jobs that are waited for."""
        states, _ = self._of_jobs(cells)
        awaited = monotonic_ns() - int(cells[SINCE]) < ARRIVAL_S * 1e9
        alive = (
            awaited if states[job] == AWAITED else states[job] == HERE and self._presence.is_alive(self.preparers + job)
            for job in range(self.jobs)
        )
        return [job for job, here in enumerate(alive) if here]


def prepare(staging: Staging, who: int, work: Work) -> None:
    """Be preparer `who` until all is staged or no job is left."""
    with staging.taking_part(who):
        while not staging.over():
            number = staging.claim(who)
            if number is None:
                sleep(POLL_S)
            else:
                staging.stage(number, work)


def minibatches(staging: Staging, job: int, work: Work) -> Iterator[Any]:
    """Yield every minibatch once, as job `job`; one counts as used when the next is asked for.

    Raises:
        InputError: `job` was there before, or comes too late.
    """
    me = staging.preparers + job
    with staging.taking_part(me):
        staging.arrive(job)
        try:
            for number in range(staging.batches):
                while not staging.is_ready(number):
                    own = staging.claim(me) if staging.unprepared() else None
                    if own is None:
                        sleep(POLL_S)
                    else:
                        staging.stage(own, work)
                yield torch.load(staging.file(number), mmap=True, weights_only=True)
                staging.used(job)
        finally:
            staging.leave(job)


@contextmanager
def prepared(staging: Staging, work: Work) -> Iterator[list[int]]:
    """Run the preparers as processes inside; yields their process numbers."""
    context = get_context("fork")
    processes = [context.Process(target=_preparer, args=(staging, who, work)) for who in range(staging.preparers)]
    for process in processes:
        process.daemon = True
        process.start()
    try:
        yield [process.pid or 0 for process in processes]
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _preparer(staging: Staging, who: int, work: Work) -> None:
    torch.set_num_threads(1)
    prepare(staging, who, work)
