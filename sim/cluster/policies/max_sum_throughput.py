"""The most steps/s in all, or per dollar, with or without deadlines (arXiv 2008.09213, 4.2)."""

from typing import ClassVar

import numpy as np
import scipy  # loads its parts at their first use

from sim.cluster.policies.optimising import Optimising
from sim.cluster.programs import Program, SolverError
from sim.cluster.state import Floats, State
from sim.specs.fields import InputError


class MaxSumThroughputPerf(Optimising):
    """Maximise sum_i e_i; by `costs` sum_ij T_ij X_ij / cost_j, with `deadlines` e_i >= steps left / time left.

    Where no shares meet all deadlines none of them counts. By `costs` every type has to have a price (InputError).
    """

    name = "max_sum_throughput_perf"
    deadlines: ClassVar[bool] = False

    def best(self, state: State, limits: Program) -> Floats:
        """Return the X (n + k, m) of the linear program."""
        if not len(limits.cells):
            return limits.nothing()
        linear = limits.linear(self.values(state, limits))
        found = None
        if self.deadlines and state.slack_s is not None:
            due = np.isfinite(state.slack_s) & (state.slack_s > 0)
            needs = state.steps_left[due] / state.slack_s[due]
            each = limits.rates[due].max(axis=1).toarray().ravel()
            each = np.where(each > 0, each, 1.0)
            rows = scipy.sparse.csr_array(limits.rates[due] / each[:, None])
            found = linear.with_rows(-rows, -needs / each).solved(self.gavel_parity)
        found = linear.solved(self.gavel_parity) if found is None else found
        if found is None:
            raise SolverError("sum of throughputs: no shares found, though none at all are within every limit")
        return limits.shares(found)

    def values(self, state: State, limits: Program) -> Floats:
        """Return what a whole share is worth of every unknown (v,)."""
        values: Floats = np.asarray(limits.rates.sum(axis=0), dtype=np.float64).ravel()
        if not self.costs:
            return values
        if state.usd_per_hour is None or not (state.usd_per_hour > 0).all():
            shown = None if state.usd_per_hour is None else state.usd_per_hour.tolist()
            raise InputError("usd_per_hour", shown, "required of this policy: a price above 0 of every type")
        return values / state.usd_per_hour[limits.cells % len(state.types)]

    def objective(self, state: State, shares: Floats) -> float:
        """Return the sum, steps/s or steps/s per $/h."""
        limits = self.program(state)
        return float(self.values(state, limits) @ limits.unknowns(shares))

    def worth(self, state: State, limits: Program, effective: Floats) -> float:
        """Return the sum of effective steps/s."""
        return float(effective.sum())


class MaxSumThroughputByCostPerf(MaxSumThroughputPerf):
    """Steps per dollar."""

    name = "max_sum_throughput_normalized_by_cost_perf"
    costs = True


class MaxSumThroughputByCostPerfSLOs(MaxSumThroughputByCostPerf):
    """Steps per dollar in time."""

    name = "max_sum_throughput_normalized_by_cost_perf_SLOs"
    deadlines = True


class MaxSumThroughputByCostPackedSLOs(MaxSumThroughputByCostPerfSLOs):
    """The same where pairs of jobs may share devices."""

    name = "max_sum_throughput_normalized_by_cost_packed_SLOs"
    packs = True
