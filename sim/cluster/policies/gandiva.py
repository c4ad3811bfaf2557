"""Gandiva: jobs in pairs by trial, equal time for all, blind to types (OSDI 2018, as arXiv 2008.09213 compares it)."""

import random

import numpy as np
from numpy.typing import NDArray

from sim.cluster.policies.base import Policy
from sim.cluster.policies.packing import gains_together
from sim.cluster.programs import pairs_runnable, runnable
from sim.cluster.state import Floats, State

Group = tuple[int, ...]
"""Ids of a job alone or of a pair, in rising order."""


class Gandiva(Policy):
    """While jobs ask for more devices than there are they are paired at random, and pairs that lose are parted.

    A pair is tried on devices: it is made whatever it gains and stays while its mean over the types is no less than
    taking turns. Groups share every type equally. With `gavel_parity` the published draws are made (two jobs of unequal
    scale cost a draw) and a pair stays while its sum over the types is 1 and it runs on all.
    """

    name = "gandiva"
    aware = False
    packs = True

    def __init__(self, seed: int = 0, gavel_parity: bool = False) -> None:
        super().__init__(seed, gavel_parity)
        self._draw = random.Random(seed)
        self._pairs: set[Group] = set()
        self._alone: set[int] = set()
        """Jobs that found no partner; drawn again by the next call."""

    def allocate(self, state: State) -> Floats:
        """Return X (n + k, m): groups have equal shares."""
        row = {int(job): at for at, job in enumerate(state.ids)}
        fit = pairs_runnable(state, self.gavel_parity).any(axis=1)
        rows = {_ids(state, at): state.jobs + at for at in np.flatnonzero(fit).tolist()}
        keeps = self._keeps(state)
        self._pairs = {pair for pair in self._pairs if pair in rows and keeps[rows[pair] - state.jobs]}
        jobs = [job for job in row if self.gavel_parity or runnable(state)[row[job]].any()]
        groups: list[Group] = [(job,) for job in jobs]
        if sum(int(state.scale[row[job]]) for job in jobs) > state.devices.sum() * state.part:
            paired = {job for pair in self._pairs for job in pair}
            self._pairs |= self._paired(state, [job for job in jobs if job not in paired], row, rows)
            paired = {job for pair in self._pairs for job in pair}
            groups = [*self._pairs, *((job,) for job in jobs if job not in paired)]
        return self._equal(state, sorted(rows[group] if len(group) > 1 else row[group[0]] for group in groups))

    def _keeps(self, state: State) -> NDArray[np.bool_]:
        """Return which pairs (k,) are worth being one."""
        gains = gains_together(state)
        if self.gavel_parity:
            return np.asarray((gains.sum(axis=1) >= 1) & (state.pairs.steps_per_s > 0).all(axis=(1, 2)))
        runs = pairs_runnable(state)
        return np.asarray((gains * runs).sum(axis=1) >= np.maximum(1, runs.sum(axis=1)))

    def _paired(self, state: State, free: list[int], row: dict[int, int], rows: dict[Group, int]) -> set[Group]:
        """Return new pairs of jobs of equal scale."""
        made: set[Group] = set()
        for _ in range(len(free)):
            if len(free) < 2:
                break
            one, other = self._draw.sample(free, 2)
            pair = (min(one, other), max(one, other))
            if state.scale[row[one]] == state.scale[row[other]] and pair in rows:
                made.add(pair)
                free.remove(one)
                free.remove(other)
        return made

    def _equal(self, state: State, groups: list[int]) -> Floats:
        """Return X (n + k, m) of groups that are these rows: each has its part of every type."""
        runs = np.concatenate([runnable(state), pairs_runnable(state)])
        scale = np.concatenate([state.scale, state.scale[state.pairs.jobs[:, 0]]])
        shares = np.zeros(runs.shape)
        shares[groups] = state.devices * state.part / max(1, len(groups)) / scale[groups, None]
        if not self.gavel_parity:
            shares[~runs] = 0.0
        return np.asarray(shares / np.maximum(1.0, shares.sum(axis=1, keepdims=True)))


def _ids(state: State, pair: int) -> Group:
    one, other = state.ids[state.pairs.jobs[pair]].tolist()
    return min(one, other), max(one, other)
