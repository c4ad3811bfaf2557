"""Max-min fairness that goes on: whoever is not held back by the least takes more (arXiv 2008.09213, 4.3)."""

import numpy as np
from numpy.typing import NDArray

from sim.cluster.filling import Filling
from sim.cluster.policies.max_min_fairness import MaxMinFairnessPerf
from sim.cluster.policies.optimising import proportional
from sim.cluster.programs import Program, inverse
from sim.cluster.state import Floats, State


class WaterFillingPerf(MaxMinFairnessPerf):
    """Of the shares with the largest minimum, those with the largest next one, and so on."""

    name = "max_min_fairness_water_filling_perf"
    milp = True

    def best(self, state: State, limits: Program) -> Floats:
        """Return the X (n + k, m) of a series of linear programs; with `gavel_parity` a MILP says who is full."""
        reference = proportional(state, self.seen(state))
        filling = Filling(limits, reference, state.scale.astype(float), self.gavel_parity, self.milp)
        return filling.shares(lambda full: self.weigh(state, full))

    def gains(self, state: State) -> Floats:
        """Return what a step/s of each job (n,) is worth to it at first; 0 to those that wait their turn."""
        weights = self.weigh(state, ~self.program(state).able)
        return state.scale * inverse(weights) * inverse(proportional(state, self.seen(state)))

    def weigh(self, state: State, full: NDArray[np.bool_]) -> Floats:
        """Return the weights (n,) of jobs that still rise."""
        return np.where(full, 0.0, state.weights)


class WaterFilling(WaterFillingPerf):
    """The same by one who takes all types for equal: shares of time."""

    name = "max_min_fairness_water_filling"
    aware = False


class WaterFillingPacked(WaterFillingPerf):
    """The same where pairs of jobs may share devices."""

    name = "max_min_fairness_water_filling_packed"
    packs = True
