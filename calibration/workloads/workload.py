"""What a workload is: a network of a paper, data generated for it and its loss, tiny (for tests, a CPU) or full."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Size = Literal["tiny", "full"]
SIZES: tuple[Size, ...] = ("tiny", "full")
Batch = tuple[Tensor, ...]
"""Tensors with the samples as first dimension."""


def nothing(model: nn.Module) -> None:
    """Leave the weights as they are."""


@dataclass(frozen=True)
class Workload:
    """One network with its data and loss.

    parameters: trainable ones of the full size. samples: of a step, by size. make(size): the network. draw(size,
    samples, generator): that many samples. loss(model, batch): a scalar, without a forward inside backward. after: what
    every update ends with. Losses are those of the papers; dropout is left out, so that runs can be compared.
    """

    name: str
    domain: str
    paper: str
    parameters: int
    samples: Mapping[Size, int]
    make: Callable[[Size], nn.Module]
    draw: Callable[[Size, int, torch.Generator], Batch]
    loss: Callable[[Any, Batch], Tensor]
    after: Callable[[Any], None] = nothing

    def build(self, size: Size, seed: int = 0) -> nn.Module:
        """Return the network on the CPU, its weights drawn from `seed`; torch's own generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make(size).train()

    def batch(self, size: Size, seed: int = 0, samples: int | None = None) -> Batch:
        """Return the data of a step (or of so many `samples`) on the CPU, drawn from `seed`."""
        count = self.samples[size] if samples is None else samples
        return self.draw(size, count, torch.Generator().manual_seed(seed))


class WithLoss(nn.Module):
    """A workload's network as a module that ends in its loss."""

    def __init__(self, workload: Workload, size: Size) -> None:
        super().__init__()
        self.workload, self.network = workload, workload.build(size)

    def forward(self, *batch: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return self.workload.loss(self.network, batch)
