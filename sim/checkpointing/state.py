"""What is saved of a plan: bytes of every rank, who writes them, and what copying, writing and reading them takes.

Saved are weights and optimizer states (fp32 master copies and Adam's two moments), each once: the replicas of data
parallelism and what tensor-parallel ranks repeat hold nothing new. Gradients are not saved: of mixed precision 14 bytes
a parameter are (2 + 4 + 8), where 16 are held in training; 12 of FSDP's fp32 shards and of training in fp32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sim.checkpointing.durations import Times
from sim.costs.memory import MOMENT_BYTES
from sim.engine.step import Step
from sim.specs import Checkpointing, Cluster, InputError, Model, PlacedPlan, Plan, Storage
from sim.specs.arguments import checked
from sim.specs.blocks import Block
from sim.specs.catalog import precision

Writers = Literal["balanced", "first-replica"]
Bytes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class State:
    """Bytes of the training state of a plan: of a parameter, of all, and what every rank and node writes.

    `rank_bytes` [ranks, as they are numbered in the cluster] and `node_bytes` [nodes] sum to `total_bytes`.
    """

    parameters: int
    weight_bytes_per_parameter: int
    optimizer_bytes_per_parameter: int
    rank_bytes: Bytes
    gpus_per_node: int

    @property
    def bytes_per_parameter(self) -> int:
        """Weights, master copies and moments."""
        return self.weight_bytes_per_parameter + self.optimizer_bytes_per_parameter

    @property
    def total_bytes(self) -> int:
        """The state of the whole run."""
        return self.parameters * self.bytes_per_parameter

    @property
    def node_bytes(self) -> Bytes:
        """What the ranks of each node write."""
        starts = np.arange(0, len(self.rank_bytes), self.gpus_per_node)
        return np.add.reduceat(self.rank_bytes, starts)

    @property
    def writers(self) -> int:
        """Ranks that write anything."""
        return int(np.count_nonzero(self.rank_bytes))


@checked
def state_of(step: Step, writers: Writers = "balanced") -> State:
    """Return the state that a step's plan has to save.

    writers: "balanced", every rank of a stage an equal part of what the stage holds (what several hold is given to the
    one with the least to write, as torch.distributed.checkpoint does); "first-replica", the ranks of the first
    data-parallel replica, and of what ZeRO shards each its own.
    """
    placed, model = step.placed, step.model
    weight, optimizer = parameter_bytes(step.plan)
    held = stage_parameters(model, step.plan)
    tables = []
    for s, (dense, expert) in enumerate(held):
        own, n = placed.at(s), placed.stage_gpus[s]
        parts = _first_replica(own, dense, expert, (weight, optimizer)) if writers == "first-replica" else None
        parts = parts or iter([((dense + expert) * (weight + optimizer), n)])
        tables.append(sum((_spread(size, count, n) for size, count in parts), np.zeros(n, dtype=np.int64)))
    return State(model.trained_parameters, weight, optimizer, _ordered(placed, tables), step.cluster.gpus_per_node)


def parameter_bytes(plan: Plan) -> tuple[int, int]:
    """Return the bytes of a parameter's weight and of its optimizer states, fp32 master copy included."""
    recipe = precision(plan.precision)
    if plan.framework == "torch" and plan.zero == 3:  # FSDP2's shards are fp32, and the optimizer's own
        return 4, MOMENT_BYTES
    return int(recipe.activation_bytes.value), MOMENT_BYTES + int(recipe.master_bytes.value)


def stage_parameters(model: Model, plan: Plan) -> list[tuple[int, int]]:
    """Return the parameters that are trained of every pipeline rank, without routed experts and of these; they sum to
    the model's (adapters beside frozen weights alone are saved)."""
    split, held = plan.split(model), [[0, 0] for _ in range(plan.pp)]
    blocks, at = {block.letter: block for block in model.blocks}, 0
    for chunk, layers in enumerate(split):
        rank, letters = plan.rank_of[chunk], model.pattern[at : at + layers]
        at += layers
        if chunk == len(split) - 1:
            letters += "P" * model.mtp_layers
        for letter in letters:
            _add(held[rank], blocks[letter])
    if not model.adapter_rank:
        held[plan.rank_of[0]][0] += model.embedding_parameters
        held[plan.rank_of[len(split) - 1]][0] += model.head_parameters + model.final_norms * model.norm_parameters
    return [(dense, expert) for dense, expert in held]


def _add(held: list[int], block: Block) -> None:
    adapted, expert = block.model.adapter_rank > 0, block.expert_parameters
    held[0] += block.adapter_parameters if adapted else block.parameters - expert
    held[1] += 0 if adapted else expert


def _first_replica(placed: PlacedPlan, dense: int, expert: int, each: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield (bytes, how many of the stage's ranks write them in equal parts, the first of it)."""
    plan, (weight, optimizer) = placed.plan, each
    ranks = plan.tp * plan.cp * placed.dp
    parts = plan.ep * plan.etp
    sharded = plan.tp * placed.shard, min(ranks, parts * placed.shard)
    for size, alone, spread in ((dense, plan.tp, sharded[0]), (expert, parts, sharded[1])):
        yield size * weight, spread if plan.zero == 3 else alone
        yield size * optimizer, spread if plan.zero else alone


def _spread(size: int, count: int, ranks: int) -> Bytes:
    """Return `size` in whole parts over the first `count` of the ranks: [ranks]."""
    index = np.arange(ranks)
    return np.where(index < count, size // count + (index < size % count), 0).astype(np.int64)


def _ordered(placed: PlacedPlan, tables: list[Bytes]) -> Bytes:
    """Return the bytes of stages, [ranks of the stage: tp innermost, then cp, dp], as the cluster numbers ranks."""
    plan = placed.plan
    if plan.stages:
        return np.concatenate(tables)
    sizes = {"pp": plan.pp, "dp": placed.dp, "cp": plan.cp, "tp": plan.tp}
    axes = list(sizes)
    outermost_first = plan.rank_order.split("-")[::-1]
    cube = np.stack(tables).reshape(list(sizes.values()))
    return cube.transpose([axes.index(axis) for axis in outermost_first]).ravel()


@checked
def times(step: Step, checkpointing: Checkpointing | None = None, writers: Writers = "balanced") -> Times:
    """Return what saving the state of a step's plan takes, from the device's links and the job's storage.

    Raises:
        InputError: nobody says how fast the devices' host link is.
    """
    given = checkpointing or Checkpointing()
    held = state_of(step, writers)
    scale = 1.0 if given.state_bytes is None else given.state_bytes / held.total_bytes
    most, node, total = (scale * float(x) for x in (held.rank_bytes.max(), held.node_bytes.max(), held.total_bytes))
    members, kept = step.cluster.members, given.storage
    on_host = all(m.hardware.on_host for m in members)
    memory_rate = min(m.hardware.memory_bytes_per_s.value * m.multipliers.memory_rate for m in members)
    copy_s = 2 * most / memory_rate  # every byte is read and written
    free = step.cluster.memory_bytes - step.device_memory_bytes
    return Times(
        iteration_s=step.step_time_s,
        update_s=min(step.step_time_s, max(0.0, step.breakdown_s["optimizer"])),
        host_snapshot_s=copy_s if on_host else most / min(_host_rate(m) for m in members),
        device_snapshot_s=None if on_host or most > free else copy_s,
        persist_s=_storage_s(kept, kept.write_bytes_per_s, node, total, step.cluster),
        reload_s=kept.latency_s + _storage_s(kept, kept.read_bytes_per_s, node, total, step.cluster),
        state_bytes=total if given.state_bytes is None else given.state_bytes,
        contention=given.contention,
        snapshot=given.snapshot,
    )


ASSUMPTIONS = (
    "the state: weights, fp32 master copies and Adam's moments, each once; data loaders' and others' are small",
    "a rank copies what it writes; host links of a node do not slow each other",
    "reading: the state once from storage; handing it to the other replicas is in restart_s",
    "storage outlives the node that wrote to it",
)
"""Beside what a `Checkpointing` assumes."""


def _host_rate(member: Cluster) -> float:
    rate = member.host_bytes_per_s
    if rate is None:
        where = "cluster.links.host_bytes_per_s"
        raise InputError(where, None, f"required for snapshots in host memory: {member.device} states no host link")
    return rate


def _storage_s(kept: Storage, rate: float, node: float, total: float, cluster: Cluster) -> float:
    """Return the seconds of writing or reading: of a node's own storage its bytes, of one that all share all bytes,
    where the fullest node's network may be slower still."""
    if kept.shared == "node":
        return node / rate
    network = min(m.links.inter_bytes_per_s_per_node for m in cluster.members)
    return max(total / rate, node / network)
