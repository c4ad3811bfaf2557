"""Policies that are a program: the best shares by one objective."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from sim.cluster.policies.base import Policy
from sim.cluster.programs import Program, blind, program
from sim.cluster.state import Floats, State


class Optimising(Policy):
    """A policy with an objective, which is the larger the better unless it `minimises`.

    One that is not `aware` takes every type for the fastest. With `gavel_parity` jobs have shares where they cannot
    run too, and of the best shares those that the published system's solver finds.
    """

    minimises: ClassVar[bool] = False

    def allocate(self, state: State) -> Floats:
        """Return the best X (n + k, m); raises SolverError."""
        if not state.jobs:
            return np.zeros((0, len(state.types)))
        return self.best(state, self.program(state))

    def objective(self, state: State, shares: Floats) -> float:
        """Return what `shares` (n + k, m) are worth; jobs that cannot run have no say."""
        limits = self.program(state)
        return self.worth(state, limits, limits.rates @ limits.unknowns(shares))

    def program(self, state: State) -> Program:
        """Return what the shares keep to."""
        return program(state, self.seen(state), self.packs, self.gavel_parity)

    def seen(self, state: State) -> Floats:
        """Return the steps/s (n, m) that the policy goes by."""
        return state.steps_per_s if self.aware else blind(state)

    @abstractmethod
    def best(self, state: State, limits: Program) -> Floats:
        """Return the best X (n + k, m)."""

    @abstractmethod
    def worth(self, state: State, limits: Program, effective: Floats) -> float:
        """Return the objective at effective steps/s (n,)."""


def proportional(state: State, steps_per_s: Floats) -> Floats:
    """Return steps/s (n,) of each job were its time spread over the types as devices are (arXiv 2008.09213, 4.1)."""
    return steps_per_s @ (state.devices / max(1, int(state.devices.sum())))
