"""Small convolutional networks that differ in how they normalise."""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import nn

from calibration.federated.data import CLASSES

Norm = Literal["group", "batch", "none"]

CHANNELS, GROUPS = (16, 32, 48), 4

NORMS: Mapping[Norm, Callable[[int], nn.Module]] = {
    "group": lambda channels: nn.GroupNorm(GROUPS, channels),
    "batch": nn.BatchNorm2d,
    "none": lambda channels: nn.Identity(),
}


def network(norm: Norm, shape: tuple[int, int, int], seed: int = 0) -> nn.Sequential:
    """Return three convolutions, the later two with stride 2, and a linear layer; [n, *shape] to logits [n, 10]."""
    inputs, height, width = shape
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for at, channels in enumerate(CHANNELS):
            stride = 1 if at == 0 else 2
            layers += [nn.Conv2d(inputs, channels, 3, stride, 1), NORMS[norm](channels), nn.ReLU()]
            inputs, height, width = channels, -(-height // stride), -(-width // stride)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * height * width, CLASSES))
