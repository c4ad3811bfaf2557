"""What Megatron-LM asserts of degrees, experts and techniques as it starts (megatron-core 0.16.1).

`arguments` is Megatron-LM's `megatron/training/arguments.py`, `validate_args`.
"""

from typing import Any

import numpy as np

from sim.plans.limit import Asked, Limit, among


def _copies(a: Asked) -> Any:
    """Return the copies of what ZeRO shards: Megatron-LM's num_distributed_optimizer_instances."""
    return np.where(np.asarray(a.zero) > 0, a.dp * np.asarray(a.cp) // a.shard, 1)


ASSERTED = (
    # arguments: "seq-length should be a multiple of 2 * context-parallel-size if context-parallel-size > 1".
    Limit(
        "cp",
        "Megatron-LM's context-parallel ranks take two equal parts of a sequence each",
        lambda a: (np.asarray(a.cp) > 1) & (a.seq % (2 * np.asarray(a.cp)) > 0),
        lambda a: f"1, or half a divisor of the {a.seq} tokens of a sequence (Megatron-LM)",
    ),
    # arguments: "Currently GroupedGEMM for MoE only supports bf16 dtype", "Expert parallelism is not supported with
    # fp16 training"; 8- and 4-bit recipes run beside bf16.
    Limit(
        "precision",
        "Megatron-LM's grouped products of experts take bf16",
        lambda a: among(a.experts) & np.isin(a.precision, ("fp16", "fp32")),
        lambda a: "bf16, or 8 or 4 bits, with experts (Megatron-LM's grouped products)",
    ),
    # core/transformer/transformer_config.py: "Bias in Moe is only supported when ETP==1".
    Limit(
        "etp",
        "Megatron-LM splits no experts with biases",
        lambda a: among(a.biased) & (np.asarray(a.etp) > 1),
        lambda a: "1 with experts that have biases (Megatron-LM)",
    ),
    # core/parallel_state.py, initialize_model_parallel: "When not using pp-last rank ordering, the data parallel size
    # of the attention and moe layers must be the same"; a network without experts counts cp among the latter's.
    Limit(
        "rank_order",
        "Megatron-LM's pp goes last where experts and all else have different data-parallel ranks",
        lambda a: among(a.rank_order == "tp-cp-pp-dp") & (np.asarray(a.pp) > 1) & (a.expert_dp != np.asarray(a.dp)),
        lambda a: f"tp-cp-dp-pp with {a.expert_dp} data-parallel ranks of experts and {a.dp} of all else (Megatron-LM)",
    ),
    # There: "Expert data parallel size should be divisible by partial DistOpt shard factor".
    Limit(
        "fsdp_shard",
        "Megatron-LM's copies of the optimizer divide the experts' data-parallel ranks",
        lambda a: a.expert_dp % _copies(a) > 0,
        lambda a: f"so many that copies divide the {a.expert_dp} data-parallel ranks of experts (Megatron-LM)",
    ),
    # core/transformer/transformer_config.py: "Delayed scaling does not support moe_act and layernorm recompute".
    Limit(
        "recompute",
        "Megatron-LM's delayed scaling has no recompute of norms and experts' activations",
        lambda a: (np.asarray(a.recompute) == "selective") & (np.asarray(a.precision) == "fp8") & ~among(a.eager),
        lambda a: "none or full with precision fp8 and fused attention (Megatron-LM's delayed scaling)",
    ),
    # arguments: "The optimizer cpu offload must be used in conjunction with `--use-precision-aware-optimizer`";
    # core/optimizer/optimizer_config.py: "only supported with distributed optimizer".
    Limit(
        "offload",
        "Megatron-LM offloads a distributed optimizer alone",
        lambda a: among(a.share("optimizer") > 0) & (np.asarray(a.zero) == 0),
        lambda a: "nothing of the optimizer with zero 0 (Megatron-LM's use_precision_aware_optimizer)",
    ),
    # core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py: "Gradient reduce-scatter must be overlapped when using
    # sharding optimizer and gradients".
    Limit(
        "overlap_dp",
        "Megatron-FSDP's collectives always run beside compute",
        lambda a: (np.asarray(a.zero) > 1) & ~among(a.overlap_dp),
        lambda a: "true with zero 2 or 3 (Megatron-FSDP)",
    ),
)
