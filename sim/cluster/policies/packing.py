"""What two jobs gain by sharing devices."""

import numpy as np

from sim.cluster.programs import inverse
from sim.cluster.state import Floats, State


def gains_together(state: State) -> Floats:
    """Return (k, m): the sum over a pair of its jobs' steps/s together over those alone; 1 is what taking turns gives.

    A job that does not run counts nothing.
    """
    alone = state.steps_per_s[state.pairs.jobs].transpose(0, 2, 1)  # (k, m, 2)
    return np.asarray((state.pairs.steps_per_s.reshape(alone.shape) * inverse(alone)).sum(axis=2))
