"""Batches that a run takes up again where it was: every sample exactly once an epoch, over restarts, workers and ranks.

The order of an epoch is a function of seed + epoch alone. The state is what was trained on, not what workers have
fetched ahead, so it holds whatever their number; it counts samples of all ranks, so theirs may change too.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from calibration.checkpointing.manifest import Progress
from sim.specs.fields import InputError, spec, whole

MOST_SAMPLES = 10**9


@spec
class Order:
    """Which samples a rank takes of every batch of all ranks: `batch` samples of its own, world x batch of all.

    The last batch of an epoch may be smaller, and a rank without a sample of it has one batch fewer; drop_last leaves
    it out, so that batches are whole also where other ranks go on within an epoch.

    Raises:
        InputError: a number is out of range, the rank is none of the world, or an epoch would be empty.
    """

    samples: Annotated[int, whole(1, MOST_SAMPLES)]
    batch: Annotated[int, whole(1, MOST_SAMPLES)]
    seed: Annotated[int, whole(0, 2**62)] = 0
    rank: Annotated[int, whole(0, 10**6)] = 0
    world: Annotated[int, whole(1, 10**6)] = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.rank >= self.world:
            raise InputError("rank", self.rank, f"0 to {self.world - 1}")
        if self.drop_last and self.world * self.batch > self.samples:
            allowed = f"at most the {self.samples} samples over {self.world} ranks, or drop_last=False"
            raise InputError("batch", self.batch, allowed)

    def _end(self, consumed: int) -> int:
        """Return the samples of all ranks with which an epoch ends of which so many are trained on."""
        return self.samples - ((self.samples - consumed) % (self.world * self.batch) if self.drop_last else 0)

    def batches(self, epoch: int, consumed: int) -> Iterator[list[int]]:
        """Yield this rank's batches of an epoch after the first `consumed` samples of all ranks."""
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(self.seed + epoch)).tolist()
        last = self._end(consumed)
        for begin in range(consumed, last, self.world * self.batch):
            end = min(begin + self.world * self.batch, last)
            if mine := order[begin + self.rank : end : self.world]:
                yield mine

    def after(self, epoch: int, consumed: int) -> tuple[int, int]:
        """Return (epoch, consumed) after one more batch of all ranks."""
        done = min(consumed + self.world * self.batch, self.samples)
        return (epoch + 1, 0) if done >= self._end(done) else (epoch, done)


class _Rest(Sampler[list[int]]):
    """The batches of the present epoch that are not trained on yet."""

    def __init__(self, order: Order) -> None:
        self.order, self.epoch, self.consumed = order, 0, 0

    def __iter__(self) -> Iterator[list[int]]:
        return self.order.batches(self.epoch, self.consumed)


class ResumableLoader:
    """Batches of a `torch.utils.data.DataLoader`, from where training stands: `for batch in loader` is the rest of an
    epoch, `loader.trained()` says after each weight update that the batch is done.

    What a dataset does at random must depend on index and epoch alone to be the same after a restart.
    `options`: of DataLoader, such as num_workers; workers stay for all epochs.

    Raises:
        InputError: options that are the loader's own, or more ranks than samples.
    """

    def __init__(self, dataset: Dataset[Any], order: Order, **options: Any) -> None:
        if order.rank >= order.samples:
            raise InputError("rank", order.rank, f"0 to {order.samples - 1}: each has a sample of the epoch")
        if own := sorted(options.keys() & {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}):
            raise InputError(own[0], options[own[0]], "left out: `order` says it")
        self.order = order
        self._rest = _Rest(order)
        options = {"persistent_workers": options.get("num_workers", 0) > 0} | options
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._rest, **options)

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, samples of it that all ranks have trained on)."""
        return self._rest.epoch, self._rest.consumed

    def progress(self, step: int) -> Progress:
        """Return what a checkpoint after `step` weight updates says."""
        return Progress(step=step, epoch=self._rest.epoch, consumed=self._rest.consumed)

    def resume(self, progress: Progress) -> None:
        """Go on where a checkpoint was made; raises InputError where an epoch has not so many samples."""
        if progress.consumed >= self.order.samples:
            raise InputError("consumed", progress.consumed, f"fewer than the {self.order.samples} of an epoch")
        self._rest.epoch, self._rest.consumed = progress.epoch, progress.consumed

    def trained(self) -> None:
        """Say that the weights are updated by one more batch."""
        self._rest.epoch, self._rest.consumed = self.order.after(*self.position)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def forever(self) -> Iterator[Any]:
        """Yield batches, epoch after epoch; each must be `trained` before the next is asked for."""
        while True:
            epoch = self._rest.epoch
            yield from self
            if self._rest.epoch == epoch:
                if any(self.order.batches(*self.position)):
                    raise InputError("loader", f"epoch {epoch} ended", "trained() after every batch")
                self._rest.epoch, self._rest.consumed = epoch + 1, 0  # of its rest this rank has nothing
