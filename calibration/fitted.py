"""A fitted kernel family with what the report shows of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from calibration.fit import Fit
from calibration.samples import Floats, Samples
from sim.costs.fitted import KernelModel


@dataclass(frozen=True)
class Family:
    """One fitted kernel: its model, the samples it was fitted to, those held out by use, and what was found out.

    coverage: nominal level -> share of samples inside; flop, bytes: of each fitted sample.
    """

    model: KernelModel
    samples: Samples
    fit: Fit
    others: Mapping[str, Samples]
    coverage: Mapping[str, float]
    flop: Floats
    bytes: Floats

    @property
    def name(self) -> str:
        """Kernel, direction and implementation."""
        return self.model.name
