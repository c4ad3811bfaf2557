"""Measured seconds of kernels, as fits take them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sim.costs.kernels import size_of
from sim.costs.profile import Fingerprint

Floats = NDArray[np.float64]

LEAST, FAIR = 5, 8
"""Fitted cases that a fit needs (one for each of its folds), and cases that every lane has before longer ones go on."""

PREFERRED = ("matmul", "flash", "cudnn", "layernorm", "add", "erf", "eager", "fused")
"""Implementations that the simulator reads where a kernel has several: the earlier in this list, the rather."""

ANY = "any"
AS_ONE = ("elementwise",)
"""Kernels whose implementations are fitted as one: the simulator knows no more of them than what they move."""


def fitted_as(op: str, implementation: str) -> str:
    """Return the name by which an implementation of a kernel is fitted."""
    return ANY if op in AS_ONE else implementation


CUDNN_ATTENTION = re.compile(r"\b(H100|H200|H20|GH200|B200|B300|GB200|GB300)\b")
"""Names of devices of compute capability 9.0, 10.0 and 10.3."""


def takes_cudnn(fingerprint: Fingerprint) -> bool:
    """Return whether PyTorch's `scaled_dot_product_attention` runs cuDNN's kernels: since 2.10 where cuDNN is newer
    than 9.15 (its wheels' is since 2.11) on data-centre Hopper and Blackwell (PyTorch, `sdp_utils.cpp`,
    `check_prefer_cudnn_attention`)."""
    torch, cudnn = (fingerprint.versions.get(name, "") for name in ("torch", "cudnn"))
    release = tuple(int(part) for part in re.findall(r"\d+", torch)[:2])
    newer = cudnn.isdecimal() and int(cudnn) > 91_500
    return release >= (2, 10) and newer and CUDNN_ATTENTION.search(fingerprint.name) is not None


def preference(implementation: str, fingerprint: Fingerprint | None = None) -> int:
    """Return the place of an implementation among those that the simulator reads: the lower, the rather."""
    if implementation == "cudnn" and fingerprint and takes_cudnn(fingerprint):
        return -1
    return PREFERRED.index(implementation) if implementation in PREFERRED else len(PREFERRED)


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

    def where(self, mask: NDArray[np.bool_]) -> "Samples":
        """Return the samples where `mask` is true."""
        inputs = {name: values[mask] for name, values in self.inputs.items()}
        family = tuple(f for f, kept in zip(self.family, mask.tolist(), strict=True) if kept)
        return replace(self, inputs=inputs, seconds=self.seconds[mask], family=family)

    @property
    def size(self) -> Floats:
        """FLOP of each sample, or bytes where memory bounds the kernel."""
        return np.asarray(size_of(self.inputs), dtype=np.float64)

    def __len__(self) -> int:
        return len(self.seconds)
