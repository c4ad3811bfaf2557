"""How fast each type of job is on each type of device, alone and beside another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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

    def of(self, types: Sequence[str]) -> "Throughputs":
        """Return the same of some types, in this order."""
        if tuple(types) == self.types:
            return self
        at = [self.types.index(name) for name in types]
        return replace(
            self,
            types=tuple(types),
            alone={kind: values[at] for kind, values in self.alone.items()},
            together={pair: values[at] for pair, values in self.together.items()},
            interval={kind: values[:, at] for kind, values in self.interval.items()},
        )

    def end(self, number: int) -> Mapping[Kind, Floats]:
        """Return `alone` at the slow (0) or fast (1) end of its intervals; where there are none, as it is."""
        return {kind: self.interval[kind][number] if kind in self.interval else row for kind, row in self.alone.items()}
