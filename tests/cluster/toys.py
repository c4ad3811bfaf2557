"""Small clusters by hand: two types, of which `fast` does two steps a second and `slow` one."""

import numpy as np

from sim.cluster.jobs import ClusterJob
from sim.cluster.policies.base import Policy
from sim.cluster.throughputs import Throughputs

SPEED = {"fast": 2.0, "slow": 1.0}


class Fixed(Policy):
    """Gives every job the same shares, or those of its number; the first types of the shares are those that exist."""

    name = "fixed"

    def __init__(self, *shares, strict=False, packs=False, pair=None):
        super().__init__()
        self.shares, self.strict, self.packs, self.pair = shares, strict, packs, pair

    def allocate(self, state):
        rows = [self.shares[number % len(self.shares)] for number in state.ids.tolist()]
        rows += [self.pair or [0.0, 0.0]] * len(state.pairs.jobs)
        return np.array(rows, dtype=float).reshape(-1, 2)[:, : len(state.types)]


def speeds(types=("fast", "slow"), scales=(1, 2, 4), pair=None, **others):
    """Return throughputs of the job type `net` and of `others` (name=(steps/s by type)); `pair` of two of them."""
    rates = {"net": [SPEED.get(name, 1.0) for name in types]} | others
    alone = {(name, n): np.array(row, dtype=float) for name, row in rates.items() for n in scales}
    together = {}
    if pair is not None:
        together = {(a, b): np.array(pair, dtype=float) for a in alone for b in alone if a[1] == b[1]}
    return Throughputs(types, alone, together)


def job(steps, arrival_s=0.0, scale=1, name="net", **more):
    return ClusterJob(job_type=name, steps=steps, scale_factor=scale, arrival_s=arrival_s, **more)
