"""AlloX: the mean completion time of jobs of one device each is the least of an assignment (EuroSys 2020)."""

import numpy as np
import scipy  # loads its parts at their first use

from sim.cluster.policies.base import Policy
from sim.cluster.programs import runnable
from sim.cluster.state import Floats, Ints, State
from sim.specs.fields import InputError

NEVER_S = 1e15
"""Time of a job on a type that it does not run on."""
SLOW = 1e-10
"""Steps/s that the published system takes for 0."""


class AlloX(Policy):
    """Jobs that wait and free devices: which job runs k-th from last on which device, at k times what it takes there.

    The first on each device starts and keeps it to its end. Raises InputError for a job of several devices.
    """

    name = "allox"

    def __init__(self, seed: int = 0, gavel_parity: bool = False) -> None:
        super().__init__(seed, gavel_parity)
        self._held: dict[int, int] = {}

    def allocate(self, state: State) -> Floats:
        """Return X (n + k, m): 1 where a job runs."""
        if (state.scale > 1).any():
            raise InputError("scale_factor", int(state.scale.max()), "1: AlloX assigns jobs of one device")
        row = {int(job): at for at, job in enumerate(state.ids)}
        self._held = {job: column for job, column in self._held.items() if job in row}
        free = state.devices - np.bincount(list(self._held.values()), minlength=len(state.types))
        waits = [at for job, at in row.items() if job not in self._held]
        if not self.gavel_parity:  # who runs on no free device would take places, and make others' look later
            waits = [at for at in waits if (runnable(state)[at] & (free > 0)).any()]
        waits.sort(key=lambda at: -float(state.waited_s[at]))
        for at, column in self._started(state, np.array(waits, dtype=np.int64), free):
            self._held[int(state.ids[at])] = column
        shares = np.zeros((state.jobs + len(state.pairs.jobs), len(state.types)))
        for job, column in self._held.items():
            shares[row[job], column] = 1.0
        return shares

    def _started(self, state: State, waits: Ints, free: Ints) -> list[tuple[int, int]]:
        """Return (row, column) of jobs that start: of each device's the one that is most places from its last."""
        if not len(waits) or not free.sum():
            return []
        speed = state.steps_per_s[waits]
        alone_s = state.steps_left[waits][:, None] / np.maximum(speed, SLOW)
        if not self.gavel_parity:
            alone_s = np.where(runnable(state)[waits], alone_s, NEVER_S)
        # Devices of a type are alike, so in the best order none of them has two jobs more than another: no more places.
        device = np.repeat(np.arange(len(free)), free)
        places = int(-(-len(waits) // free[free > 0].min()))
        most = np.where(free > 0, -(-len(waits) // np.maximum(free, 1)), 0)
        place, at = np.indices((places, len(device))).reshape(2, -1)
        room = place < most[device[at]]
        place, at = place[room] + 1, at[room]
        cost = alone_s[:, device[at]] * place + state.waited_s[waits][:, None]
        chosen, slot = scipy.optimize.linear_sum_assignment(cost)
        first: dict[int, tuple[int, int]] = {}
        for job, its in zip(chosen.tolist(), slot.tolist(), strict=True):
            if cost[job, its] < NEVER_S and place[its] > first.get(int(at[its]), (0, 0))[0]:
                first[int(at[its])] = (int(place[its]), int(waits[job]))
        return [(row, int(device[which])) for which, (_, row) in first.items()]
