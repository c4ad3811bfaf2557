"""Small labelled images that a network learns in seconds: scikit-learn's digits and generated gratings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import pi
from typing import Literal

import torch
from torch import Tensor

DataName = Literal["digits", "generated"]

CLASSES = 10
SPLIT_SEED, TEST_SHARE = 0, 0.2
SAMPLES: Mapping[DataName, int] = {"digits": 1_797, "generated": 20_000}
SIDE = 16
CYCLES, JITTER, NOISE = 3.0, 0.15, 1.5
"""Of a grating: periods across the image, their spread (fraction), standard deviation of the noise on an amplitude of
1. Chosen so that a small network needs a few hundred steps (assumption)."""


@dataclass(frozen=True, eq=False)
class Data:
    """Images [n, 1, height, width] of mean 0 and standard deviation 1 with their labels [n], for training and test."""

    name: DataName
    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of an image."""
        channels, height, width = self.inputs.shape[1:]
        return channels, height, width

    def part(self, samples: Tensor) -> "Data":
        """Return the same with some of the training samples (indices int64 [n])."""
        return replace(self, inputs=self.inputs[samples], labels=self.labels[samples])


@lru_cache(maxsize=1)
def digits() -> Data:
    """Return scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, a fifth of them for the test."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - takes longer to import than all else here

    images, labels = load_digits(return_X_y=True)
    return _split("digits", torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels))


@lru_cache(maxsize=4)
def generated(seed: int = 0) -> Data:
    """Return gratings of ten orientations with random phase and period under noise, 16 x 16 pixels."""
    generator = torch.Generator().manual_seed(seed)
    samples = SAMPLES["generated"]
    labels = torch.arange(samples) % CLASSES
    angle = (labels * (pi / CLASSES)).view(-1, 1, 1)
    phase, spread = torch.rand(2, samples, 1, 1, generator=generator)
    waves = 2 * pi * CYCLES * (1 + JITTER * (2 * spread - 1))
    at = torch.linspace(-0.5, 0.5, SIDE)
    along = at.view(1, SIDE, 1) * torch.sin(angle) + at.view(1, 1, SIDE) * torch.cos(angle)
    images = torch.sin(waves * along + 2 * pi * phase)
    images += NOISE * torch.randn(images.shape, generator=generator)
    return _split("generated", images.unsqueeze(1), labels)


def training_samples(name: DataName) -> int:
    """Return how many samples there are to train on."""
    return SAMPLES[name] - round(TEST_SHARE * SAMPLES[name])


def _split(name: DataName, images: Tensor, labels: Tensor) -> Data:
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    test, train = order.split_with_sizes([len(order) - training_samples(name), training_samples(name)])
    scaled = (images - images[train].mean()) / images[train].std()
    return Data(name, scaled[train], labels[train], scaled[test], labels[test])


DATA: Mapping[DataName, Callable[[], Data]] = {"digits": digits, "generated": generated}
