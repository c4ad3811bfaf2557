"""Three entities that share a cluster, job after job: what each gets (arXiv 2008.09213, figure 11).

18 jobs of one device each arrive one by one, every fourth step, the first six of entity 0 and so on; entities weigh 1,
2 and 3, jobs by turns 1 and 2, and there are three devices of each of three types.
"""

import random
from dataclasses import dataclass

import numpy as np

from sim.cluster.policies.hierarchical import Hierarchical, HierarchicalAgnostic
from sim.cluster.policies.optimising import proportional
from sim.cluster.state import Floats, State

JOBS, ENTITIES, EVERY, STEPS = 18, 3, 4, 72
TYPES, DEVICES = ("v100", "p100", "k80"), 3


@dataclass(frozen=True, eq=False)
class HierarchicalStudy:
    """Normalised effective throughputs (72, 18) of a policy that knows types apart and of one that does not.

    1 is what the job would have, were all its time spread over the cluster; 0 before it has come. `entity` (18,).
    """

    aware: Floats
    agnostic: Floats
    entity: np.ndarray

    def of_entities(self, levels: Floats) -> Floats:
        """Return the sums (72, 3) over the jobs of each entity."""
        return np.stack([levels[:, self.entity == at].sum(axis=1) for at in range(ENTITIES)], axis=1)


def random_speeds(seed: int = 0) -> Floats:
    """Return steps/s (18, 3) at random: of three draws from 0 - 1 the largest is of the V100, the least of the K80."""
    draw = random.Random(seed)
    return np.array([sorted((draw.random() for _ in TYPES), reverse=True) for _ in range(JOBS)])


def hierarchical_study(steps_per_s: Floats, inside: str = "fairness", gavel_parity: bool = False) -> HierarchicalStudy:
    """Return the study of jobs with `steps_per_s` (18, 3) on V100, P100 and K80.

    `inside` an entity: "fairness" or "fifo" (jobs weigh 1 then). With `gavel_parity` it is the published one, whose
    solver left the mixed-integer part undone: a level is final after one program. Raises InputError.
    """
    entity = np.arange(JOBS) // (JOBS // ENTITIES)
    aware, agnostic = np.zeros((STEPS, JOBS)), np.zeros((STEPS, JOBS))
    for jobs in range(1, JOBS + 1):
        rates = steps_per_s[:jobs]
        state = State(
            ids=np.arange(jobs),
            types=TYPES,
            steps_per_s=rates,
            scale=np.ones(jobs, dtype=np.int64),
            devices=np.full(len(TYPES), DEVICES),
            steps_left=np.ones(jobs),
            waited_s=np.zeros(jobs),
            weights=np.ones(jobs) if inside == "fifo" else 1.0 + np.arange(jobs, dtype=np.float64) % 2,
            entity=entity[:jobs],
            entity_weights=1.0 + np.arange(ENTITIES, dtype=np.float64),
        )
        during = slice(EVERY * (jobs - 1), EVERY * jobs)
        for kind, levels in ((Hierarchical, aware), (HierarchicalAgnostic, agnostic)):
            shares = kind(gavel_parity=gavel_parity, inside=inside, milp=False).allocate(state)
            levels[during, :jobs] = (rates * shares).sum(axis=1) / proportional(state, rates)
    return HierarchicalStudy(aware, agnostic, entity)
