"""Finish-time fairness: no job ends much later than alone in its part of the cluster (arXiv 2008.09213, 4.2)."""

import clarabel
import numpy as np
import scipy  # loads its parts at their first use

from sim.cluster.interior import interior
from sim.cluster.policies.isolated import isolated
from sim.cluster.policies.optimising import Optimising
from sim.cluster.programs import Program, SolverError, conic, entries, matrix_of
from sim.cluster.state import Floats, State


class FinishTimeFairnessPerf(Optimising):
    """Minimise max_i rho_i, rho_i = (t_i + R_i / e_i) / (u_i + R_i / alone_i).

    t_i is what the job waited and ran, u_i what its steps until now would have taken at the steps/s `alone` that its
    n-th of the cluster gave in each interval: the policy sums it up from call to call.
    """

    name = "finish_time_fairness_perf"
    minimises = True

    def __init__(self, seed: int = 0, gavel_parity: bool = False) -> None:
        super().__init__(seed, gavel_parity)
        self._spent_s: dict[int, float] = {}
        self._last: dict[int, tuple[float, float]] = {}
        """Of each job the steps that were left, and its steps/s alone."""

    def allocate(self, state: State) -> Floats:
        """Return X (n + k, m), and remember how far every job is."""
        self._remember(state)
        return super().allocate(state)

    def best(self, state: State, limits: Program) -> Floats:
        """Return the X (n + k, m) of the second-order cone program."""
        due = limits.able & (state.steps_left > 0)
        if not due.any():
            return limits.nothing()
        alone_s = self.alone_s(state)
        return limits.shares(_least_ratio(limits, state, due, alone_s, self.gavel_parity))

    def worth(self, state: State, limits: Program, effective: Floats) -> float:
        """Return the largest rho: inf where a job that can run does not."""
        due = limits.able & (state.steps_left > 0)
        with np.errstate(divide="ignore"):
            ends = state.waited_s[due] + state.steps_left[due] / effective[due]
        return float((ends / self.alone_s(state)[due]).max(initial=0.0))

    def alone_s(self, state: State) -> Floats:
        """Return how long (n,) each job takes from start to end in its part of the cluster; inf where it cannot run."""
        spent = np.array([self._spent_s.get(int(i), 0.0) for i in state.ids])
        with np.errstate(divide="ignore"):
            return spent + state.steps_left / self._alone(state)

    def _alone(self, state: State) -> Floats:
        return np.asarray((self.seen(state) * isolated(state, self.gavel_parity)).sum(axis=1))

    def _remember(self, state: State) -> None:
        spent, last = self._spent_s, self._last
        self._spent_s, self._last = {}, {}
        for job, left, rate in zip(state.ids.tolist(), state.steps_left, self._alone(state), strict=True):
            before, alone = last.get(job, (left, 1.0))
            self._spent_s[job] = spent.get(job, 0.0) + ((before - left) / alone if alone > 0 else 0.0)
            self._last[job] = left, rate


class FinishTimeFairness(FinishTimeFairnessPerf):
    """The same by one who takes every type for the fastest."""

    name = "finish_time_fairness"
    aware = False


class FinishTimeFairnessPacked(FinishTimeFairnessPerf):
    """The same where pairs of jobs may share devices."""

    name = "finish_time_fairness_packed"
    packs = True


def _least_ratio(limits: Program, state: State, due: np.ndarray, alone_s: Floats, published: bool) -> Floats:
    """Return x (v,): unknowns, inverse throughputs y and rho of: minimise rho, t + r y <= rho D, y_i f_i >= 1.

    f_i is the effective throughput over that of a whole share of the fastest type (`published`: over 1 step/s), r_i
    the time left at that. The product is a cone: |(2, y - f)| <= y + f.
    """
    jobs, cells = int(due.sum()), len(limits.cells)
    rates, job = limits.rates[due], np.arange(jobs)
    unit = np.ones(jobs) if published else np.maximum.reduceat(rates.data, rates.indptr[:-1])
    ends = limits.rows.shape[0]
    positive = ends + jobs
    sums = positive + cells + 3 * job
    (of, at, each), inverse = entries(rates), cells + job
    scaled = each * (1 / unit)[of]
    parts = [
        entries(limits.rows),
        (ends + job, inverse, state.steps_left[due] / unit / alone_s[due]),
        (ends + job, np.full(jobs, cells + jobs), -np.ones(jobs)),
        (positive + np.arange(cells), np.arange(cells), -np.ones(cells)),
        (sums[of], at, -scaled),
        (sums, inverse, -np.ones(jobs)),
        (sums[of] + 2, at, scaled),
        (sums + 2, inverse, -np.ones(jobs)),
    ]
    rows = matrix_of((positive + cells + 3 * jobs, cells + jobs + 1), *parts).tocsc()
    above = np.zeros(3 * jobs)
    above[1::3] = 2.0
    most = np.concatenate([limits.most, -state.waited_s[due] / alone_s[due], np.zeros(cells), above])
    cones = [clarabel.NonnegativeConeT(len(most) - 3 * jobs), *(clarabel.SecondOrderConeT(3) for _ in range(jobs))]
    cost = np.append(np.zeros(cells + jobs), 1.0)
    found = _published(cost, rows, most, jobs) if published else None
    if found is None:
        found = conic(cost, rows, most, cones)
    if found is None:
        raise SolverError("finish-time fairness: no shares found, though every job that can run has some")
    return found


def _published(cost: Floats, rows: "scipy.sparse.csc_array", most: Floats, jobs: int) -> Floats | None:
    """Return where the published solver stops, None where its steps lose their footing before the best."""
    try:
        return interior(cost, scipy.sparse.csr_array(rows), most, jobs)
    except ArithmeticError:
        return None
