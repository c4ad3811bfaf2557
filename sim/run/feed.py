"""What a plan asks of the input pipelines of its nodes."""

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from sim.engine.step import Step
from sim.specs import PlacedPlan


@dataclass(frozen=True)
class Feed:
    """The busiest of `readers` nodes hands `batch` samples to its replicas for every one of `microbatches` a step.

    A replica's data is read where its first stage lies, once for all its ranks: with the data-parallel axis inside the
    pipeline's (the usual rank order) few nodes read for all. Of two copies of a model each reads half.
    `compute_samples_per_s` is what the node's share of the devices takes when it never waits.
    """

    readers: int
    batch: int
    microbatches: int
    step_time_s: float
    network_bytes_per_s: float

    @classmethod
    def of(cls, step: Step) -> "Feed":
        """Return what a step asks."""
        first = _first_ranks(step.placed)
        replicas = np.bincount(first.ravel() // step.cluster.gpus_per_node) / len(first)
        batch = ceil(step.placed.at(0).plan.micro_batch * replicas.max())
        network = min(m.links.inter_bytes_per_s_per_node for m in step.cluster.members)
        return cls(int(np.count_nonzero(replicas)), batch, step.placed.microbatches, step.step_time_s, network)

    @property
    def samples_per_step(self) -> int:
        """Of the busiest node."""
        return self.batch * self.microbatches

    @property
    def compute_samples_per_s(self) -> float:
        """Of the busiest node, when it never waits."""
        return self.samples_per_step / self.step_time_s


def _first_ranks(placed: PlacedPlan) -> NDArray[np.int64]:
    """Return the rank that reads the data of every replica, the first of its first stage: [copy of the model, dp]."""
    own, plan = placed.at(0), placed.at(0).plan
    stages = 1 if placed.plan.stages else plan.pp  # unequal ones lie in a row, the first of them first
    extent = {"pp": stages, "dp": own.dp, "cp": plan.cp, "tp": plan.tp}
    axes = plan.rank_order.split("-")[::-1]
    ids = np.arange(stages * own.dp * plan.cp * plan.tp).reshape([extent[axis] for axis in axes])
    cube = ids.transpose([axes.index(axis) for axis in extent])
    entries = list(plan.rank_of[:: len(plan.rank_of) // plan.copies])
    return np.asarray(cube[entries, :, 0, 0])
