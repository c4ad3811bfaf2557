"""Makespan: all that is left ends as early as can be (arXiv 2008.09213, 4.2)."""

import numpy as np

from sim.cluster.policies.optimising import Optimising
from sim.cluster.programs import Program, SolverError, inverse
from sim.cluster.state import Floats, State

SHORTEST_S, LONGEST_S, NEAR = 100.0, 1e6, 1.05
"""Between these the published system bisects, until they are so near; where nothing was found, up to 10 times more."""


class MinTotalDurationPerf(Optimising):
    """Minimise T with e_i >= R_i / T: maximise 1/T, one linear program.

    With `gavel_parity` T is what a bisection stops at, up to 5 % more, and the shares are any that are in time.
    """

    name = "min_total_duration_perf"
    minimises = True

    def best(self, state: State, limits: Program) -> Floats:
        """Return the X (n + k, m) that ends earliest."""
        if not (limits.able & (state.steps_left > 0)).any():
            return limits.nothing()
        if self.gavel_parity:
            return self._bisected(state, limits)
        found = limits.least(inverse(state.steps_left) * self._unit(state, limits)).solved()
        if found is None:
            raise SolverError("makespan: no shares found, though none at all are within every limit")
        return limits.shares(found)

    def worth(self, state: State, limits: Program, effective: Floats) -> float:
        """Return the makespan in s: inf where a job that can run does not."""
        left = limits.able & (state.steps_left > 0)
        with np.errstate(divide="ignore"):
            return float((state.steps_left[left] / effective[left]).max(initial=0.0))

    def _unit(self, state: State, limits: Program) -> float:
        """Return about how long it takes in s: the solver's numbers are near 1 then."""
        fastest = np.asarray(limits.rates.max(axis=1).toarray()).ravel()
        return float((state.steps_left * inverse(fastest)).max())

    def _bisected(self, state: State, limits: Program) -> Floats:
        low, high, last = SHORTEST_S, LONGEST_S, LONGEST_S
        found = None
        while found is None:
            while NEAR * low < high:
                middle = (low + high) / 2
                tried = self._within(state, limits, middle)
                if tried is None:
                    low = middle
                else:
                    found, high = tried, middle
            low, high, last = last, last * 10, last * 10
        return limits.shares(found)

    def _within(self, state: State, limits: Program, total_s: float) -> Floats | None:
        """Return unknowns (v,) by which all jobs end in `total_s`, None where there are none."""
        able = limits.able & (state.steps_left > 0)
        nothing = limits.linear(np.zeros(len(limits.cells)))
        return nothing.with_rows(-limits.rates[able], -state.steps_left[able] / total_s).solved(published=True)


class MinTotalDuration(MinTotalDurationPerf):
    """The same by one who takes every type for the fastest."""

    name = "min_total_duration"
    aware = False


class MinTotalDurationPacked(MinTotalDurationPerf):
    """The same where pairs of jobs may share devices."""

    name = "min_total_duration_packed"
    packs = True
