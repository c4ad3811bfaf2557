"""What a plan asks of the input pipelines of its nodes."""

from dataclasses import dataclass
from math import ceil

from sim.engine.step import Step


@dataclass(frozen=True)
class Feed:
    """The busiest of `readers` nodes hands `batch` samples to its replicas for every one of `microbatches` a step.

    A replica's data is read where its first stage lies, once for all its ranks; `compute_samples_per_s` is what the
    node's share of the devices takes when it never waits.
    """

    readers: int
    batch: int
    microbatches: int
    step_time_s: float
    network_bytes_per_s: float

    @classmethod
    def of(cls, step: Step) -> "Feed":
        """Return what a step asks."""
        dp = step.placed.dp
        readers = min(step.cluster.nodes, dp)
        batch = step.plan.micro_batch * ceil(dp / readers)
        network = min(m.links.inter_bytes_per_s_per_node for m in step.cluster.members)
        return cls(readers, batch, step.placed.microbatches, step.step_time_s, network)

    @property
    def samples_per_step(self) -> int:
        """Of the busiest node."""
        return self.batch * self.microbatches

    @property
    def compute_samples_per_s(self) -> float:
        """Of the busiest node, when it never waits."""
        return self.samples_per_step / self.step_time_s
