"""What a policy sees when it divides a cluster."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of jobs that could share devices: `jobs` (k, 2) are rows of the state, `steps_per_s` (k, m, 2)."""

    jobs: Ints
    steps_per_s: Floats


NO_PAIRS = Pairs(np.zeros((0, 2), dtype=np.int64), np.zeros((0, 0, 2)))


@dataclass(frozen=True, eq=False)
class State:
    """The n active jobs in order of arrival and the m types of devices, fastest first.

    `steps_per_s` (n, m) is T of arXiv 2008.09213, for a job on all its `scale` (n,) devices; `devices` (m,) counts
    them; `steps_left`, `waited_s` (since arrival, running or not), `weights` (n,). `ids` (n,) stay with their jobs from
    call to call. `usd_per_hour` (m,) is of a device; `slack_s` (n,) the time to a job's deadline, inf where it has
    none. `entity` (n,) are rows of `entity_weights`. `part` of the devices are there to be divided: all, or those of a
    part of a split problem.
    """

    ids: Ints
    types: tuple[str, ...]
    steps_per_s: Floats
    scale: Ints
    devices: Ints
    steps_left: Floats
    waited_s: Floats
    weights: Floats
    pairs: Pairs = NO_PAIRS
    usd_per_hour: Floats | None = None
    slack_s: Floats | None = None
    entity: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    entity_weights: Floats = field(default_factory=lambda: np.ones(1))
    part: float = 1.0

    @property
    def jobs(self) -> int:
        """How many are active (n)."""
        return len(self.ids)
