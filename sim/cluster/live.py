"""Places real jobs round by round, as `simulate` places simulated ones: what was done is told, not computed."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

import numpy as np

from sim.cluster.active import NONE
from sim.cluster.arrays import NOW, Next
from sim.cluster.jobs import ClusterJob
from sim.cluster.policies.base import Policy
from sim.cluster.rounds import run_rounds
from sim.cluster.simulate import Rounds, Simulation
from sim.cluster.throughputs import Throughputs
from sim.specs.fields import InputError

Placed = dict[tuple[str, int], tuple[int, ...]]
"""Type of device and its number among those of the type -> the job that holds it, or both jobs that share it."""


class Live(Simulation):
    """A simulation whose progress is real: `place` is called once a round, at its begin.

    Arguments are those of `simulate`. What moves cost shows in the steps that are left, so `Rounds.switch_s` says
    nothing here.

    Raises:
        InputError: the rounds are those of the published simulator, which have no fixed length.
    """

    def __init__(
        self,
        jobs: Iterable[ClusterJob],
        throughputs: Throughputs,
        devices: Mapping[str, int],
        policy: Policy,
        rounds: Rounds | None = None,
        *,
        spread: Throughputs | None = None,
        seed: int = 0,
    ) -> None:
        rounds = rounds or Rounds()
        if rounds.gavel_parity:
            raise InputError("rounds.gavel_parity", True, "false: real rounds have a fixed length")
        super().__init__(iter(jobs), throughputs, devices, policy, rounds, spread, seed, record=True)

    def place(self, steps_left: Sequence[float], now_s: float) -> Placed:
        """Return who holds which device in the round that begins; empty while there is no job.

        `steps_left` of every job that has arrived, in order of arrival, 0 of those that have ended; `now_s` counts
        from when the first could have arrived.

        Raises:
            InputError: a job that has arrived is missing in `steps_left`, or the policy gives a job nothing for ever.
        """
        self._take(steps_left, now_s)
        self._leave()
        self._admit()
        idle = 0
        while True:
            if len(self.active) and self._due():
                self._reset()
            placed = self._round()
            if placed or self.waits_for_arrival or not len(self.active):
                return placed
            idle += 1
            self._wait(idle)

    def _take(self, steps_left: Sequence[float], now_s: float) -> None:
        """Put what was really done in the place of what was simulated."""
        if len(steps_left) < len(self.told.jobs):
            raise InputError("steps_left", len(steps_left), f"the steps of {len(self.told.jobs)} jobs or more")
        work = self.active.work
        work.left[:] = [steps_left[number] for number in self.active.ids.tolist()]
        work.end_s[:] = np.where(work.left > 0, NONE, now_s)
        self.clock[NOW] = now_s

    def _round(self) -> Placed:
        """Let one round pass; nobody ends in it, so that who runs is taken to hold its devices to its end."""
        orders, active = self._orders(), self.active
        if not self.rule.fixed:
            del self.orders[0]
        if not len(active):
            return {}
        left = active.work.left.copy()
        active.work.left[:] = inf
        entries, _ = run_rounds(
            active.rows, self.fleet, active.work, active.held, active.spent_s, self.clock, self.counts, self.log,
            orders, self.rule, Next(0.0, self._counted_from_s, self.needed),
        )  # fmt: skip
        active.work.left[:] = left
        return self._held() if entries else {}

    def _held(self) -> Placed:
        """Return who holds each device."""
        found: Placed = {}
        for first, count, name in zip(self.fleet.first, self.fleet.devices, self.told.types, strict=True):
            for number in range(count):
                row = self.active.held.row[first + number]
                if row >= 0:
                    jobs = self.active.rows.job[row]
                    found[name, number] = tuple(self.active.ids[jobs[jobs >= 0]].tolist())
        return found
