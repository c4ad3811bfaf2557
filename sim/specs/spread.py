"""The numbers of a plan that rules look at, of one plan or of arrays of them alike."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.specs.cluster import Cluster
from sim.specs.pipelines import ASYNCHRONOUS, LOOPED, V_SHAPED, microbatches_to_steady

if TYPE_CHECKING:
    from sim.specs.plan import Plan


@dataclass(frozen=True)
class Spread:
    """The numbers that the rules look at; each a scalar, or all of them arrays that broadcast."""

    gpus: Any
    tp: Any
    pp: Any
    virtual_stages: Any
    dp: Any
    global_batch: Any
    micro_batch: Any
    group: Any
    sequence_parallel: Any
    schedule: Any
    cp: Any = 1
    ep: Any = 1
    etp: Any = 1
    shard: Any = 0
    stage_layers: tuple[int, ...] = ()
    zero: Any = 1
    selective: Any = False
    repeats: Any = True
    repeated: int = 0
    tempo: Any = False
    tp_comm_overlap: Any = False
    ep_overlap: Any = False

    @classmethod
    def of(cls, plan: "Plan", cluster: Cluster, gpus: int = 0) -> "Spread":
        """Return the numbers of one plan on so many devices (0: all); dp is what tp and pp leave if not given."""
        return cls(
            gpus=gpus or cluster.gpus,
            tp=plan.tp,
            pp=plan.pp,
            virtual_stages=plan.virtual_stages,
            dp=plan.dp or max(1, cluster.gpus // (plan.tp * plan.pp * plan.cp)),
            global_batch=plan.global_batch,
            micro_batch=plan.micro_batch,
            group=plan.microbatch_group_size,
            sequence_parallel=plan.sequence_parallel,
            schedule=plan.schedule,
            cp=plan.cp,
            ep=plan.ep,
            etp=plan.etp,
            shard=plan.fsdp_shard or 0,
            stage_layers=plan.stage_layers or (),
            zero=plan.zero,
            selective=plan.recompute == "selective",
            repeats=plan.recompute != "none",
            repeated=plan.recompute_layers or 0,
            tempo=plan.tempo,
            tp_comm_overlap=plan.tp_comm_overlap,
            ep_overlap=plan.ep_overlap,
        )

    @cached_property
    def interleaved(self) -> Any:
        """Whether microbatches are taken in groups of a given size."""
        return np.asarray(self.schedule) == "interleaved"

    @cached_property
    def chunked(self) -> Any:
        """Whether the schedule takes several chunks a rank."""
        return np.isin(self.schedule, LOOPED + V_SHAPED)

    @cached_property
    def microbatches(self) -> Any:
        """Microbatches of one replica in a step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def endless(self) -> Any:
        """Stages x microbatches that the engine runs of a schedule without flush; 0 of others."""
        runs = self.pp * self.virtual_stages * microbatches_to_steady(self.microbatches, self.pp)
        return np.isin(self.schedule, ASYNCHRONOUS) * runs
