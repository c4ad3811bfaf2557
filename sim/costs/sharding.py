"""What ZeRO and PyTorch's FSDP2 shard: groups, bytes of a parameter, and what is whole for a while.

ZeRO: arXiv 1910.02054, section 5; FSDP: arXiv 2304.11277. Sizes in bytes, times in seconds, per rank.
"""

from sim.costs import memory
from sim.costs.algebra import Expr, maximum, minimum, symbol
from sim.costs.collectives import Group
from sim.costs.kernels import element_bytes
from sim.costs.layers.ops import native

zero1, zero2, zero3 = (symbol(n) for n in ("zero1", "zero2", "zero3"))
trained = symbol("trained")
"""Share of the parameters that is trained, on every rank alike: 1 without adapters."""
reduce_bytes = trained * symbol("gradient_bytes")
dp_group, shard_group, replica_group = (Group.named(n) for n in ("dp", "shard", "replica"))
edp_group, expert_shard, expert_replica = (Group.named(n) for n in ("edp", "expert_shard", "expert_replica"))
"""Of weights that every data-parallel rank has, and of experts': all ranks, those of a copy, the copies of a shard."""
weights_shard, experts_shard = (minimum(1, group.n - 1) for group in (shard_group, expert_shard))
"""1 where ZeRO shards a rank's weights, or its experts, over several ranks; else every stage of it is ZeRO-0."""
wrapped = native * maximum(weights_shard, experts_shard * minimum(1, symbol("experts")))
"""1 where PyTorch's FSDP2 holds the weights: all, where some are sharded, as torchtitan's `apply_fsdp` has it."""
fsdp = zero3 * wrapped
"""1 where sharded parameters are the fp32 master weights themselves (FSDP2): 4 + 4 + 8 bytes, no 16-bit copy."""
weight_bytes = fsdp * (4 * trained + element_bytes * (1 - trained)) + (1 - fsdp) * (
    element_bytes + symbol("weight_copy_bytes")
)
"""Bytes that a rank holds of a parameter for its passes; frozen ones are taken to be kept in 16 bits."""
optimizer_state_bytes = trained * (memory.MOMENT_BYTES + (1 - fsdp) * memory.master_bytes)
"""Bytes that a rank holds of a parameter that it updates: moments and master copy."""


def unreduced(index: int) -> tuple[Expr, Expr]:
    """Return the bytes of a layer's weight gradients before PyTorch's FSDP2 reduces them, and of the copy it does so
    from."""
    parameters = memory.layer_parameters(index) + memory.expert_parameters(index)
    sharded = zero2 * wrapped
    return sharded * trained * element_bytes * parameters, sharded * reduce_bytes * parameters


def sharded_reduce(size: Expr, shard: Group = shard_group, replica: Group = replica_group) -> Expr:
    """Return the seconds of reducing gradients of `size` bytes into shards, and over the copies of the shards."""
    return shard.reduce_scatter(size) + replica.all_reduce(size / shard.n)


def sharded(dense: Expr, expert: Expr, by: Expr) -> Expr:
    """Return what a rank has of parameters that are sharded where `by` is 1; experts have a group of their own."""
    return sum(p / (1 + by * (n - 1)) for p, n in ((dense, shard_group.n), (expert, expert_shard.n)))


def gathered_parameters(index: int, alone: Expr) -> Expr:
    """Return one layer's parameters on a rank that ZeRO shards, and where `alone` is 1 those no other rank holds."""
    groups = (weights_shard, memory.layer_parameters(index)), (experts_shard, memory.expert_parameters(index))
    return sum(maximum(shard, alone) * parameters for shard, parameters in groups)


def unsharded(largest: Expr, blocks: Expr, extra: Expr, head: Expr) -> Expr:
    """Return the bytes of gathered weights and of gradients not yet scattered that one rank holds beside its shards.

    ZeRO-3 holds the running layer's weights and the prefetched one's, or the largest of embedding and head; ZeRO-2 the
    gradients that are being reduced. torchtitan's FSDP2 wraps embedding and head as one root group, gathered all
    through the step; the head's gradient waits for the embedding's (`torch.distributed.fsdp`, `FSDPParamGroup`). It
    casts what no other rank holds for the running layer too (there, `wait_for_unshard`), but not ahead.
    """
    weights = (1 - native) * maximum(blocks, extra) + native * (blocks + extra)
    reduced = (1 - native) * reduce_bytes * maximum(largest, extra) + native * trained * element_bytes * head
    return zero3 * element_bytes * weights + zero2 * reduced


def reduced_once(parameters: Expr, group: Group) -> Expr:
    """Return the seconds of ZeRO-0's or ZeRO-1's reduction of the gradients of `parameters`."""
    size = reduce_bytes * parameters
    parts = (shard_group, replica_group) if group is dp_group else (expert_shard, expert_replica)
    sharded = sharded_reduce(size, *parts)
    return (1 - zero1) * group.all_reduce(size) + (zero1 - zero2) * sharded
