"""Entities share a cluster by their weights, jobs the part of their entity (arXiv 2008.09213, 4.3)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.cluster.policies.water_filling import WaterFillingPerf
from sim.cluster.state import Floats, State
from sim.specs.fields import InputError

INSIDE = ("fairness", "fifo")


class Hierarchical(WaterFillingPerf):
    """Water filling with the weights of entities, which those of their jobs share that still rise.

    `inside` an entity, for all or one by one (in the order of their weights, or in which they come): by "fairness"
    jobs share its weight in proportion to theirs, by "fifo" all of it is the first one's until that is full. A job of a
    state without entities is of the first. With `gavel_parity` and no `milp` a level is final after one program.
    """

    name = "hierarchical"

    def __init__(
        self, seed: int = 0, gavel_parity: bool = False, inside: str | Sequence[str] = "fairness", milp: bool = True
    ) -> None:
        super().__init__(seed, gavel_parity)
        self.milp = milp
        self.inside = inside if isinstance(inside, str) else tuple(inside)
        for given in (inside,) if isinstance(inside, str) else inside:
            if given not in INSIDE:
                raise InputError("inside", given, f"one of {', '.join(INSIDE)}")

    def weigh(self, state: State, full: NDArray[np.bool_]) -> Floats:
        """Return the weights (n,) of jobs that still rise; those of an entity's jobs sum to its own."""
        entity = state.entity if len(state.entity) else np.zeros(state.jobs, dtype=np.int64)
        weights = np.where(full, 0.0, state.weights)
        for at, all_of_it in enumerate(state.entity_weights):
            jobs = np.flatnonzero((entity == at) & ~full)
            if len(jobs) and self._inside(at, len(state.entity_weights)) == "fifo":
                weights[jobs] = 0.0
                weights[jobs[0]] = all_of_it
            elif len(jobs):
                weights[jobs] *= all_of_it / weights[jobs].sum()
        return weights

    def _inside(self, entity: int, entities: int) -> str:
        if isinstance(self.inside, str):
            return self.inside
        if len(self.inside) < entities:  # more of them may still come
            raise InputError("inside", self.inside, f"one for each of {entities} entities")
        return self.inside[entity]


class HierarchicalAgnostic(Hierarchical):
    """The same by one who takes all types for equal: shares of time."""

    name = "hierarchical_agnostic"
    aware = False
