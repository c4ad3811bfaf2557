"""Least attained service: the job that gets least, by weight, gets as much as can be (arXiv 2008.09213, 4.1)."""

import numpy as np

from sim.cluster.policies.optimising import Optimising, proportional
from sim.cluster.programs import Program, SolverError, inverse
from sim.cluster.state import Floats, State


class MaxMinFairnessPerf(Optimising):
    """Maximise min_i e_i s_i / (w_i p_i): effective steps/s over those of a proportional share, by scale and weight."""

    name = "max_min_fairness_perf"

    def gains(self, state: State) -> Floats:
        """Return what a step/s of each job (n,) is worth to it."""
        return state.scale / state.weights * inverse(proportional(state, self.seen(state)))

    def best(self, state: State, limits: Program) -> Floats:
        """Return the X (n + k, m) of the linear program."""
        if not limits.able.any():
            return limits.nothing()
        found = limits.least(self.gains(state)).solved(self.gavel_parity)
        if found is None:
            raise SolverError("max-min fairness: no shares found, though none at all are within every limit")
        return limits.shares(found)

    def worth(self, state: State, limits: Program, effective: Floats) -> float:
        """Return the least of the jobs' normalised effective throughputs."""
        gains = self.gains(state)
        return float((gains * effective)[limits.able & (gains > 0)].min(initial=np.inf))


class MaxMinFairness(MaxMinFairnessPerf):
    """The same by one who takes all types for equal: shares of time."""

    name = "max_min_fairness"
    aware = False


class MaxMinFairnessPacked(MaxMinFairnessPerf):
    """The same where pairs of jobs may share devices."""

    name = "max_min_fairness_packed"
    packs = True
