"""Trainers for measuring loaders: one that computes elsewhere, one that needs a core of this machine."""

from time import sleep

import torch
from torch import Tensor, nn

CHANNELS = 64
CLASSES = 10


class Sleeping:
    """A device elsewhere: a batch takes `seconds` and no core."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, batch: Tensor) -> None:
        sleep(self.seconds)


class Computing:
    """A small convolutional network, trained by one thread of this process; `passes` steps a batch.

    Images [n, 3, side, side]; sounds [n, 1, length] are taken as images of rows of 100.
    """

    def __init__(self, channels: int, passes: int = 1, seed: int = 0) -> None:
        torch.set_num_threads(1)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = nn.Sequential(
                nn.Conv2d(channels, CHANNELS, 5, stride=4),
                nn.ReLU(),
                nn.Conv2d(CHANNELS, CHANNELS, 3),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(CHANNELS, CLASSES),
            )
        self.optimizer, self.passes = torch.optim.SGD(self.network.parameters(), lr=0.01), passes

    def __call__(self, batch: Tensor) -> None:
        images = batch if batch.dim() == 4 else batch.view(len(batch), 1, -1, 100)
        classes = torch.arange(len(batch)) % CLASSES
        for _ in range(self.passes):
            loss = nn.functional.cross_entropy(self.network(images), classes)
            self.optimizer.zero_grad()
            torch.autograd.backward(loss)
            self.optimizer.step()
