"""Measured seconds of kernels, as fits take them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """Measured seconds of one (device, op, direction).

    `family` groups samples that must not be split between fit and test.
    """

    device: str
    op: str
    direction: str
    inputs: Mapping[str, Floats]
    seconds: Floats
    family: tuple[str, ...]
    source: str

    def __len__(self) -> int:
        return len(self.seconds)
