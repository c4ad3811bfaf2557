"""Data cut into partitions, more or less of one kind each."""

import torch
from torch import Tensor

from sim.specs.fields import InputError


def partitioned(labels: Tensor, k: int, skew: float, seed: int = 0) -> tuple[Tensor, ...]:
    """Return the samples' indices of each of k partitions, whose sizes differ by one at most.

    labels: [n] whole numbers; skew: the share of the samples that is sorted by label and cut into k runs, while the
    rest is dealt out at random (arXiv 1910.00189, section 5): 0 is like random, 1 gives each partition
    a k-th of the labels.

    Raises:
        InputError: skew is not within 0 and 1, or there are fewer samples than partitions.
    """
    n = len(labels)
    if not 0 <= skew <= 1:
        raise InputError("skew", skew, "a number from 0 to 1")
    if not 1 <= k <= n:
        raise InputError("k", k, f"a whole number from 1 to {n}, the number of samples")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    cut = round(skew * n)
    ordered = order[:cut][labels[order[:cut]].argsort(stable=True)]
    runs = _sizes(cut, k)
    rest = order[cut:].split_with_sizes([whole - run for whole, run in zip(_sizes(n, k), runs, strict=True)])
    return tuple(torch.cat(parts) for parts in zip(ordered.split_with_sizes(runs), rest, strict=True))


def _sizes(n: int, k: int) -> list[int]:
    return [n // k + (at < n % k) for at in range(k)]
