"""How fast each type of job is on each type of device, alone and beside another."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.cluster.jobs import Kind

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Throughputs:
    """Steps/s of jobs of a kind on `types` of devices (m of them), fastest type first.

    `alone[kind]` has shape (m,), zero where it cannot run; `together[kind, other]` has shape (m, 2): of either job
    where both share their devices, zeros where they cannot. `interval[kind]` has shape (2, m), the central 80 % where
    it is predicted. `source` says where the numbers are from.
    """

    types: tuple[str, ...]
    alone: Mapping[Kind, Floats]
    together: Mapping[tuple[Kind, Kind], Floats] = field(default_factory=dict)
    interval: Mapping[Kind, Floats] = field(default_factory=dict)
    source: str = ""
