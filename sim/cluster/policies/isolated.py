"""Every job has its n-th of every type: what a job could have alone in its part of the cluster."""

import numpy as np

from sim.cluster.policies.base import Policy
from sim.cluster.programs import runnable
from sim.cluster.state import Floats, State


class Isolated(Policy):
    """x_ij = N_j / (n s_i), a row that sums to more than 1 scaled to 1 (arXiv 2008.09213, 4.1)."""

    name = "isolated"
    aware = False

    def allocate(self, state: State) -> Floats:
        """Return X (n + k, m); nothing for pairs."""
        shares = np.zeros((state.jobs + len(state.pairs.jobs), len(state.types)))
        shares[: state.jobs] = isolated(state, self.gavel_parity)
        return shares


def isolated(state: State, everywhere: bool = False) -> Floats:
    """Return the shares (n, m); on types where a job cannot run only if `everywhere`."""
    shares = state.devices * state.part / max(1, state.jobs) / state.scale[:, None]
    if not everywhere:
        shares = np.where(runnable(state), shares, 0.0)
    return np.asarray(shares / np.maximum(1.0, shares.sum(axis=1, keepdims=True)))
